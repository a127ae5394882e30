// Nodes that are taken out of service, by people or because their worker was asked to end: nothing
// new is placed on one that is cordoned, and jobs leave one that drains (coordinator_leave.cc) as
// soon as they can without losing a step.
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/coordinator.h"

namespace phalanx::coordinator {

using job::JobPhase;

void Coordinator::On(const NodeMarkRequested& event) {
  const auto refuse = [&](absl::Status status) {
    actions_.push_back(AnswerNode{event.token, std::move(status)});
  };
  const auto found = nodes_.find(event.node);
  if (found == nodes_.end()) {
    return refuse(absl::NotFoundError(absl::StrCat("there is no node \"", event.node,
                                                   "\"; phalanx nodes lists those there are")));
  }
  Node& node = found->second;
  std::optional<NodeMark> mark = event.mark;
  if (mark.has_value() && !mark->drains && node.Drains()) {
    return refuse(absl::FailedPreconditionError(
        absl::StrCat("node ", node.name, " is ", ToString(*node.mark), "; phalanx uncordon ",
                     node.name, " lets it take jobs again")));
  }
  if (mark.has_value()) {
    mark->since = now_;
    mark->by = event.by;
  }
  if (!mark.has_value()) ForgiveChecks(node, event.by);
  if (mark.has_value() || node.mark.has_value()) Mark(node, std::move(mark), event.by);
  MarkedNode answer;
  if (node.Drains()) answer.jobs = Drain(node, event.force);
  NodeView view = node.View();
  view.mark = node.mark;
  answer.node = std::make_shared<const NodeView>(std::move(view));
  TellAfter(last_record_, Action(AnswerNode{event.token, std::move(answer)}));
}

void Coordinator::NoteDrain(const Node& node) {
  if (node.Drains() || node.draining) {
    drained_.insert(node.name);
  } else {
    drained_.erase(node.name);
  }
}

void Coordinator::Mark(Node& node, std::optional<NodeMark> mark, const std::string& by) {
  node.mark = std::move(mark);
  NoteDrain(node);
  StoreNode(node);
  TellAfter(last_record_, node.stored);
  const std::string text = node.mark.has_value()
                               ? ToString(*node.mark)
                               : absl::StrCat("takes jobs again", by.empty() ? "" : ", by ", by);
  Log(absl::StrCat("node=", node.name, " ", text));
  TellJobsOn({node.name},
             !node.mark.has_value() ? "NodeUncordoned"
             : node.Drains()        ? "NodeDrained"
                                    : "NodeCordoned",
             text);
  NoteDeadline(node);  // one that was kept for its mark alone may be forgotten now
  capacity_changed_ = true;
  if (node.mark.has_value()) return;
  for (JobId id : std::vector<JobId>(active_.begin(), active_.end())) ConsiderReturn(jobs_.at(id));
}

std::vector<JobOnNode> Coordinator::Drain(const Node& node, bool force) {
  std::vector<JobOnNode> jobs;
  for (JobId id : std::vector<JobId>(active_.begin(), active_.end())) {
    Job& job = jobs_.at(id);
    const Team* team = job.run->TeamOf(node.name);
    if (team == nullptr || team->released) continue;
    JobOnNode on_node{.job = id, .name = job.state.request->name};
    on_node.what = LeaveNode(job, node, force, on_node.stays);
    jobs.push_back(std::move(on_node));
  }
  return jobs;
}

void Coordinator::LeaveStoppingNode(const Node& node) {
  for (JobId id : std::vector<JobId>(active_.begin(), active_.end())) {
    Job& job = jobs_.at(id);
    const Team* team = job.run->TeamOf(node.name);
    if (job.state.IsTerminal() || team == nullptr || team->released) continue;
    if (team->assigned && job.run->Succeeded(*team)) continue;  // they are not missed
    // Its worker ends ranks of such a job at once, and says so: they are lost.
    if (job.state.phase == JobPhase::kRunning && !job.state.request->checkpoints) continue;
    bool stays = false;
    const std::string what = LeaveNode(job, node, /*force=*/false, stays);
    Log(absl::StrCat("job=", id.value, " node=", node.name, " stops: ", what));
  }
}

std::string Coordinator::LeaveNode(Job& job, const Node& node, bool force, bool& stays) {
  if (job.state.IsTerminal()) return "has ended, and its processes are ending";
  if (job.state.phase == JobPhase::kStarting) {
    QueueAgain(job, absl::StrCat("node ", node.name, " is drained: it waits for other devices"),
               /*in_order=*/true);
    return "had not begun to train, and waits for other devices";
  }
  if (job.state.ending.has_value()) return absl::StrCat("leaves already: ", job.state.reason);
  if (MaySuspend(job).ok()) {
    WishEnd(job, {.node = node.name, .queues = true});
    return "saves its state, and then goes on elsewhere";
  }
  const std::string name = ToString(job.state.id);
  const bool saves = job.state.request->checkpoints;
  if (!saves && force) {
    WishEnd(job, {.failure = job::FailureKind::kNodeStopped, .node = node.name});
    return "has no checkpoint section: it is ended, and what it has trained is lost";
  }
  stays = true;
  if (!saves) {
    return absl::StrCat("has no checkpoint section, so the node waits for its end; phalanx cancel ",
                        name, " ends it, and so does phalanx drain with --force");
  }
  return job.recovery.has_value() ? "recovers from a loss, and leaves when it trains again"
                                  : "is in its last step";
}

// Who could not leave before may be able to now.
void Coordinator::ConsiderDrain(Job& job) {
  for (const NodeName& name : drained_) {
    const Team* team = job.run->TeamOf(name);
    if (team == nullptr || team->released) continue;
    if (job.state.ending.has_value() || !MaySuspend(job).ok()) return;
    return WishEnd(job, {.node = name, .queues = true});
  }
}

}  // namespace phalanx::coordinator
