// Nodes that are not heard: suspect, then lost, then forgotten.
//
// A suspect node keeps its ranks, its devices and its deadline; only nothing new is placed on it.
// So silence of a moment costs nothing, and a node that is about to be lost takes nobody in.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/machine/coordinator.h"

namespace phalanx::coordinator {
namespace {

// Lost, and nothing that it holds is of a job that goes on.
bool MayBeForgotten(const Node& node, const std::map<JobId, LiveJob>& jobs) {
  return !node.connected() && node.lost &&
         std::all_of(node.device_jobs.begin(), node.device_jobs.end(), [&jobs](JobId holder) {
           return holder == JobId{} || jobs.at(holder).state.IsTerminal();
         });
}

}  // namespace

absl::Duration SuspectDelay(const CoordinatorOptions& options) {
  const absl::Duration delay =
      std::max(5 * options.heartbeat_interval / 2, options.heartbeat_timeout / 2);
  return delay < options.heartbeat_timeout ? delay : absl::InfiniteDuration();
}

void Coordinator::Heard(Node& node, SessionId session) {
  if (node.session != session) return;
  node.Heard(now_);
  EndSuspicion(node);
  NoteDeadline(node);
  if (!node.newcomer.has_value() || now_ < node.newcomer->since + options_.name_grace) return;
  const SessionId refused = node.newcomer->opened.session;
  actions_.push_back(CloseSession{
      refused,
      absl::AlreadyExistsError(absl::StrCat(
          "node ", node.name,
          " is the name of another worker, which lives; give this one its own (--node)"))});
  sessions_.erase(refused);
  node.newcomer.reset();
  Log(absl::StrCat("node=", node.name, " refused a second worker of its name"));
}

Instant Coordinator::DeadlineOf(const Node& node) const {
  if (node.connected() && !node.suspect)
    return std::min(node.unfit_until, node.quiet_since() + std::min(SuspectDelay(options_),
                                                                    options_.heartbeat_timeout));
  if (node.connected() || !node.lost) return node.quiet_since() + options_.heartbeat_timeout;
  if (MayBeForgotten(node, jobs_)) return node.quiet_since() + options_.node_forget_delay;
  return absl::InfiniteFuture();
}

void Coordinator::CheckNodeDeadlines(Instant judged) {
  std::set<NodeName> silent;
  for (const NodeName& name : node_agenda_.Take(judged)) {
    const auto found = nodes_.find(name);
    if (found == nodes_.end()) continue;
    Node& node = found->second;
    if (node.unfit_until <= judged) EndUnfitness(node);
    if (judged < DeadlineOf(node)) {
      NoteDeadline(node);  // heard since
    } else if (node.lost) {
      Forget(name);
    } else if (judged < node.quiet_since() + options_.heartbeat_timeout) {
      Suspect(node);
      silent.insert(name);
      NoteDeadline(node);
    } else {
      Lose(node);
      node_agenda_.Forget(name);  // noted, it may be, when another node of its job was lost
      NoteDeadline(node);
    }
  }
  if (silent.empty()) return;
  TellJobsOn(
      silent, "NodeSuspect",
      absl::StrCat("no heartbeat for ", absl::FormatDuration(SuspectDelay(options_)),
                   "; nothing new is placed there, and past ",
                   absl::FormatDuration(options_.heartbeat_timeout), " the ranks there are lost"));
}

void Coordinator::Suspect(Node& node) {
  node.suspect = true;
  Log(absl::StrCat("node=", node.name, " suspect reason=\"no heartbeat for ",
                   absl::FormatDuration(SuspectDelay(options_)), "\""));
  PublishView(node);
}

void Coordinator::EndSuspicion(Node& node) {
  if (!std::exchange(node.suspect, false)) return;
  Log(absl::StrCat("node=", node.name, " heard again"));
  PublishView(node);
  heard_again_.insert(node.name);
  capacity_changed_ = true;
}

void Coordinator::TellHeardAgain() {
  const std::set<NodeName> heard = std::exchange(heard_again_, {});
  if (heard.empty()) return;
  TellJobsOn(heard, "NodeHeard", "heard again");
  for (JobId id : std::vector<JobId>(active_.begin(), active_.end())) ConsiderReturn(jobs_.at(id));
}

void Coordinator::TellJobsOn(const std::set<NodeName>& nodes, const std::string& type,
                             const std::string& what) {
  for (JobId id : active_) {
    Job& job = jobs_.at(id);
    if (job.state.IsTerminal() || job.silence_events > options_.silence_events_max) continue;
    std::vector<NodeName> named;
    size_t count = 0;
    for (const Team& team : job.run->teams) {
      if (team.released || !nodes.contains(team.node)) continue;
      if (++count <= kNodesNamedMax) named.push_back(team.node);
    }
    if (count == 0) continue;
    if (++job.silence_events > options_.silence_events_max) {
      Commit(job, EventRecorded{"EventsDropped", "further silences of its nodes are left out",
                                job.state.epoch});
      continue;
    }
    Commit(job,
           EventRecorded{
               type,
               absl::StrCat(
                   count == 1 ? "node " : "nodes ", absl::StrJoin(named, ", "),
                   count > named.size() ? absl::StrCat(" and ", count - named.size(), " more") : "",
                   ": ", what),
               job.state.epoch});
  }
}

void Coordinator::Lose(Node& node) {
  const std::string timeout = absl::FormatDuration(options_.heartbeat_timeout);
  node.suspect = false;
  node.lost = true;
  capacity_changed_ = true;  // what waits for it may be too large now
  if (!node.connected()) {
    Log(absl::StrCat("node=", node.name, " lost reason=\"away for ", timeout, "\""));
    return LoseRanks(node,
                     absl::StrCat("node ", node.name, " has been away for ", timeout,
                                  node.refused.empty() ? "" : ": ", node.refused),
                     false);
  }
  const std::string reason = absl::StrCat("no heartbeat for ", timeout);
  Log(absl::StrCat("node=", node.name, " closed reason=\"", reason, "\""));
  actions_.push_back(CloseSession{node.session, absl::UnavailableError(reason)});
  sessions_.erase(node.session);
  Disconnect(node);
  LoseRanks(node, absl::StrCat("node ", node.name, " is silent: ", reason), false);
  AdmitNewcomer(node);
}

// Should the node come back with ranks after all, they are stopped before it gets anything new.
void Coordinator::Forget(const NodeName& name) {
  for (JobId id : std::vector<JobId>(active_.begin(), active_.end())) {
    Job& job = jobs_.at(id);
    Team* team = job.run->TeamOf(name);
    if (team == nullptr || team->released) continue;
    Log(absl::StrCat("job=", id.value, " gives up node=", name, " reason=\"lost for ",
                     absl::FormatDuration(options_.node_forget_delay), "\""));
    ReleaseTeam(job, *team);
  }
  node_agenda_.Forget(name);
  Node& node = nodes_.at(name);
  if (node.mark.has_value() || node.reserve.has_value()) return;  // it stays listed for that
  node.check = nullptr;
  if (!node.stored.checks.empty()) StoreNode(node);
  drained_.erase(name);
  nodes_.erase(name);
  actions_.push_back(RetractNode{name});
}

}  // namespace phalanx::coordinator
