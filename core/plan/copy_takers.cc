#include "core/plan/copy_takers.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace phalanx::plan {
namespace {

// Of each place. A node has several entries where a spare and a rank have changed places.
std::vector<const NodeName*> NodesOfPlaces(const Placement& nodes) {
  std::vector<const NodeName*> node_of;
  for (const NodeDevices& node : nodes)
    node_of.insert(node_of.end(), node.devices.size(), &node.node);
  return node_of;
}

// Ascending.
RankList RanksWithWork(const Plan& plan, size_t places) {
  RankList ranks;
  for (size_t place = 0; place < places; ++place) {
    const Rank rank{static_cast<int32_t>(place)};
    if (!plan.PlacesOf(rank).empty()) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace

RankList CopiesToTake(const Plan& plan, Rank self) {
  const std::vector<const NodeName*> node_of = NodesOfPlaces(plan.layout.nodes);
  RankList ranks = {self};
  const auto place = static_cast<size_t>(self.value);
  if (place >= node_of.size()) return ranks;
  std::set<Rank> works;  // on the same node
  for (size_t other = 0; other < node_of.size(); ++other) {
    const Rank rank{static_cast<int32_t>(other)};
    if (*node_of[other] == *node_of[place] && !plan.PlacesOf(rank).empty()) works.insert(rank);
  }
  if (works.empty() || *works.begin() != self) return ranks;
  for (size_t other = 0; other < node_of.size(); ++other) {
    const Rank rank{static_cast<int32_t>(other)};
    if (!works.contains(rank)) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<InheritedCopies> CopiesToInherit(const Plan& before, const Plan& next,
                                             const RankList& keepers) {
  const std::vector<const NodeName*> now = NodesOfPlaces(next.layout.nodes);
  const std::vector<const NodeName*> then = NodesOfPlaces(before.layout.nodes);
  const RankList workers = RanksWithWork(next, now.size());
  std::vector<InheritedCopies> inherited;
  if (workers.empty()) return inherited;
  std::map<NodeName, Rank> keeper_on;
  for (const Rank keeper : keepers) {
    if (keeper.value >= 0 && static_cast<size_t>(keeper.value) < now.size())
      keeper_on.emplace(*now[static_cast<size_t>(keeper.value)], keeper);
  }
  for (const Rank rank : workers) keeper_on.erase(*now[static_cast<size_t>(rank.value)]);
  // Each copy needs room on its taker's node, and several are taken at one time.
  std::map<NodeName, RankList> on_node;
  for (const Rank rank : workers) on_node[*now[static_cast<size_t>(rank.value)]].push_back(rank);
  std::vector<RankList> by_node;
  for (const auto& [node, ranks] : on_node) by_node.push_back(ranks);
  size_t turn = 0;
  const auto next_in_turn = [&by_node, &turn] {
    const RankList& ranks = by_node[turn % by_node.size()];
    return ranks[turn++ / by_node.size() % ranks.size()];
  };
  for (const Rank rank : RanksWithWork(before, then.size())) {
    const auto keeper = keeper_on.find(*then[static_cast<size_t>(rank.value)]);
    if (keeper == keeper_on.end()) continue;
    const bool works = std::binary_search(workers.begin(), workers.end(), rank);
    inherited.push_back(
        {.of = rank, .keeper = keeper->second, .taker = works ? rank : next_in_turn()});
  }
  return inherited;
}

}  // namespace phalanx::plan
