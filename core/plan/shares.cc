#include "core/plan/shares.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "core/plan/derivation.h"

namespace phalanx::plan {

HomeLoads HomeLoadsOf(const Plan& plan, const PartId& part) {
  const ReplicaTable& table = plan.replicas(part.module);
  // Ranks of the stage, replica by replica, and where each replica's begin.
  struct Member {
    HomeLoad* load = nullptr;
    const int64_t* led = nullptr;  // elements of the bucket at hand
    int64_t own = 0, own_here = 0;
  };
  std::vector<Member> members;
  std::vector<size_t> first;
  std::vector<int32_t> widths;
  HomeLoads result;
  std::map<std::pair<int32_t, int32_t>, int64_t> led;  // by width and tp
  for (const int32_t dp : table.order()) {
    const int32_t width = table.Width(dp, part.stage);
    for (int32_t cp = 0; cp < table.cp(); ++cp) {
      first.push_back(members.size());
      widths.push_back(width);
      for (int32_t tp = 0; tp < width; ++tp)
        members.push_back({.load = &result.of[{width, tp}], .led = &led[{width, tp}]});
    }
  }
  const bool mirrored = IsMirrored(plan, part.module);
  std::vector<int64_t> mirrors(mirrored ? static_cast<size_t>(plan.world) : 0, 0);  // by rank
  const auto others = static_cast<int64_t>(widths.size()) - 1;
  GroupsOfLeaders groups(plan, part);
  const std::vector<BucketRulers> rulers = RulersOf(plan, part);
  const std::vector<std::vector<RulerShare>> shares = CutShares(plan, part);
  for (size_t b = 0; b < shares.size(); ++b) {
    for (const RulerShare& share : shares[b]) {
      const auto replica = static_cast<size_t>(share.replica);
      const int64_t unit = share.elements.first / rulers[b].Find(share.family)->unit_elements;
      const int32_t tp = LeaderOf(plan, part.module, widths[replica], share.family, unit);
      members[first[replica] + static_cast<size_t>(tp)].own_here += share.elements.count;
      if (!mirrored) continue;
      const RankList& homes = groups.HomesAt(share.family, unit)[replica];
      for (size_t i = 1; i < homes.size(); ++i)
        mirrors[static_cast<size_t>(homes[i].value)] += share.elements.count;
    }
    for (auto& [rank, elements] : led) {
      const Place place{.module = part.module, .tp = rank.second, .width = rank.first};
      elements = 0;
      for (const FamilyRuler& ruler : rulers[b].rulers)
        elements += LedUnits(plan, place, ruler.family).count * ruler.unit_elements;
    }
    for (Member& member : members) {
      const int64_t here = std::exchange(member.own_here, 0);
      HomeLoad& load = *member.load;
      load.own = std::max(load.own, member.own += here);
      load.given = std::max(load.given, *member.led - here);
      load.taken = std::max(load.taken, here * others);
    }
  }
  for (Rank rank{0}; rank.value < std::ssize(mirrors); ++rank.value) {
    const int64_t elements = mirrors[static_cast<size_t>(rank.value)];
    if (elements > 0) result.mirrored[rank] = elements;
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

bool EveryReplicaIsHome(const Plan& plan, int32_t module) {
  const ReplicaTable& replicas = plan.replicas(module);
  const int32_t count = replicas.present_replicas() * replicas.cp();
  return plan.layout.derivation >= kDerivationOfUpdatesEverywhere && count > 1 &&
         IsMirrored(plan, module) &&
         plan.layout.modules[static_cast<size_t>(module)].state_copies >= count;
}

bool SumsAreForAll(const Plan& plan, int32_t module, int32_t stage) {
  return EveryReplicaIsHome(plan, module) && plan.replicas(module).EqualWidths(stage);
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
