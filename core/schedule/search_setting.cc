#include "core/schedule/search_setting.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/rough_time.h"
#include "core/base/status.h"
#include "core/plan/memory_estimate.h"
#include "core/schedule/pipeline.h"
#include "core/schedule/power.h"
#include "core/schedule/simulator.h"
#include "core/schedule/work_model.h"

namespace phalanx::schedule {
namespace {

// Steps of a simulation, about: of longer training steps so many microbatches are simulated, and at
// least twice as many as there are stages, so that the pipeline has filled.
constexpr int64_t kWorkEnough = 20'000;

int64_t MicrobatchesToSimulate(const plan::Plan& plan, const Pipeline& pipeline) {
  int64_t work = 0;  // of a microbatch
  for (const RankClass& ranks : pipeline.classes) {
    const auto parts = static_cast<int64_t>(ranks.parts.size());
    work += 3 * parts * parts;
  }
  const int64_t filled = 2 * int64_t{plan.stages};
  return std::min(plan.microbatches, std::max(filled, kWorkEnough / std::max<int64_t>(1, work)));
}

// Of one microbatch, of the rank class that works longest, and of all ranks together.
struct Work {
  PassSeconds longest;
  double all = 0;
  double ranks = 0;
};
Work WorkOf(const Pipeline& pipeline, const std::vector<PassSeconds>& parts) {
  Work work;
  for (const RankClass& ranks : pipeline.classes) {
    PassSeconds here;
    for (const int32_t part : ranks.parts) here += parts[static_cast<size_t>(part)];
    if (here.total() > work.longest.total()) work.longest = here;
    work.all += here.total() * static_cast<double>(ranks.ranks);
    if (here.total() > 0) work.ranks += static_cast<double>(ranks.ranks);
  }
  return work;
}

// Of parts of a step less than so much tells nobody anything: what is printed of long steps, and a
// part of short ones.
constexpr double kSecondsTold = 0.05e-3, kPartTold = 0.005;

// Of the part of that number in StepParts, which takes `seconds` longer.
// As it is printed.
double TenthsOfPercent(double share) { return std::round(1000 * share); }

std::string ReasonOf(ptrdiff_t part, double seconds, const Proposal& faster,
                     const Proposal& slower) {
  const std::string longer = MillisecondsText(seconds);
  switch (part) {
    case 0:
      return absl::StrCat("its busiest rank computes ", longer, " longer");
    case 1:
      return absl::StrCat("computes activations again for ", longer, " more");
    case 2:
      return absl::StrCat("tensor ranks exchange rows for ", longer, " more");
    case 3:
      // A longer step may wait longer with as large a part of it, or a smaller one.
      if (TenthsOfPercent(slower.bubble) <= TenthsOfPercent(faster.bubble))
        return absl::StrCat("ranks wait ", longer, " longer");
      return absl::StrFormat("ranks wait %s longer (bubble %.1f %% instead of %.1f %%)", longer,
                             100 * slower.bubble, 100 * faster.bubble);
    default:
      return absl::StrCat("reduction, update and gather take ", longer, " more behind all passes");
  }
}

}  // namespace

job::JobSpec WithSetting(job::JobSpec laid, const Setting& setting) {
  laid.batch.micro = setting.micro;
  laid.schedule = setting.schedule;
  for (size_t i = 0; i < laid.modules.size(); ++i)
    laid.modules[i].recompute = RecomputeOf(laid, static_cast<int32_t>(i), setting);
  return laid;
}

int64_t MemoryOf(const plan::Plan& plan, const plan::SampleShape& samples) {
  int64_t most = 0;
  for (const plan::MemoryEstimate& estimate : plan::EstimateMemory(plan, samples))
    most = std::max(most, estimate.total());
  return most;
}

absl::StatusOr<Proposal> Measure(plan::Plan plan, const DeviceProfile& profile, int32_t items) {
  KnownUpdates updates;
  ASSIGN_OR_RETURN(std::optional<Proposal> measured,
                   MeasureWithin(std::numeric_limits<double>::infinity(), std::move(plan), profile,
                                 items, updates));
  return std::move(measured).value_or(Proposal());  // without a bound all are measured
}

absl::StatusOr<std::optional<Proposal>> MeasureWithin(double most, plan::Plan plan,
                                                      const DeviceProfile& profile, int32_t items,
                                                      KnownUpdates& updates) {
  const Pipeline pipeline = MakePipeline(plan);
  const SustainedCosts sustained(plan, pipeline, profile, items, UpdatesOf(plan, updates));
  const Work work = WorkOf(pipeline, sustained.parts());
  const int64_t microbatches = plan.microbatches;
  if (static_cast<double>(microbatches) * work.longest.total() > most) return std::nullopt;
  plan.microbatches = MicrobatchesToSimulate(plan, pipeline);
  ASSIGN_OR_RETURN(const Simulation simulation, SimulatePlan(plan, sustained.costs()));
  const double rest = static_cast<double>(microbatches - plan.microbatches) * work.longest.total();
  const auto count = static_cast<double>(microbatches);
  const double passes = simulation.passes + rest;
  Proposal proposal;
  proposal.step = simulation.step + rest;
  proposal.clock_mhz = *std::min_element(sustained.clocks().begin(), sustained.clocks().end());
  if (passes > 0) proposal.bubble = std::max(0.0, 1 - count * work.all / (work.ranks * passes));
  StepParts& parts = proposal.parts;
  parts.recompute = count * work.longest.recompute;
  parts.tensor = count * work.longest.tensor;
  parts.compute = count * work.longest.total() - parts.recompute - parts.tensor;
  parts.waiting = std::max(0.0, passes - count * work.longest.total());
  parts.update = std::max(0.0, proposal.step - passes);
  return proposal;
}

std::string WhySlower(const Proposal& faster, const Proposal& slower) {
  const StepParts &a = faster.parts, &b = slower.parts;
  const double more[] = {b.compute - a.compute, b.recompute - a.recompute, b.tensor - a.tensor,
                         b.waiting - a.waiting, b.update - a.update};
  if (slower.step <= faster.step) return "is as fast to half a percent, with more ranks or stages";
  const auto* most = std::max_element(std::begin(more), std::end(more));
  // Nothing tells them apart but memory.
  if (*most < std::min(kSecondsTold, kPartTold * slower.step))
    return "takes as long, with no less memory";
  std::string reason = ReasonOf(most - std::begin(more), *most, faster, slower);
  // What is named may be more than the whole difference.
  const double less = *most - (slower.step - faster.step);
  if (less >= kPartTold * slower.step)
    absl::StrAppend(&reason, ", all else takes ", MillisecondsText(less), " less");
  return reason;
}

}  // namespace phalanx::schedule
