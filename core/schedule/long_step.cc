#include "core/schedule/long_step.h"

#include <algorithm>

#include "core/base/status.h"
#include "core/schedule/simulator.h"

namespace phalanx::schedule {
int64_t WorkOfMicrobatch(const Pipeline& pipeline) {
  int64_t work = 0;
  for (const RankClass& ranks : pipeline.classes) {
    const auto parts = static_cast<int64_t>(ranks.parts.size());
    work += 3 * parts * parts;
  }
  return std::max<int64_t>(1, work);
}

int64_t WholeRounds(const plan::Plan& plan, int64_t microbatches) {
  const int64_t round = plan.modules[static_cast<size_t>(plan.spec.language)].pp();
  return std::min(plan.microbatches, (microbatches + round - 1) / round * round);
}

absl::StatusOr<StepTime> TimeOfStep(plan::Plan plan, const CostModel& costs,
                                    absl::Span<const int64_t> beginnings,
                                    const LongStepOptions& options) {
  const int64_t all = plan.microbatches;
  double busy = 0;
  StepTime time, before;
  int64_t simulated = 0;
  for (const int64_t microbatches : beginnings) {
    plan.microbatches = microbatches;
    ASSIGN_OR_RETURN(const Simulation simulation, SimulatePlan(plan, costs));
    const auto left = static_cast<double>(all - microbatches);
    const auto between = static_cast<double>(microbatches - simulated);
    const StepTime now = {simulation.step, simulation.passes, simulation.bubble};
    const bool first = simulated == 0;
    const auto later = [&](double end, double end_before) {
      const double pace = first ? 0 : (end - end_before) / between;
      return end + left * std::max(options.least_pace, pace);
    };
    time.step = later(now.step, before.step);
    time.passes = later(now.passes, before.passes);
    busy = (1 - now.bubble) * now.passes / static_cast<double>(microbatches) *
           static_cast<double>(all);
    before = now;
    simulated = microbatches;
    // Of all but the last only what the step is not below.
    const bool last = microbatches == beginnings.back();
    const double sure = last ? time.step : now.step + left * options.least_pace;
    if (sure > options.most) return StepTime{.step = sure, .too_long = true};
  }
  time.whole = simulated == all;
  time.bubble = time.passes > 0 ? std::max(0.0, 1 - busy / time.passes) : 0;
  return time;
}

}  // namespace phalanx::schedule
