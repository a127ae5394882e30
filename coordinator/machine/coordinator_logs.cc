// Who has logs of a job: nodes of its layout, those whose ranks it goes on without, and those that
// had ranks of an epoch before.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/coordinator.h"

namespace phalanx::coordinator {
namespace {

struct LogNode {
  NodeName name;
  std::vector<int32_t> ranks;  // whose logs are asked for there; empty: of all
  bool writes = false;         // ranks write there now
};

bool IsLost(const plan::RankList& lost, int32_t rank) {
  return std::find(lost.begin(), lost.end(), Rank{rank}) != lost.end();
}

// One that has several entries is asked once.
void Add(LogNode node, std::vector<LogNode>& nodes) {
  const auto known = std::find_if(nodes.begin(), nodes.end(), [&node](const LogNode& other) {
    return other.name == node.name;
  });
  if (known == nodes.end()) return nodes.push_back(std::move(node));
  known->writes |= node.writes;
  for (const int32_t rank : node.ranks) {
    if (std::find(known->ranks.begin(), known->ranks.end(), rank) == known->ranks.end())
      known->ranks.push_back(rank);
  }
}

std::vector<LogNode> NodesOfLogs(const LogsRequested& event, const LiveJob* job) {
  const Placement& placement = job != nullptr ? *job->state.placement : event.placement;
  const bool runs = job != nullptr && job->run.has_value() && !job->state.IsTerminal();
  const plan::RankList lost = runs ? job->state.layout->lost : plan::RankList();
  std::vector<LogNode> nodes;
  int32_t first = 0;
  for (const NodeDevices& entry : placement) {
    const int32_t end = first + static_cast<int32_t>(entry.devices.size());
    LogNode node{.name = entry.node};
    bool has_lost = false;
    for (int32_t rank = first; rank < end; ++rank) {
      const bool wanted = event.ranks.empty() || std::find(event.ranks.begin(), event.ranks.end(),
                                                           rank) != event.ranks.end();
      if (wanted && !event.ranks.empty()) node.ranks.push_back(rank);
      node.writes |= wanted && runs && !IsLost(lost, rank);
      has_lost |= IsLost(lost, rank);
    }
    first = end;
    // A spare may have the number of a rank that was lost there.
    if (has_lost) node.ranks = event.ranks;
    if (event.ranks.empty() || !node.ranks.empty()) Add(std::move(node), nodes);
  }
  const std::vector<NodeName>& earlier =
      job != nullptr ? *job->state.earlier_nodes : event.earlier_nodes;
  for (const NodeName& name : earlier) Add({.name = name, .ranks = event.ranks}, nodes);
  return nodes;
}

}  // namespace

void Coordinator::On(const LogsRequested& event) {
  const Job* job = FindJob(event.job);
  const bool ended = job == nullptr || job->state.IsTerminal();
  const bool follow = event.follow && !ended;
  std::vector<LogSource> sources;
  std::vector<std::pair<Node*, FetchLogs>> fetches;
  for (LogNode& each : NodesOfLogs(event, job)) {
    const auto node = nodes_.find(each.name);
    if (node == nodes_.end() || !node->second.connected()) {
      // A follower asks again, and would miss these ranks for as long as the others write.
      if (follow && each.writes) {
        actions_.push_back(AnswerLogs{event.token, absl::UnavailableError(absl::StrCat(
                                                       "node ", each.name, " is not connected"))});
        return;
      }
      sources.push_back({.node = each.name});
      continue;
    }
    FetchLogs fetch{.fetch_id = absl::StrCat(event.token.value, ".", ++fetch_count_),
                    .job = event.job,
                    .ranks = std::move(each.ranks),
                    .follow = follow,
                    .ended = ended,
                    .tail = event.tail};
    if (const auto after = event.after.find(each.name); after != event.after.end())
      fetch.after = after->second;
    sources.push_back({each.name, fetch.fetch_id});
    fetches.emplace_back(&node->second, std::move(fetch));
  }
  // Answered first: the caller must know a fetch before its worker can answer it.
  actions_.push_back(AnswerLogs{event.token, std::move(sources)});
  for (auto& [node, fetch] : fetches) SendTo(*node, std::move(fetch));
}

}  // namespace phalanx::coordinator
