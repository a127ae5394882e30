// core/schedule/overlap.h: which parts begin to sum gradients inside their last backward pass.
//
// The rules of the ranks (worker/train/bound_program.h, docs/decisions/0044): sums begin early
// where input and weight pass are one, the embedding is not tied to another part, and no rank of
// the part exchanges messages with another; where tensor ranks fold copies first, nothing is
// complete before (UpdateShare). What is left to whoever has the programs: the next reduction is
// the part's own. Pure.
#pragma once

#include <vector>

#include "core/plan/plan.h"
#include "core/schedule/pipeline.h"

namespace phalanx::schedule {

// Whether both ends of each message of the link are one rank.
bool StaysOnRanks(const plan::Plan& plan, const plan::Link& link);

// Of each part.
std::vector<bool> SumsBeginInside(const plan::Plan& plan, const Pipeline& pipeline);

}  // namespace phalanx::schedule
