// Who has logs of a job: nodes of its layout, those whose ranks it goes on without, and those that
// had ranks of an epoch before.
#include <algorithm>
#include <map>
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

using Ranks = std::vector<int32_t>;  // ascending, each once

Ranks InOrder(Ranks ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

// Those of `first` to `end`, but not `end` itself.
Ranks Within(const Ranks& ranks, int32_t first, int32_t end) {
  return {std::lower_bound(ranks.begin(), ranks.end(), first),
          std::lower_bound(ranks.begin(), ranks.end(), end)};
}

// Of the job's layout; none unless it runs.
Ranks LostRanks(const LiveJob& job) {
  Ranks lost;
  for (const Rank rank : job.state.layout->lost) lost.push_back(rank.value);
  return InOrder(std::move(lost));
}

// In the order in which they are added.
class LogNodes {
 public:
  // One that has several entries is asked once.
  void Add(LogNode node) {
    const auto [known, is_new] = places_.try_emplace(node.name, nodes_.size());
    if (is_new) return nodes_.push_back(std::move(node));
    LogNode& other = nodes_[known->second];
    other.writes |= node.writes;
    other.ranks.insert(other.ranks.end(), node.ranks.begin(), node.ranks.end());
    other.ranks = InOrder(std::move(other.ranks));
  }
  std::vector<LogNode> Take() && { return std::move(nodes_); }

 private:
  std::vector<LogNode> nodes_;
  std::map<NodeName, size_t> places_;
};

std::vector<LogNode> NodesOfLogs(const LogsRequested& event, const LiveJob* job) {
  const Placement& placement = job != nullptr ? *job->state.placement : event.placement;
  const bool runs = job != nullptr && job->run.has_value() && !job->state.IsTerminal();
  const Ranks wanted = InOrder(event.ranks), lost = runs ? LostRanks(*job) : Ranks();
  LogNodes nodes;
  int32_t first = 0;
  for (const NodeDevices& entry : placement) {
    const int32_t end = first + static_cast<int32_t>(entry.devices.size());
    const Ranks lost_here = Within(lost, first, end);
    LogNode node{.name = entry.node, .ranks = Within(wanted, first, end)};
    const Ranks& writers = node.ranks;
    node.writes = runs && (wanted.empty() ? lost_here.size() < entry.devices.size()
                                          : !std::includes(lost_here.begin(), lost_here.end(),
                                                           writers.begin(), writers.end()));
    first = end;
    // A spare may have the number of a rank that was lost there.
    if (!lost_here.empty()) node.ranks = wanted;
    if (wanted.empty() || !node.ranks.empty()) nodes.Add(std::move(node));
  }
  const std::vector<NodeName>& earlier =
      job != nullptr ? *job->state.earlier_nodes : event.earlier_nodes;
  for (const NodeName& name : earlier) nodes.Add({.name = name, .ranks = wanted});
  return std::move(nodes).Take();
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
