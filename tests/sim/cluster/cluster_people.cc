// What users and operators do beside submitting and cancelling.
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/cluster/cluster.h"

namespace phalanx::sim {

// At most every third node, and one at least of clusters that have two.
void Cluster::KeepReserve() {
  timeline_.After(absl::Seconds(10 + static_cast<int64_t>(operators_.Below(60))),
                  [this] { KeepReserve(); });
  if (!coordinator_.up()) return;
  std::vector<NodeName> in_reserve, others;
  for (const auto& [name, node] : coordinator_.machine().nodes())
    (node.reserve.has_value() ? in_reserve : others).push_back(name);
  const auto some = [this](const std::vector<NodeName>& names) {
    return names[operators_.Below(names.size())];
  };
  const size_t most = (nodes_.size() + 1) / 3;
  if (settling_) {
    for (const NodeName& name : in_reserve) coordinator_.Reserve(name, false);
  } else if (in_reserve.size() < most && !others.empty()) {
    coordinator_.Reserve(some(others), true);
  } else if (!in_reserve.empty() && operators_.Below(4) == 0) {
    coordinator_.Reserve(some(in_reserve), false);
  }
}

void Cluster::Manage() {
  timeline_.After(absl::Seconds(2 + static_cast<int64_t>(people_.Below(20))), [this] { Manage(); });
  if (!coordinator_.up()) return;
  if (settling_) return UndoManaging();
  switch (people_.Below(4)) {
    case 0:
    case 1:
      return SuspendSome();
    case 2:
      return MarkSome();
    default:
      return DeleteSome();
  }
}

// Everybody may go on.
void Cluster::UndoManaging() {
  std::vector<JobId> suspended;
  std::vector<NodeName> marked;
  for (const auto& [id, job] : coordinator_.machine().jobs()) {
    if (job.state.suspended && !job.state.IsTerminal()) suspended.push_back(id);
  }
  for (const auto& [name, node] : coordinator_.machine().nodes()) {
    if (node.mark.has_value()) marked.push_back(name);
  }
  for (const JobId id : suspended) coordinator_.Suspend(id, false);
  for (const NodeName& name : marked) coordinator_.Mark(name, std::nullopt);
}

// One that trains refuses it, for it would lose what it has trained. Who is suspended is so for one
// of these times and a half, on average.
void Cluster::SuspendSome() {
  std::vector<JobId> jobs;
  for (const auto& [id, job] : coordinator_.machine().jobs()) {
    const bool trains = job.state.phase == job::JobPhase::kRunning;
    if (!job.state.IsTerminal() && (!trains || people_.Below(8) == 0)) jobs.push_back(id);
  }
  if (jobs.empty()) return;
  const JobId id = jobs[people_.Below(jobs.size())];
  const bool is = coordinator_.machine().jobs().at(id).state.suspended;
  coordinator_.Suspend(id, is ? people_.Below(3) == 0 : people_.Below(2) == 0);
}

// Mostly they are put into service again before another one is taken out of it.
void Cluster::MarkSome() {
  std::vector<NodeName> marked, all;
  for (const auto& [name, node] : coordinator_.machine().nodes()) {
    all.push_back(name);
    if (node.mark.has_value()) marked.push_back(name);
  }
  if (all.empty()) return;
  if (!marked.empty() && people_.Below(4) != 0)
    return coordinator_.Mark(marked[people_.Below(marked.size())], std::nullopt);
  const NodeName name = all[people_.Below(all.size())];
  const bool drains = people_.Below(2) == 0;
  coordinator_.Mark(
      name, coordinator::NodeMark{.drains = drains, .reason = absl::StrCat("fan ", ++marks_)});
}

// Of those that have ended, seldom one that has not: that is refused.
void Cluster::DeleteSome() {
  std::vector<JobId> jobs(coordinator_.archived().begin(), coordinator_.archived().end());
  if (jobs.empty() || people_.Below(8) == 0) {
    for (const auto& [id, job] : coordinator_.machine().jobs()) jobs.push_back(id);
  }
  if (!jobs.empty()) coordinator_.Delete(jobs[people_.Below(jobs.size())]);
}

}  // namespace phalanx::sim
