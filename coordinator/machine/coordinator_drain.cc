// Nodes that are taken out of service, by people or because their worker was asked to end: nothing
// new is placed on one that is cordoned, and jobs leave one that drains (coordinator_leave.cc) as
// soon as they can without losing a step. And nodes that are kept in reserve
// (coordinator_loans.cc).
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/coordinator.h"

namespace phalanx::coordinator {

using job::JobPhase;

Node* Coordinator::NodeToMark(Token token, const NodeName& name) {
  const auto found = nodes_.find(name);
  if (found != nodes_.end()) return &found->second;
  actions_.push_back(AnswerNode{token, NoSuchNode(name)});
  return nullptr;
}

void Coordinator::AnswerMarked(Token token, const Node& node, std::vector<JobOnNode> jobs) {
  NodeView view = node.View();
  view.mark = node.mark;
  view.reserve = node.reserve;
  MarkedNode answer{.node = std::make_shared<const NodeView>(std::move(view)),
                    .jobs = std::move(jobs)};
  TellAfter(last_record_, Action(AnswerNode{token, std::move(answer)}));
}

void Coordinator::On(const NodeMarkRequested& event) {
  Node* found = NodeToMark(event.token, event.node);
  if (found == nullptr) return;
  Node& node = *found;
  std::optional<NodeMark> mark = event.mark;
  if (mark.has_value() && !mark->drains && node.Drains()) {
    actions_.push_back(AnswerNode{
        event.token, absl::FailedPreconditionError(absl::StrCat(
                         "node ", node.name, " is ", ToString(*node.mark), "; phalanx uncordon ",
                         node.name, " lets it take jobs again"))});
    return;
  }
  if (mark.has_value()) {
    mark->by = event.by;
    mark->since = node.mark.has_value() ? node.mark->since : now_;
    // Who says the same once more, as an answer was lost, changes nothing.
    if (mark != node.mark) mark->since = now_;
  }
  if (!mark.has_value()) ForgiveChecks(node, event.by);
  if (mark != node.mark) Mark(node, std::move(mark), event.by);
  AnswerMarked(event.token, node,
               node.Drains() ? Drain(node, event.force) : std::vector<JobOnNode>());
}

// Beside the other mark: a node of the reserve that is drained for a while is in it again after.
void Coordinator::On(const ReserveRequested& event) {
  Node* node = NodeToMark(event.token, event.node);
  if (node == nullptr) return;
  std::optional<ReserveMark> reserve = event.reserve;
  if (reserve.has_value()) {
    reserve->by = event.by;
    reserve->since = node->reserve.has_value() ? node->reserve->since : now_;
    if (reserve != node->reserve) reserve->since = now_;
  }
  const bool changes = reserve != node->reserve;
  node->reserve = std::move(reserve);
  if (changes && node->reserve.has_value()) {
    reserved_.insert(node->name);
    StoreDecided(*node, "NodeReserved", ToString(*node->reserve));
  } else if (changes) {
    reserved_.erase(node->name);
    StoreDecided(
        *node, "NodeUnreserved",
        absl::StrCat("is not in reserve any more", event.by.empty() ? "" : ", by ", event.by));
  }
  AnswerMarked(event.token, *node);
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
  const std::string text = node.mark.has_value()
                               ? ToString(*node.mark)
                               : absl::StrCat("takes jobs again", by.empty() ? "" : ", by ", by);
  StoreDecided(node,
               !node.mark.has_value() ? "NodeUncordoned"
               : node.Drains()        ? "NodeDrained"
                                      : "NodeCordoned",
               text);
  if (node.mark.has_value()) return;
  for (JobId id : std::vector<JobId>(active_.begin(), active_.end())) ConsiderReturn(jobs_.at(id));
}

void Coordinator::StoreDecided(Node& node, const std::string& type, const std::string& what) {
  StoreNode(node);
  TellAfter(last_record_, node.stored);
  Log(absl::StrCat("node=", node.name, " ", what));
  TellJobsOn({node.name}, type, what);
  NoteDeadline(node);  // one that was kept for a mark alone may be forgotten now
  capacity_changed_ = true;
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
  if (!job.recovery.has_value()) return "is in its last step";
  return absl::StrCat(job.recovery->beside ? "goes over to another layout" : "recovers from a loss",
                      ", and leaves when it trains again");
}

// Who could not leave before may be able to now.
void Coordinator::ConsiderDrain(Job& job) {
  if (!MayBeAsked(job)) return;
  for (const NodeName& name : drained_) {
    const Team* team = job.run->TeamOf(name);
    if (team == nullptr || team->released) continue;
    if (job.state.ending.has_value() || !MaySuspend(job).ok()) return;
    return WishEnd(job, {.node = name, .queues = true});
  }
}

}  // namespace phalanx::coordinator
