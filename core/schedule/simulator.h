// core/schedule/simulator.h: times the programs of a step under a cost model. Pure.
//
// The model is kStreams of core/schedule/execution.h: passes of a rank one after the other, two
// message communicators and one for reductions and gathers beside them.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/schedule/cost_model.h"
#include "core/schedule/program.h"

namespace phalanx::schedule {

struct TimedInstruction {
  Rank rank;
  Instruction instruction;
  double begin = 0, end = 0;  // seconds from the start of the step
};
// What a rank's communicator did, as its own stream saw it.
struct TimedOperation {
  Rank rank;
  int32_t communicator = 0;  // entry of plan::Communicators(plan)
  plan::CommunicatorOperation operation = plan::CommunicatorOperation::kAllReduce;
  double begin = 0, end = 0;  // seconds from the start of the step
};
struct Simulation {
  // Seconds from the start of a step to that of the next one: every rank has run its program, and
  // the gathers of a part have ended when its first pass comes. So a gather hides behind the passes
  // of the next step that come before it.
  double step = 0;
  double passes = 0;  // seconds until the last pass and the last message have ended
  // Of the pipeline: 1 - busy / (ranks x passes), idle ranks left out. What comes once a step
  // counts neither as busy nor as time.
  double bubble = 0;
  double lower_bound = 0;  // the bubble at the bound T of the plan's schedule (bound.h)
  std::vector<TimedInstruction> timeline;  // rank by rank, in program order
};
// `programs` must pass CheckStep (or be as BuildStep made them).
Simulation Simulate(const plan::Plan& plan, const std::vector<Program>& programs,
                    const CostModel& costs);

// The preview of a plan of any size: one rank stands for all that have the same program, and a
// message joins all ranks of both its parts. `timeline` has those ranks alone. The figures are
// those of Simulate where every lane has samples and modules share no ranks; else they may be a few
// percent off. Where the replicas of the language module differ, the pipeline of each kind of them
// is run by itself, beside the slowest of what other modules have. As BuildStep.
absl::StatusOr<Simulation> SimulatePlan(const plan::Plan& plan, const CostModel& costs);

}  // namespace phalanx::schedule
