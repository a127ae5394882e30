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
#include "core/schedule/long_step.h"
#include "core/schedule/pipeline.h"
#include "core/schedule/power.h"
#include "core/schedule/simulator.h"
#include "core/schedule/work_model.h"

namespace phalanx::schedule {
namespace {

// What is simulated of a step to see whether it is of interest, and to say what it takes, about;
// simulating takes some 0.2 us a unit. At least four, and sixteen times as many microbatches as
// there are stages, so that pipelines have filled.
constexpr int64_t kWorkGlance = 10'000, kWorkWhole = 400'000;

// Half of each, and all of it.
std::vector<int64_t> BeginningsOf(const plan::Plan& plan, const Pipeline& pipeline, Care care) {
  const int64_t work = WorkOfMicrobatch(pipeline);
  const int64_t stages = std::max<int64_t>(2, plan.stages);
  const auto half_of = [&](int64_t most, int64_t rounds) {
    return WholeRounds(plan, std::max(most / work / 2, rounds * stages));
  };
  const auto twice = [&plan](int64_t half) { return std::min(plan.microbatches, 2 * half); };
  const int64_t glance = half_of(kWorkGlance, 2), half = half_of(kWorkWhole, 8);
  std::vector<int64_t> beginnings = {glance};
  const auto add = [&beginnings](int64_t next) {
    if (next > beginnings.back()) beginnings.push_back(next);
  };
  if (care == Care::kGlance) {
    add(twice(glance));
  } else {
    if (twice(half) < plan.microbatches) add(half);
    add(twice(half));
  }
  return beginnings;
}

// What the rank class that works longest does of one microbatch.
PassSeconds LongestOf(const Pipeline& pipeline, const std::vector<PassSeconds>& parts) {
  PassSeconds longest;
  for (const RankClass& ranks : pipeline.classes) {
    PassSeconds here;
    for (const int32_t part : ranks.parts) here += parts[static_cast<size_t>(part)];
    if (here.total() > longest.total()) longest = here;
  }
  return longest;
}

// Of parts of a step less than so much tells nobody anything: what is printed of long steps, and a
// part of short ones.
constexpr double kSecondsTold = 0.05e-3, kPartTold = 0.005;

// As it is printed.
double TenthsOfPercent(double share) { return std::round(1000 * share); }

// Of the part of that number in StepParts, which takes `seconds` longer.
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
  ASSIGN_OR_RETURN(Measured measured,
                   MeasureWithin(std::numeric_limits<double>::infinity(), Care::kWhole,
                                 std::move(plan), profile, items, updates));
  return std::move(measured.proposal).value_or(Proposal());  // without a bound all are measured
}

absl::StatusOr<Measured> MeasureWithin(double most, Care care, plan::Plan plan,
                                       const DeviceProfile& profile, int32_t items,
                                       KnownUpdates& updates) {
  const Pipeline pipeline = MakePipeline(plan);
  const SustainedCosts sustained(plan, pipeline, profile, items, UpdatesOf(plan, updates));
  const PassSeconds longest = LongestOf(pipeline, sustained.parts());
  const auto count = static_cast<double>(plan.microbatches);
  double least = count * longest.total();
  if (least <= most) least = PassesAtLeast(plan, pipeline, sustained.costs());
  if (least > most) return Measured{.least = least};
  const std::vector<int64_t> beginnings = BeginningsOf(plan, pipeline, care);
  ASSIGN_OR_RETURN(const StepTime time, TimeOfStep(std::move(plan), sustained.costs(), beginnings,
                                                   {.least_pace = longest.total(), .most = most}));
  if (time.too_long) return Measured{.least = time.step};
  Proposal proposal;
  proposal.step = time.step;
  proposal.by_glance = care == Care::kGlance && !time.whole;
  proposal.bubble = time.bubble;
  proposal.clock_mhz = *std::min_element(sustained.clocks().begin(), sustained.clocks().end());
  StepParts& parts = proposal.parts;
  parts.recompute = count * longest.recompute;
  parts.tensor = count * longest.tensor;
  parts.compute = count * longest.total() - parts.recompute - parts.tensor;
  parts.waiting = std::max(0.0, time.passes - count * longest.total());
  parts.update = std::max(0.0, time.step - time.passes);
  return Measured{std::move(proposal), time.step};
}

std::string WhySlower(const Proposal& faster, const Proposal& slower) {
  const StepParts &a = faster.parts, &b = slower.parts;
  const double more[] = {b.compute - a.compute, b.recompute - a.recompute, b.tensor - a.tensor,
                         b.waiting - a.waiting, b.update - a.update};
  if (slower.step <= faster.step) {
    return slower.survives < faster.survives
               ? "is no slower, but the loss of more devices costs steps"
               : "is as fast to half a percent, with more ranks or stages";
  }
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
