#include "core/plan/copy_takers.h"

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

namespace phalanx::plan {

RankList CopiesToTake(const Plan& plan, Rank self) {
  // A node has several entries where a spare and a rank have changed places.
  std::vector<const NodeName*> node_of;
  for (const NodeDevices& node : plan.layout.nodes)
    node_of.insert(node_of.end(), node.devices.size(), &node.node);
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

}  // namespace phalanx::plan
