// worker/train/trace.h: from what the ranks measured of one step to one timeline.
//
// Each rank measures its own step on a clock of its own, and the wait for a message inside the pass
// that needs it. In the timeline a receive stands where its pass took it and is as long as the pass
// waited; the pass itself begins behind. All clocks agree on one instant: the exchange of records,
// which no rank leaves before every other has come to it.
//
// Pure.
#pragma once

#include <vector>

#include "core/plan/plan.h"
#include "core/schedule/simulator.h"
#include "worker/train/step_timer.h"

namespace phalanx::train {

// Moves the wait of each pass to its receives. `times`: of `program`, in its order.
void MoveWaitsToReceives(const plan::Plan& plan, const schedule::Program& program,
                         std::vector<InstructionTime>& times);

// Shifts the times of each rank so that all leave kRecord together and the first instruction of all
// begins at 0. A rank without kRecord keeps its clock.
void AlignAtRecord(std::vector<schedule::TimedInstruction>& timeline);

}  // namespace phalanx::train
