// core/wire/timeline_names.h: what the pictures of a timeline call ranks and instructions.
//
// "stage" is the pp coordinate within the module. Pure.
#pragma once

#include <string>

#include "core/plan/plan.h"
#include "core/schedule/program.h"

namespace phalanx::wire {

// "language stage 1"; several modules joined by ", "; "idle" where there is none.
std::string PlacesTitle(const plan::Plan& plan, Rank rank);
// "language stage 0 -> language stage 1", with chunks where a module has several.
std::string LinkTitle(const plan::Plan& plan, int32_t link);
// "F language 0 m3", "B ..." (gradient of inputs), "W ..." (of weights): module, chunk, microbatch;
// "send language stage 0 -> language stage 1 m3", "receive ..."; "reduce language 0", "record".
std::string InstructionTitle(const plan::Plan& plan, const schedule::Instruction& instruction);

}  // namespace phalanx::wire
