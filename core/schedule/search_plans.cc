#include "core/schedule/search_plans.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "core/plan/draft.h"
#include "core/plan/memory_estimate.h"
#include "core/schedule/search_setting.h"

namespace phalanx::schedule {

namespace {

bool KeepsLeast(const Setting& setting) {
  return setting.language == job::Recompute::kFull && setting.others == job::Recompute::kFull;
}

}  // namespace

void SearchPlans::Begin(const job::JobSpec& laid) {
  Forget();
  laid_ = &laid;
  least_memory_ = std::numeric_limits<double>::infinity();
}

void SearchPlans::Forget() {
  laid_ = nullptr;
  plans_.clear();
  states_.clear();
  misfits_.clear();
}

const plan::Plan* SearchPlans::Under(const Setting& setting) {
  auto known = std::find_if(plans_.begin(), plans_.end(), [&setting](const auto& entry) {
    return entry.first == setting.schedule;
  });
  if (known == plans_.end()) {
    absl::StatusOr<plan::Plan> made = plan::DraftPlan(WithSetting(*laid_, setting), cluster_);
    unsound_.Update(made.status());
    if (!made.ok()) return nullptr;
    known = plans_.insert(plans_.end(), {setting.schedule, *std::move(made)});
  }
  plan::Plan& plan = known->second;
  plan.spec.batch.micro = setting.micro;
  if (!plan::DealBatch(&plan).ok()) return nullptr;
  for (size_t i = 0; i < laid_->modules.size(); ++i)
    plan.spec.modules[i].recompute = RecomputeOf(*laid_, static_cast<int32_t>(i), setting);
  return &plan;
}

SearchPlans::Need SearchPlans::NeedOf(const plan::Plan& plan) {
  Division division{.schedule = plan.layout.schedule.name};
  for (const plan::ModuleLayout& module : plan.layout.modules) {
    division.layers.push_back(module.layers);
    division.homes.emplace_back(module.state_home, module.state_copies);
  }
  const std::vector<int64_t> activations = plan::EstimateActivations(plan);
  const auto [entry, is_new] = states_.try_emplace(std::move(division));
  std::vector<int64_t>& states = entry->second;
  if (is_new) {
    for (const plan::MemoryEstimate& estimate : plan::EstimateState(plan, sizes_))
      states.push_back(estimate.total());
  }
  Need most;
  for (size_t rank = 0; rank < states.size(); ++rank) {
    if (states[rank] + activations[rank] > most.total)
      most = {states[rank] + activations[rank], activations[rank]};
  }
  most.total += unestimated_;
  return most;
}

// Where a step's microbatches fill all stages, no module is ahead of them, and each has its rows of
// them.
bool SearchPlans::KeepsAsManyAsOfSmaller(const Setting& setting) {
  if (setting.schedule.chunks > 1 || setting.schedule.name == job::ScheduleName::kThreePhase)
    return false;
  const plan::Plan* plan = Under(setting);
  return plan != nullptr && plan->microbatches >= plan->stages &&
         std::none_of(plan->spec.modules.begin(), plan->spec.modules.end(),
                      [](const job::Module& module) { return module.frozen; });
}

// Of smaller microbatches as many are kept, or more, but that rounds of several chunks may be half
// as long; and with what is rounded each takes half of its part of a larger one at least.
bool SearchPlans::IsTooLarge(const Setting& setting) {
  return std::any_of(misfits_.begin(), misfits_.end(), [&](const Misfit& other) {
    const bool alike = other.setting.schedule == setting.schedule &&
                       other.setting.language == setting.language &&
                       other.setting.others == setting.others;
    if (!alike) return false;
    if (other.setting.micro == setting.micro) return true;
    if (other.setting.micro < setting.micro) return KeepsAsManyAsOfSmaller(setting);
    const double rest = static_cast<double>(other.need.total - other.need.activations);
    const double kept = static_cast<double>(other.need.activations) *
                        static_cast<double>(setting.micro) /
                        static_cast<double>(other.setting.micro);
    const double sure = kept / (setting.schedule.chunks > 1 ? 4 : 2);
    return rest + sure > static_cast<double>(device_memory_);
  });
}

bool SearchPlans::Fits(const Setting& setting) {
  if (IsTooLarge(setting)) return false;
  const plan::Plan* plan = Under(setting);
  if (plan == nullptr) return false;
  if (device_memory_ == 0) return true;
  const Need need = NeedOf(*plan);
  if (need.total <= device_memory_) return true;
  misfits_.push_back({setting, need});
  if (KeepsLeast(setting)) least_memory_ = std::min(least_memory_, static_cast<double>(need.total));
  return false;
}

bool SearchPlans::LeastFits(Setting setting) {
  setting.language = setting.others = job::Recompute::kFull;
  return Fits(setting);
}

bool SearchPlans::some_misfit() const {
  return std::any_of(misfits_.begin(), misfits_.end(),
                     [](const Misfit& misfit) { return KeepsLeast(misfit.setting); });
}

}  // namespace phalanx::schedule
