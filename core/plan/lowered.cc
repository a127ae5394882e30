#include "core/plan/lowered.h"

#include <algorithm>
#include <cstdlib>
#include <tuple>
#include <utility>

#include "core/plan/check.h"
#include "core/plan/cost.h"

namespace phalanx::plan {
namespace {

// Ranks that can be a tensor group, and where most of them were.
struct TensorGroup {
  int32_t dp = 0;
  RankList ranks;
};
// By the stage where they were.
using GroupsOfStages = std::vector<std::vector<TensorGroup>>;

GroupsOfStages GroupsLeft(const ReplicaTable& healthy, int32_t width, const std::set<Rank>& gone) {
  GroupsOfStages groups(static_cast<size_t>(healthy.stages()));
  TensorGroup rest;  // of ranks that were in several
  for (int32_t pp = 0; pp < healthy.stages(); ++pp) {
    std::vector<TensorGroup>& of_stage = groups[static_cast<size_t>(pp)];
    for (int32_t dp = 0; dp < healthy.replicas(); ++dp) {
      for (int32_t cp = 0; cp < healthy.cp(); ++cp) {
        RankList left = healthy.Ranks(dp, pp, cp);
        std::erase_if(left, [&gone](Rank rank) { return gone.contains(rank); });
        auto next = left.begin();
        for (; left.end() - next >= width; next += width)
          of_stage.push_back({.dp = dp, .ranks = {next, next + width}});
        for (; next != left.end(); ++next) {
          rest.ranks.push_back(*next);
          if (static_cast<int32_t>(rest.ranks.size()) < width) continue;
          rest.dp = dp;
          of_stage.push_back(std::exchange(rest, {}));
        }
      }
    }
  }
  return groups;
}

// Stages of `from`, the nearest first to where `stage` of `to` stages begins and ends.
std::vector<int32_t> NearestStages(int32_t stage, int32_t to, int32_t from) {
  std::vector<std::pair<int64_t, int32_t>> by_way;
  for (int32_t old = 0; old < from; ++old) {
    const int64_t way = std::abs((2 * int64_t{stage} + 1) * from - (2 * int64_t{old} + 1) * to);
    by_way.emplace_back(way, old);
  }
  std::sort(by_way.begin(), by_way.end());
  std::vector<int32_t> stages;
  for (const auto& [way, old] : by_way) stages.push_back(old);
  return stages;
}

RankList Seat(GroupsOfStages groups, const Degrees& degrees) {
  const auto stages = static_cast<int32_t>(groups.size());
  RankList ranks;
  std::vector<size_t> taken(groups.size(), 0);
  for (int32_t pp = 0; pp < degrees.pp; ++pp) {
    const std::vector<int32_t> nearest = NearestStages(pp, degrees.pp, stages);
    for (int32_t lane = 0; lane < degrees.dp * degrees.cp; ++lane) {
      const auto from = std::find_if(nearest.begin(), nearest.end(), [&](int32_t old) {
        return taken[static_cast<size_t>(old)] < groups[static_cast<size_t>(old)].size();
      });
      PHALANX_CHECK(from != nearest.end(), "enough ranks are left");
      const auto old = static_cast<size_t>(*from);
      const RankList& group = groups[old][taken[old]++].ranks;
      ranks.insert(ranks.end(), group.begin(), group.end());
    }
  }
  return ranks;
}

std::vector<int32_t> LayersOn(const Plan& plan, int32_t module, int32_t pp) {
  PartOrder order = plan.modules[static_cast<size_t>(module)].order;
  if (order.pp == pp) return plan.layout.modules[static_cast<size_t>(module)].layers;
  order.pp = pp;
  const std::vector<int32_t> by_flow = BalanceLayers(plan.spec, module, order.count());
  std::vector<int32_t> layers(by_flow.size());
  for (int32_t flow = 0; flow < order.count(); ++flow) {
    layers[order.IndexOf(order.StageAt(flow), order.ChunkAt(flow))] =
        by_flow[static_cast<size_t>(flow)];
  }
  return layers;
}

}  // namespace

std::vector<Degrees> LowerDegrees(const Degrees& healthy, int64_t ranks) {
  std::vector<Degrees> all;
  for (int32_t tp = healthy.tp; tp >= 1; --tp) {
    for (int32_t pp = healthy.pp; pp >= 1; --pp) {
      const int64_t replicas =
          std::min<int64_t>(healthy.dp, ranks / (int64_t{tp} * healthy.cp * pp));
      const Degrees degrees{
          .tp = tp, .cp = healthy.cp, .dp = static_cast<int32_t>(replicas), .pp = pp};
      if (replicas > 0 && degrees != healthy) all.push_back(degrees);
    }
  }
  return all;
}

LoweredGrid LowerOnto(const Plan& plan, int32_t module, const Degrees& degrees,
                      const std::set<Rank>& gone) {
  const ModulePlan& of = plan.modules[static_cast<size_t>(module)];
  const ReplicaTable healthy = *ReplicaTable::Create(of.grid, {});
  return {.tp = degrees.tp,
          .dp = degrees.dp,
          .pp = degrees.pp,
          .layers = LayersOn(plan, module, degrees.pp),
          .ranks = Seat(GroupsLeft(healthy, degrees.tp, gone), degrees)};
}

bool HasRestarts(const Layout& layout) {
  return std::any_of(layout.modules.begin(), layout.modules.end(),
                     [](const ModuleLayout& module) { return module.lowered.has_value(); });
}

absl::StatusOr<Plan> WithoutRestarts(const Plan& running) {
  Layout layout = running.layout;
  for (ModuleLayout& module : layout.modules) {
    if (!module.lowered.has_value()) continue;
    module.lowered.reset();
    module.speeds.clear();
    module.order.clear();
  }
  layout.lost.clear();  // ranks of these modules may have work
  layout.idle.clear();
  return Expand(running.spec, std::move(layout));
}

}  // namespace phalanx::plan
