#include "core/plan/preparation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/job/devices.h"
#include "core/plan/loss.h"
#include "core/plan/shares.h"

namespace phalanx::plan {
namespace {

// Of ranks [first, end), of which some may be beyond the plan's.
std::vector<int32_t> WithWork(const Plan& plan, int32_t first, int32_t end) {
  std::vector<int32_t> with_work;
  for (int32_t rank = first; rank < std::min(end, plan.world); ++rank) {
    if (!plan.PlacesOf(Rank{rank}).empty()) with_work.push_back(rank);
  }
  return with_work;
}

// Of those with work on its node.
std::vector<int32_t> TakenOverBy(int32_t rank, const std::vector<int32_t>& with_work) {
  if (with_work.size() < 2) return {};
  if (rank == with_work[0]) return {with_work.begin() + 1, with_work.end()};
  if (rank == with_work[1]) return {with_work[0]};
  return {};
}

}  // namespace

absl::StatusOr<Plan> PlanBehindLoss(const Plan& plan, Rank lost) {
  ASSIGN_OR_RETURN(Plan next, PlanAfter(plan, {.lost = {lost}}));
  ++next.layout.epoch.value;
  return next;
}

absl::Status MayBeLost(const Plan& plan, Rank rank) {
  for (const Place& place : plan.PlacesOf(rank)) {
    const ModulePlan& module = plan.modules[static_cast<size_t>(place.module)];
    const ModuleLayout& layout = plan.layout.modules[static_cast<size_t>(place.module)];
    if (module.TrainsWeights() && layout.state_copies < 2) {
      return absl::FailedPreconditionError(
          absl::StrCat("losing rank ", rank.value, " costs state of module ",
                       plan.spec.modules[static_cast<size_t>(place.module)].name));
    }
  }
  return absl::OkStatus();
}

bool NeedsCopies(const Plan& plan, const RankList& lost) {
  return std::any_of(lost.begin(), lost.end(), [&plan](Rank rank) {
    const std::vector<Place>& places = plan.PlacesOf(rank);
    return std::any_of(places.begin(), places.end(), [&plan](const Place& place) {
      return HasHostHome(plan, place.module) &&
             plan.modules[static_cast<size_t>(place.module)].TrainsWeights();
    });
  });
}

bool HasStandby(const Plan& plan, Rank lost, const Plan& next) {
  if (plan.spec.recovery.standby != job::Standby::kAuto ||
      job::DevicesOf(plan.spec) > kPreparedDevicesMax || !MayBeLost(plan, lost).ok())
    return false;
  // Whoever has no process yet, or another device then, has nothing ready for it.
  if (next.layout.nodes != plan.layout.nodes || !next.PlacesOf(lost).empty()) return false;
  for (Rank rank{0}; rank.value < next.world; ++rank.value) {
    if (!next.PlacesOf(rank).empty() && plan.PlacesOf(rank).empty()) return false;
  }
  return true;
}

std::vector<int32_t> RanksToTakeOver(const Plan& plan, Rank self) {
  int32_t first = 0;
  for (const NodeDevices& node : plan.layout.nodes) {
    const int32_t end = first + static_cast<int32_t>(node.devices.size());
    if (self.value < end) return TakenOverBy(self.value, WithWork(plan, first, end));
    first = end;
  }
  return {};
}

std::vector<std::vector<int32_t>> RanksToTakeOver(const Plan& plan) {
  std::vector<std::vector<int32_t>> ranks(static_cast<size_t>(plan.world));
  int32_t first = 0;
  for (const NodeDevices& node : plan.layout.nodes) {
    const int32_t end = first + static_cast<int32_t>(node.devices.size());
    const std::vector<int32_t> with_work = WithWork(plan, first, end);
    for (const int32_t rank : with_work)
      ranks[static_cast<size_t>(rank)] = TakenOverBy(rank, with_work);
    first = end;
  }
  return ranks;
}

}  // namespace phalanx::plan
