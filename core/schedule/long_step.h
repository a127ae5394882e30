// core/schedule/long_step.h: what a step of many microbatches takes, from beginnings of it. Pure.
//
// Longer and longer beginnings are simulated, until one is the whole step or as much as is worth
// it. What is left then goes on at the pace between the two longest. It is not the pace of the
// busiest rank: where ranks wait for each other in every microbatch, steps take up to twice as long
// as that.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/plan/plan.h"
#include "core/schedule/cost_model.h"
#include "core/schedule/pipeline.h"

namespace phalanx::schedule {

// What simulating a microbatch takes: its passes, each weighed against those that share its ranks.
int64_t WorkOfMicrobatch(const Pipeline& pipeline);

// So many microbatches, or somewhat more, that every stage of the language module is through with
// its rounds of them, and no more than the step has.
int64_t WholeRounds(const plan::Plan& plan, int64_t microbatches);

// As in Simulation.
struct StepTime {
  double step = 0, passes = 0, bubble = 0;
  bool whole = true;  // all microbatches were simulated
  // It takes at least `step` seconds, which is too much; nothing else is known of it.
  bool too_long = false;
};
struct LongStepOptions {
  // Seconds that each microbatch adds at least, and that the step may take to be of interest.
  double least_pace = 0, most = std::numeric_limits<double>::infinity();
};
// `beginnings`: microbatches of each, at least one, more and more, at most those of the plan.
// Errors: those of SimulatePlan.
absl::StatusOr<StepTime> TimeOfStep(plan::Plan plan, const CostModel& costs,
                                    absl::Span<const int64_t> beginnings,
                                    const LongStepOptions& options = {});

}  // namespace phalanx::schedule
