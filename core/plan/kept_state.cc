#include "core/plan/kept_state.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/plan/parameters.h"
#include "core/plan/state_table.h"

namespace phalanx::plan {
namespace {

// With work in `before`, and without any in `after`, or on another device.
std::set<Rank> RanksThatGo(const Plan& before, const Plan& after) {
  const bool devices_stay = before.layout.nodes == after.layout.nodes;
  std::set<Rank> go;
  for (Rank rank{0}; rank.value < before.world; ++rank.value) {
    if (before.PlacesOf(rank).empty()) continue;
    const bool stays = !after.PlacesOf(rank).empty() &&
                       (devices_stay || before.DeviceOf(rank) == after.DeviceOf(rank));
    if (!stays) go.insert(rank);
  }
  return go;
}

bool HasFrozenWeights(const Plan& plan, int32_t module, Rank rank, int32_t chunk) {
  const std::optional<Place> place = plan.PlaceOf(rank, module);
  if (!place.has_value()) return false;
  const StageParameters parameters = ParametersOf(plan, *place, chunk);
  return parameters.elements > parameters.trained_extent;
}

class Keeping {
 public:
  // `after`: nullptr, of ranks that are gone.
  Keeping(const Plan& before, const Plan* after, bool mirrored, std::set<Rank> go)
      : before_(before), after_(after), mirrored_(mirrored), go_(std::move(go)) {}

  absl::Status Check() const {
    for (const ModulePlan& module : before_.modules) {
      if (go_.empty()) break;
      if (!job::TraitsOf(before_.module_spec(module.index).architecture).known()) continue;
      for (const auto& [stage, rank] : StagesWithout(module)) {
        for (int32_t chunk = 0; chunk < module.chunks(); ++chunk) {
          const PartId part{module.index, stage, chunk};
          const std::set<Rank> alone = module.TrainsOf(stage, chunk).weights
                                           ? OnlyHomesOf(StateTableOf(before_, part))
                                           : std::set<Rank>();
          if (!alone.empty()) return Lost(module, alone);
          if (!HasFrozenWeights(before_, module.index, rank, chunk)) continue;
          if (!SomeReplicaStays(module, stage)) return Lost(module, {rank});
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  // Of the module, in which some rank does not stay: the first such one.
  std::map<int32_t, Rank> StagesWithout(const ModulePlan& module) const {
    std::map<int32_t, Rank> stages;
    for (const Rank rank : go_) {
      const auto position = module.replicas.PositionOf(rank);
      if (position.has_value()) stages.emplace(position->pp, rank);
    }
    return stages;
  }

  bool Goes(Rank rank) const { return go_.contains(rank); }

  // Of some elements that no home is left of; empty: there are none.
  std::set<Rank> OnlyHomesOf(const StateTable& table) const {
    for (const RankList& homes : table.homes) {
      const auto end = mirrored_ ? homes.end() : homes.begin() + std::min<size_t>(1, homes.size());
      if (end == homes.begin()) continue;
      if (std::all_of(homes.begin(), end, [this](Rank rank) { return Goes(rank); }))
        return {homes.begin(), end};
    }
    return {};
  }

  bool SomeReplicaStays(const ModulePlan& module, int32_t stage) const {
    const ReplicaTable& replicas = module.replicas;
    return std::any_of(replicas.order().begin(), replicas.order().end(), [&](int32_t dp) {
      for (int32_t cp = 0; cp < replicas.cp(); ++cp) {
        const RankList ranks = replicas.Ranks(dp, stage, cp);
        if (std::any_of(ranks.begin(), ranks.end(), [this](Rank rank) { return Goes(rank); }))
          return false;
      }
      return true;
    });
  }

  absl::Status Lost(const ModulePlan& module, const std::set<Rank>& alone) const {
    if (after_ == nullptr) {
      return absl::DataLossError(absl::StrCat("what is lost has state of module ",
                                              before_.module_spec(module.index).name,
                                              " that nobody else has"));
    }
    const bool one = alone.size() == 1;
    const bool idles = std::all_of(alone.begin(), alone.end(),
                                   [this](Rank rank) { return after_->PlacesOf(rank).empty(); });
    return absl::DataLossError(absl::StrCat(
        one ? "rank " : "ranks ",
        absl::StrJoin(alone, ", ",
                      [](std::string* out, Rank rank) { absl::StrAppend(out, rank.value); }),
        one ? " alone has" : " alone have", " some of the state of module ",
        before_.module_spec(module.index).name,
        idles ? ", and would have no work" : ", and would not go on with it"));
  }

  const Plan& before_;
  const Plan* const after_;
  const bool mirrored_;
  const std::set<Rank> go_;
};

}  // namespace

absl::Status CheckStateIsKept(const Plan& before, const Plan& after, bool mirrored) {
  return Keeping(before, &after, mirrored, RanksThatGo(before, after)).Check();
}

absl::Status CheckStateBeside(const Plan& plan, const RankList& gone) {
  return Keeping(plan, nullptr, /*mirrored=*/true, {gone.begin(), gone.end()}).Check();
}

}  // namespace phalanx::plan
