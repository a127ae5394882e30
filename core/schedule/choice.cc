#include "core/schedule/choice.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/base/violation.h"
#include "core/plan/cost.h"
#include "core/plan/memory_estimate.h"
#include "core/schedule/long_step.h"
#include "core/schedule/pipeline.h"

namespace phalanx::schedule {
namespace {

using job::ScheduleName;
using plan::ScheduleCandidate;

// What is simulated of a candidate, in units of long_step.h. Of a longer training step about as
// much as the first, and as many microbatches as it takes to show a steady state. Of large graphs
// that may be as few as there are stages; if even that is more than the second, which is a fraction
// of a second, nothing is simulated.
constexpr int64_t kCandidateWork = 30'000;
constexpr int64_t kWorkMax = 400'000;
constexpr double kNearlyFastest = 1.01;

// In the order in which equals are taken. `plan`: of the job under 1f1b.
std::vector<job::Schedule> SchedulesToTry(const job::JobSpec& spec, const plan::Plan& plan) {
  std::vector<job::Schedule> schedules = {{.name = ScheduleName::k1F1B},
                                          {.name = ScheduleName::kZeroBubbleH1}};
  if (spec.modules[static_cast<size_t>(spec.language)].parallel.pp > 1) {
    schedules.push_back(
        {.name = ScheduleName::kInterleaved, .chunks = std::max(2, spec.schedule.chunks)});
    schedules.push_back({.name = ScheduleName::kZeroBubbleV, .chunks = 2});
  }
  if (std::any_of(plan.modules.begin(), plan.modules.end(),
                  [](const plan::ModulePlan& module) { return module.has_phases; })) {
    for (int32_t chunks : std::set<int32_t>{1, 2, 4, spec.schedule.encoder_chunks}) {
      if (chunks > plan.microbatches) continue;
      schedules.push_back({.name = ScheduleName::kThreePhase, .encoder_chunks = chunks});
    }
  }
  return schedules;
}

// Chunks are compared by their layers, so these must be known.
bool LayersAreKnown(const job::JobSpec& spec) {
  return std::all_of(spec.modules.begin(), spec.modules.end(),
                     [](const job::Module& module) { return module.architecture.layers > 0; });
}

// Costs that do not divide the backward take half of it for the weights.
CostModel CostsOf(const plan::Plan& plan) {
  CostModel costs = CostFromShapes(plan);
  for (size_t m = 0; m < costs.parts.size(); ++m) {
    for (size_t part = 0; part < costs.parts[m].size(); ++part) {
      PartCost& cost = costs.parts[m][part];
      if (cost.backward_weight > 0 || !plan.modules[m].trains[part].weights) continue;
      cost.backward_input /= 2;
      cost.backward_weight = cost.backward_input;
    }
  }
  return costs;
}

// What is simulated of the step (long_step.h), the same for all candidates, of which `plan` is the
// one with the fewest parts. Nothing: it would take too long.
std::vector<int64_t> BeginningsOf(const plan::Plan& plan) {
  const int64_t work = WorkOfMicrobatch(MakePipeline(plan));
  const int64_t stages = plan.stages;
  const int64_t most = 2 * kWorkMax / (3 * work);  // half of it is simulated first
  const int64_t count =
      std::min({plan.microbatches, most, std::max(kCandidateWork / work, 4 * stages)});
  if (count == plan.microbatches) return {count};
  // Whole rounds of the language module, two at least, and half of them.
  const int64_t round = plan.modules[static_cast<size_t>(plan.spec.language)].pp();
  const int64_t half = count / 2 / round * round;
  if (half == 0 || count < stages) return {};
  return {half, 2 * half};
}

// Fills what simulation and estimate say about the plan.
absl::Status SimulateCandidate(const plan::Plan& plan, absl::Span<const int64_t> beginnings,
                               ScheduleCandidate& candidate) {
  for (const plan::MemoryEstimate& estimate : plan::EstimateMemory(plan)) {
    candidate.memory = std::max(candidate.memory, estimate.total());
  }
  ASSIGN_OR_RETURN(const StepTime time, TimeOfStep(plan, CostsOf(plan), beginnings));
  candidate.step = time.step;
  candidate.bubble = time.bubble;
  return absl::OkStatus();
}

std::string WhyNot(const absl::Status& status) {
  const std::vector<Violation> violations = ViolationsOf(status);
  return violations.empty() ? std::string(status.message()) : violations.front().rule;
}

size_t Best(const std::vector<ScheduleCandidate>& candidates) {
  const ScheduleCandidate* fastest = nullptr;
  for (const ScheduleCandidate& candidate : candidates) {
    if (!candidate.left_out.empty()) continue;
    if (fastest == nullptr || candidate.step < fastest->step) fastest = &candidate;
  }
  const ScheduleCandidate* best = nullptr;
  for (const ScheduleCandidate& candidate : candidates) {
    if (!candidate.left_out.empty() || candidate.step > kNearlyFastest * fastest->step) continue;
    if (best == nullptr || candidate.memory < best->memory) best = &candidate;
  }
  return static_cast<size_t>(best - candidates.data());
}

}  // namespace

absl::StatusOr<plan::Plan> PlanJob(const job::JobSpec& spec, const plan::Cluster& cluster,
                                   Epoch epoch) {
  if (spec.schedule.name != ScheduleName::kAuto) return plan::MakePlan(spec, cluster, epoch);
  job::JobSpec tried = spec;
  if (tried.data.has_value()) {  // names of files are many, and no layout depends on them
    tried.data->shards.clear();
    tried.data->validation.clear();
  }
  tried.schedule = {.name = ScheduleName::k1F1B};
  ASSIGN_OR_RETURN(plan::Plan first, plan::MakePlan(tried, cluster, epoch));
  const std::vector<int64_t> beginnings = BeginningsOf(first);
  if (beginnings.empty()) return plan::Expand(spec, std::move(first.layout));
  std::vector<ScheduleCandidate> candidates;
  std::vector<plan::Layout> layouts;  // of each candidate; of what is left out none
  for (const job::Schedule& schedule : SchedulesToTry(spec, first)) {
    ScheduleCandidate& candidate = candidates.emplace_back();
    plan::Layout& layout = layouts.emplace_back();
    candidate.schedule = schedule;
    if (schedule.chunks > 1 && !LayersAreKnown(spec)) {
      candidate.left_out = "the number of layers is not known";
      continue;
    }
    tried.schedule = schedule;
    absl::StatusOr<plan::Plan> plan = plan::MakePlan(tried, cluster, epoch);
    if (!plan.ok()) {
      candidate.left_out = WhyNot(plan.status());
      continue;
    }
    RETURN_IF_ERROR(SimulateCandidate(*plan, beginnings, candidate));
    layout = std::move(plan->layout);
  }
  ASSIGN_OR_RETURN(plan::Plan plan, plan::Expand(spec, std::move(layouts[Best(candidates)])));
  plan.candidates = std::move(candidates);
  return plan;
}

}  // namespace phalanx::schedule
