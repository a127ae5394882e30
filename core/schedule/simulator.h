// core/schedule/simulator.h: times the programs of a step under a cost model. Pure.
//
// The model is kStreams of core/schedule/execution.h: passes of a rank one after the other, two
// message communicators and one for reductions and gathers beside them. What a step is made of lies
// where ranks put it (docs/decisions/0044, 0054):
// - The sum of gradients begins inside the last backward pass where overlap.h says so, behind the
//   layers that it is about; else behind the pass.
// - All ranks know of a step's decision at one time, that of the last record. From there on updates
//   run one after the other on a stream of their own, parts in the program's order, the slices of
//   each in the order of a forward pass; each slice is gathered behind its update, and the next
//   forward pass waits for it where it comes to its layers. Backward passes wait for all updates.
// - Parts without slices (PartCost) hold the passes up until they are updated, and their first
//   forward pass until they are gathered; so do both ends of a tied embedding.
// Passes beside which something runs take no longer for it.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/schedule/cost_model.h"
#include "core/schedule/pipeline.h"
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
  // Seconds from the start of a step to that of the next one, in a long row of equal ones: until
  // the decision, and as much as the longest delay that a rank's first passes have for updates,
  // gathers and weights that are made ready. A delay shifts all passes alike, so where others would
  // have waited for its rank anyway, it is counted too high.
  double step = 0;
  double passes = 0;  // seconds until the last pass and the last message would end without these
  // Of the pipeline: 1 - busy / (ranks x passes), idle ranks left out. What comes once a step
  // counts neither as busy nor as time.
  double bubble = 0;
  double lower_bound = 0;  // the bubble at the bound T of the plan's schedule (bound.h)
  // Rank by rank, in program order. Without those delays, and gathers whole, behind their updates.
  std::vector<TimedInstruction> timeline;
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
// Seconds that all passes of a step take at least, whichever way the schedule orders them.
double PassesAtLeast(const plan::Plan& plan, const Pipeline& pipeline, const CostModel& costs);

}  // namespace phalanx::schedule
