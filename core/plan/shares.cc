#include "core/plan/shares.h"

#include <algorithm>
#include <map>
#include <utility>

namespace phalanx::plan {

HomeLoads HomeLoadsOf(const Plan& plan, const PartId& part) {
  const ReplicaTable& table = plan.replicas(part.module);
  HomeLoads result;
  std::map<std::pair<int32_t, int32_t>, HomeLoad>& loads = result.of;
  std::vector<int32_t> widths;  // of each replica
  for (const int32_t dp : table.order()) {
    const int32_t width = table.Width(dp, part.stage);
    for (int32_t tp = 0; tp < width; ++tp) loads[{width, tp}];
    widths.insert(widths.end(), static_cast<size_t>(table.cp()), width);
  }
  GroupsOfLeaders groups(plan, part);
  const std::vector<BucketRulers> rulers = RulersOf(plan, part);
  const std::vector<std::vector<RulerShare>> shares = CutShares(plan, part);
  using OfRank = std::map<std::pair<int32_t, int32_t>, int64_t>;  // by replica, or width; and tp
  OfRank own;
  for (size_t b = 0; b < shares.size(); ++b) {
    OfRank own_here, led;
    for (const RulerShare& share : shares[b]) {
      const int64_t unit = share.elements.first / rulers[b].Find(share.family)->unit_elements;
      const int32_t width = widths[static_cast<size_t>(share.replica)];
      own_here[{share.replica, LeaderOf(plan, part.module, width, share.family, unit)}] +=
          share.elements.count;
      if (!IsMirrored(plan, part.module)) continue;
      const RankList& homes =
          groups.HomesAt(share.family, unit)[static_cast<size_t>(share.replica)];
      for (size_t i = 1; i < homes.size(); ++i) result.mirrored[homes[i]] += share.elements.count;
    }
    for (auto& [rank, load] : loads) {
      const Place place{.module = part.module, .tp = rank.second, .width = rank.first};
      for (const FamilyRuler& ruler : rulers[b].rulers) {
        led[rank] += LedUnits(plan, place, ruler.family).count * ruler.unit_elements;
      }
    }
    for (size_t replica = 0; replica < widths.size(); ++replica) {
      for (int32_t tp = 0; tp < widths[replica]; ++tp) {
        const std::pair<int32_t, int32_t> rank{static_cast<int32_t>(replica), tp};
        const int64_t here = own_here[rank];
        HomeLoad& load = loads[{widths[replica], tp}];
        load.own = std::max(load.own, own[rank] += here);
        load.given = std::max(load.given, led[{widths[replica], tp}] - here);
        load.taken = std::max(load.taken, here * (static_cast<int64_t>(widths.size()) - 1));
      }
    }
  }
  return result;
}

GroupsOfLeaders::GroupsOfLeaders(const Plan& plan, const PartId& part) : plan_(plan), part_(part) {
  const ReplicaTable& table = plan.replicas(part.module);
  for (const int32_t dp : table.order()) {
    const int32_t width = table.Width(dp, part.stage);
    leaders_[width] = 0;
    for (int32_t cp = 0; cp < table.cp(); ++cp) replicas_.push_back({dp, cp, width});
  }
}

const std::vector<RankList>& GroupsOfLeaders::HomesAt(const UnitFamily& family, int64_t unit) {
  for (auto& [width, tp] : leaders_) tp = LeaderOf(plan_, part_.module, width, family, unit);
  const auto [entry, is_new] = homes_.try_emplace(leaders_);
  if (is_new) {
    const ReplicaTable& table = plan_.replicas(part_.module);
    RankList group;
    for (const Replica& replica : replicas_) {
      group.push_back(table.At(replica.dp, part_.stage, replica.cp, leaders_.at(replica.width)));
    }
    entry->second = HomesOf(plan_, part_.module, group);
  }
  return entry->second;
}

std::vector<RankList> HomesOf(const Plan& plan, int32_t module, const RankList& group) {
  const HomePositions positions = HomePositionsOf(plan, module, group);
  std::vector<RankList> homes(group.size());
  for (size_t replica = 0; replica < homes.size(); ++replica) {
    homes[replica].reserve(positions.copies);
    for (const int32_t home : positions.Of(replica))
      homes[replica].push_back(group[static_cast<size_t>(home)]);
  }
  return homes;
}

bool IsMirrored(const Plan& plan, int32_t module) {
  const ModuleLayout& layout = plan.layout.modules[static_cast<size_t>(module)];
  return layout.state_home == job::StateHome::kMirror && layout.state_copies > 1;
}

bool AllIsMirrored(const Plan& plan) {
  return std::all_of(plan.modules.begin(), plan.modules.end(), [&plan](const ModulePlan& module) {
    return !module.TrainsWeights() || IsMirrored(plan, module.index);
  });
}

bool HasHostHome(const Plan& plan, int32_t module) {
  const ModuleLayout& layout = plan.layout.modules[static_cast<size_t>(module)];
  return layout.state_home == job::StateHome::kHost && layout.state_copies > 1;
}

bool CopiesToHost(const Plan& plan) {
  return std::any_of(plan.modules.begin(), plan.modules.end(), [&](const ModulePlan& module) {
    return HasHostHome(plan, module.index) && module.TrainsWeights();
  });
}

}  // namespace phalanx::plan
