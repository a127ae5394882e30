#include "core/schedule/search_plans.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "core/plan/draft.h"
#include "core/plan/memory_estimate.h"
#include "core/schedule/losses.h"
#include "core/schedule/search_setting.h"

namespace phalanx::schedule {

namespace {

bool KeepsLeast(const Setting& setting) {
  return setting.language == job::Recompute::kFull && setting.others == job::Recompute::kFull;
}

bool HasMirrors(const plan::Plan& plan) {
  return std::any_of(
      plan.layout.modules.begin(), plan.layout.modules.end(), [](const plan::ModuleLayout& module) {
        return module.state_home == job::StateHome::kMirror && module.state_copies > 1;
      });
}

}  // namespace

void SearchPlans::Begin(const job::JobSpec& laid) {
  Forget();
  laid_ = &laid;
  unsound_ = absl::OkStatus();
  least_memory_ = std::numeric_limits<double>::infinity();
}

bool SearchPlans::MoveHomes() {
  if (misfits_.empty() || !has_mirrors_ || !LeavesHomesOpen(*laid_)) return false;
  moved_ = true;
  drafts_.clear();
  misfits_.clear();
  return true;
}

void SearchPlans::Forget() {
  laid_ = nullptr;
  has_mirrors_ = moved_ = false;
  drafts_.clear();
  states_.clear();
  activations_.clear();
  misfits_.clear();
  with_mirrors_.clear();
}

SearchPlans::Drafted* SearchPlans::DraftOf(const Setting& setting) {
  auto known = std::find_if(drafts_.begin(), drafts_.end(), [&setting](const Drafted& draft) {
    return draft.schedule == setting.schedule;
  });
  if (known == drafts_.end()) {
    job::JobSpec spec = WithSetting(*laid_, setting);
    if (moved_) {
      spec.recovery.state_home = job::StateHome::kHost;
      spec.recovery.state_copies = std::min(spec.recovery.state_copies, 2);
    }
    absl::StatusOr<plan::Plan> made = plan::DraftPlan(spec, cluster_);
    unsound_.Update(made.status());
    if (!made.ok()) return nullptr;
    made->spec.recovery = laid_->recovery;  // the document is the same
    has_mirrors_ |= HasMirrors(*made);
    known = drafts_.insert(drafts_.end(), {.schedule = setting.schedule, .plan = *std::move(made)});
  }
  plan::Plan& plan = known->plan;
  if (known->dealt != setting.micro) {
    known->dealt = 0;
    known->beside.clear();
    plan.spec.batch.micro = setting.micro;
    if (!plan::DealBatch(&plan).ok()) return nullptr;
    known->dealt = setting.micro;
  }
  for (size_t i = 0; i < laid_->modules.size(); ++i)
    plan.spec.modules[i].recompute = RecomputeOf(*laid_, static_cast<int32_t>(i), setting);
  return &*known;
}

const plan::Plan* SearchPlans::Under(const Setting& setting) {
  const Drafted* drafted = DraftOf(setting);
  return drafted == nullptr ? nullptr : &drafted->plan;
}

const std::vector<int64_t>& SearchPlans::StateOf(const plan::Plan& plan) {
  Division division{.vee = plan.layout.schedule.name == job::ScheduleName::kZeroBubbleV};
  for (const plan::ModuleLayout& module : plan.layout.modules) {
    division.layers.push_back(module.layers);
    division.homes.emplace_back(module.state_home, module.state_copies);
  }
  const auto [entry, is_new] = states_.try_emplace(std::move(division));
  if (is_new) {
    for (const plan::MemoryEstimate& estimate : plan::EstimateState(plan, sizes_))
      entry->second.push_back(estimate.total());
  }
  return entry->second;
}

SearchPlans::Need SearchPlans::NeedOf(const std::vector<int64_t>& state,
                                      const Activations& activations,
                                      const std::vector<int64_t>& beside) const {
  Need most;
  for (size_t rank = 0; rank < state.size(); ++rank) {
    int64_t kept = 0;
    for (const std::vector<int64_t>* of_module : activations) kept += (*of_module)[rank];
    const int64_t taken = beside.empty() ? beside_.least : beside[rank];
    const int64_t total = state[rank] + kept + taken;
    if (total > most.total) most = {total, kept, taken};
  }
  return most;
}

SearchPlans::Need SearchPlans::NeedOf(Drafted& drafted) {
  if (drafted.state == nullptr) drafted.state = &StateOf(drafted.plan);
  Activations activations;
  for (int32_t module = 0; module < static_cast<int32_t>(drafted.plan.modules.size()); ++module) {
    const job::Schedule& schedule = drafted.schedule;
    const auto [entry, is_new] = activations_.try_emplace(
        {schedule.name, schedule.chunks, schedule.encoder_chunks, drafted.dealt, module,
         drafted.plan.module_spec(module).recompute});
    if (is_new) entry->second = plan::EstimateActivations(drafted.plan, module);
    activations.push_back(&entry->second);
  }
  return NeedOf(*drafted.state, activations, drafted.beside);
}

SearchPlans::Need SearchPlans::NeedOf(const plan::Plan& plan, const std::vector<int64_t>& beside) {
  std::vector<std::vector<int64_t>> of_modules;
  for (int32_t module = 0; module < static_cast<int32_t>(plan.modules.size()); ++module)
    of_modules.push_back(plan::EstimateActivations(plan, module));
  Activations activations;
  for (const std::vector<int64_t>& of_module : of_modules) activations.push_back(&of_module);
  return NeedOf(StateOf(plan), activations, beside);
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
    // Of other microbatches a rank may have other peers.
    const int64_t least = other.need.total - other.need.beside + beside_.least;
    if (other.setting.micro < setting.micro)
      return least > device_memory_ && KeepsAsManyAsOfSmaller(setting);
    const double rest = static_cast<double>(least - other.need.activations);
    const double kept = static_cast<double>(other.need.activations) *
                        static_cast<double>(setting.micro) /
                        static_cast<double>(other.setting.micro);
    const double sure = kept / (setting.schedule.chunks > 1 ? 4 : 2);
    return rest + sure > static_cast<double>(device_memory_);
  });
}

bool SearchPlans::KeepsMirrors(const Setting& setting) const {
  return moved_ &&
         std::find(with_mirrors_.begin(), with_mirrors_.end(), setting) != with_mirrors_.end();
}

bool SearchPlans::Fits(const Setting& setting) {
  if (IsTooLarge(setting)) return false;
  Drafted* drafted = DraftOf(setting);
  if (drafted == nullptr) return false;
  if (device_memory_ == 0) return true;
  const Need need = NeedOf(*drafted);
  if (need.total > device_memory_) {
    NoteMisfit(setting, need);
    return false;
  }
  // To count communicators takes a good part of the time of a glance.
  if (need.total + beside_.least > device_memory_ && !FitsWithAll(setting)) return false;
  if (!moved_) with_mirrors_.push_back(setting);
  return true;
}

bool SearchPlans::FitsWithAll(const Setting& setting) {
  Drafted* drafted = DraftOf(setting);
  if (drafted == nullptr) return false;
  if (device_memory_ == 0) return true;
  if (drafted->beside.empty()) drafted->beside = BesideOfRanks(drafted->plan, beside_, sizes_);
  const Need need = NeedOf(*drafted);
  if (need.total <= device_memory_) return true;
  NoteMisfit(setting, need);
  return false;
}

void SearchPlans::NoteMisfit(const Setting& setting, const Need& need) {
  misfits_.push_back({setting, need});
  if (!moved_) std::erase(with_mirrors_, setting);
  if (KeepsLeast(setting)) least_memory_ = std::min(least_memory_, static_cast<double>(need.total));
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
