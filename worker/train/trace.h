// worker/train/trace.h: from what the ranks measured of one step to one timeline.
//
// In the timeline a receive is as long as its rank was held up for the message. A CPU rank waits in
// the receive itself; on a device that is enqueued early, and the pass that needs it waits. Each
// rank measures on a clock of its own; all clocks agree on one instant: the exchange of records,
// which no rank leaves before every other has come to it. What communicators do on streams of their
// own stands beside it; gathers that a step has begun may end behind it.
//
// Pure.
#pragma once

#include <vector>

#include "core/plan/plan.h"
#include "core/schedule/simulator.h"
#include "worker/train/step_timer.h"

namespace phalanx::train {

// Each receive becomes the wait of its pass, and the pass begins behind. `times`: of `program`, in
// its order.
void MoveWaitsToReceives(const plan::Plan& plan, const schedule::Program& program,
                         std::vector<InstructionTime>& times);

// Shifts the times of each rank so that all leave kRecord together and the first instruction of all
// begins at 0. A rank without kRecord keeps its clock. `operations`: of the same ranks.
void AlignAtRecord(std::vector<schedule::TimedInstruction>& timeline,
                   std::vector<schedule::TimedOperation>& operations);

}  // namespace phalanx::train
