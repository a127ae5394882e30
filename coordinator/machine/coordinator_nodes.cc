// Sessions of worker daemons, and what they say that they run.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/coordinator.h"
#include "coordinator/machine/job_nodes.h"

namespace phalanx::coordinator {

using job::FailureKind;
using job::JobPhase;

namespace {

// The order to prepare the job's data that the node has not answered; nullptr: there is none.
const Outstanding* OrderToPrepare(const Node& node, JobId job) {
  const auto found = std::find_if(
      node.outstanding.begin(), node.outstanding.end(), [job](const Outstanding& outstanding) {
        const auto* order = std::get_if<PrepareData>(&outstanding.command);
        return order != nullptr && order->job == job;
      });
  return found == node.outstanding.end() ? nullptr : &*found;
}

// Whether the node is to say which copies of state it has.
bool AwaitsKeeperOf(const LiveJob& job, const Team& team) {
  if (!job.recovery.has_value() || job.recovery->stage != Recovery::Stage::kLeaving) return false;
  const int32_t place = team.ranks.front();
  return job.recovery->keepers.contains(place) && job.recovery->awaited.contains(place);
}

}  // namespace

Node* Coordinator::NodeOf(SessionId session) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return nullptr;
  const auto node = nodes_.find(it->second.first);
  // Same process: what it said on a stream that has been replaced since still counts, for it is
  // said once.
  if (node == nodes_.end() || node->second.incarnation != it->second.second) return nullptr;
  return &node->second;
}

void Coordinator::On(const SessionOpened& event) {
  const WorkerHello& hello = event.hello;
  Node& node = nodes_[hello.node];
  node.name = hello.node;
  if (std::count(node.superseded.begin(), node.superseded.end(), hello.incarnation) != 0) {
    actions_.push_back(CloseSession{
        event.session,
        absl::AbortedError(absl::StrCat("a newer worker has taken over node ", hello.node))});
    return;
  }
  if (node.connected() && node.incarnation != hello.incarnation) return KeepWaiting(node, event);
  Admit(node, event);
}

// The first live process keeps the name. One that died without a word gives it up when its session
// closes or its silence lasts; one that is heard again after the newcomer lives.
void Coordinator::KeepWaiting(Node& node, const SessionOpened& event) {
  if (node.newcomer.has_value()) {
    actions_.push_back(
        CloseSession{node.newcomer->opened.session,
                     absl::UnavailableError("another worker of this name has asked for it since")});
    sessions_.erase(node.newcomer->opened.session);
  }
  node.newcomer = {event, now_};
  sessions_[event.session] = {node.name, event.hello.incarnation};
  Log(absl::StrCat("node=", node.name, " incarnation=", absl::Hex(event.hello.incarnation.value),
                   " waits for the name reason=\"another process has it\""));
}

void Coordinator::AdmitNewcomer(Node& node) {
  if (!node.newcomer.has_value()) return;
  const SessionOpened opened = std::move(node.newcomer->opened);
  node.newcomer.reset();
  Admit(node, opened);
}

void Coordinator::Admit(Node& node, const SessionOpened& event) {
  const WorkerHello& hello = event.hello;
  const bool same_process = node.incarnation == hello.incarnation;
  if (node.connected()) {
    RefuseInjects(node);
    RefuseTrials(node);
    actions_.push_back(CloseSession{
        node.session, absl::UnavailableError("replaced by a newer stream of the same worker")});
  }
  node.derivation = hello.derivation;
  if (!same_process && node.incarnation != Incarnation{}) {
    node.session = event.session;  // it is back: what it has lost may be made up for
    ReplaceProcess(node);
  }
  if (!same_process) node.failed_devices.clear();
  if (!same_process) node.suspect = false;
  if (!same_process) node.examination.reset();
  if (!same_process) EndUnfitness(node);
  node.incarnation = hello.incarnation;
  node.session = event.session;
  node.device_kind = hello.device_kind;
  // A device that some job still has is kept even if the worker does not offer it any more.
  while (!node.device_jobs.empty() && node.device_jobs.back() == JobId{})
    node.device_jobs.pop_back();
  node.device_jobs.resize(std::max(node.device_jobs.size(), static_cast<size_t>(hello.devices)));
  node.device_memory = hello.device_memory;
  node.device_names = hello.device_names;
  node.host_memory = hello.host_memory;
  std::erase_if(node.failed_checks, [&node](int32_t device) {
    return static_cast<size_t>(device) >= node.device_jobs.size();
  });
  node.labels = hello.labels;
  node.gives_copies = hello.gives_copies;
  node.version = hello.version;
  node.address = hello.address;
  node.refused.clear();
  node.Heard(now_);
  EndSuspicion(node);
  node.draining = false;
  NoteDrain(node);
  node.lost = false;
  NoteDeadline(node);
  sessions_[event.session] = {node.name, node.incarnation};
  Log(absl::StrCat("node=", node.name, " connected incarnation=", absl::Hex(node.incarnation.value),
                   " devices=", hello.devices, same_process ? " reason=\"came back\"" : ""));
  PublishView(node);  // who is welcomed is listed
  actions_.push_back(SendWelcome{event.session});
  const bool same_store = hello.store == options_.store;
  if (same_store) last_job_ = std::max(last_job_, hello.last_job);
  // What it runs for another store has numbers of that store, and it ends it by itself.
  const bool other_store = !same_store && hello.store != 0;
  Reconcile(node, other_store ? std::vector<RunningAssignment>() : hello.running,
            hello.last_command_number);
  Resend(node, hello.last_command_number);
  TellPublishAgain(node);
  TellBeginAgain(node);
  TellWishAgain(node);
  if (!same_process) PrepareAgain(node);
  if (hello.check != nullptr) NoteCheck(node, hello.check);
  SettleAnew(node);
  for (JobId id : std::vector<JobId>(active_.begin(), active_.end())) ConsiderReturn(jobs_.at(id));
  capacity_changed_ = true;
}

void Coordinator::ReplaceProcess(Node& node) {
  node.superseded.push_back(node.incarnation);
  if (node.superseded.size() > kSupersededMax) node.superseded.erase(node.superseded.begin());
  LoseRanks(
      node,
      absl::StrCat("the worker of node ", node.name, " was restarted; its ranks died with it"),
      true);
  node.outstanding.clear();
  node.foreign.clear();
  node.leftovers.clear();
  node.last_command_number = 0;
}

// What its node had prepared went with it. Data of a job may be what ends the worker: as often as
// the job may recover without a step between it is asked again. Each node for itself, since workers
// are restarted one by one when they are given another release. One that was not asked yet, or had
// prepared it, did not end of that.
void Coordinator::PrepareAnew(Job& job, Team& team, FailureCause cause) {
  team.prepared = false;
  const int32_t again_max = job.state.request->budget.without_progress;
  const Outstanding* order = OrderToPrepare(nodes_.at(team.node), job.state.id);
  if (order == nullptr || order->number == 0) return;  // 0: it was not sent
  if (++team.lost_preparing <= again_max) return;
  absl::StrAppend(&cause.message, "; it prepared the job's data then, as ", again_max,
                  " times before, which is all that recovery.budget.without_progress allows");
  Fail(job, std::move(cause));
}

// A node that came back without anything may be asked again for what it had not done. Where it has
// a worker that is too old for the job's layout nothing has started yet, and another is planned.
void Coordinator::PrepareAgain(Node& node) {
  for (JobId id : std::vector<JobId>(active_.begin(), active_.end())) {
    Job& job = jobs_.at(id);
    if (job.state.IsTerminal() || job.run->stage != Run::Stage::kPreparing) continue;
    Team* team = job.run->TeamOf(node.name);
    if (team != nullptr && !CarriesOut(node, *job.state.layout)) {
      FailureCause cause{.kind = FailureKind::kNodeLost, .node = node.name, .time = now_};
      cause.message = absl::StrCat(
          "an older worker, whose ranks would refuse the job's layout, came to node ", node.name);
      QueueAfterLoss(job, std::move(cause));
      continue;
    }
    const bool asked = OrderToPrepare(node, id) != nullptr;
    // The first node is asked before the others; those whose turn has not come wait.
    const bool first = team == &job.run->teams.front();
    if (team != nullptr && !asked && (first || job.run->teams.front().prepared)) {
      Prepare(job, *team);
    }
  }
}

void Coordinator::On(const SessionClosed& event) {
  const auto it = sessions_.find(event.session);
  if (it == sessions_.end()) return;
  const auto node = nodes_.find(it->second.first);
  sessions_.erase(it);
  if (node == nodes_.end()) return;
  std::optional<Newcomer>& newcomer = node->second.newcomer;
  if (newcomer.has_value() && newcomer->opened.session == event.session) newcomer.reset();
  if (node->second.session != event.session) return;
  node->second.refused = event.refused;
  Log(absl::StrCat("node=", node->first, " disconnected", event.refused.empty() ? "" : " reason=\"",
                   event.refused, event.refused.empty() ? "" : "\""));
  Disconnect(node->second);
  AdmitNewcomer(node->second);
  for (JobId id : std::vector<JobId>(active_.begin(), active_.end())) ConvictNodes(jobs_.at(id));
}

void Coordinator::Disconnect(Node& node) {
  node.session = SessionId{};
  node.disconnected_at = now_;
  node.excused = absl::ZeroDuration();
  NoteDeadline(node);
  // Logs are asked for by people who wait: they are told, not kept waiting.
  for (const Outstanding& outstanding : node.outstanding) {
    if (const FetchLogs* fetch = std::get_if<FetchLogs>(&outstanding.command)) {
      actions_.push_back(
          EndLogs{fetch->fetch_id, absl::StrCat("node ", node.name, " disconnected")});
    }
  }
  RefuseInjects(node);
  RefuseTrials(node);
  for (JobId id : active_) {
    Job& job = jobs_.at(id);
    if (job.delete_requests.empty()) continue;
    if (const Team* team = TeamOutOfReach(nodes_, job); team != nullptr) {
      RefuseDeletes(job, MayHaveRanksOn(job.state.id, team->node, options_.node_forget_delay));
    }
  }
  PublishView(node);
}

void Coordinator::On(const HeartbeatReceived& event) {
  Node* node = NodeOf(event.session);
  if (node == nullptr || node->session != event.session) return;
  Heard(*node, event.session);
  actions_.push_back(
      PublishHeartbeat{node->name, now_, event.device_temperatures, event.device_used_memory});
  node->device_temperatures = event.device_temperatures;
  if (node->draining != event.draining) {
    node->draining = event.draining;
    capacity_changed_ = true;
    Log(absl::StrCat("node=", node->name, event.draining ? " draining" : " no longer draining"));
    PublishView(*node);
    NoteDrain(*node);
    if (event.draining) LeaveStoppingNode(*node);
  }
  if (event.check != nullptr) NoteCheck(*node, event.check);
  if (event.examination != nullptr) {
    node->examination = event.examination;
    NoteFitness(*node);
    PublishView(*node);
  }
  NotePreparing(*node, event.preparing);
  for (const Progress& progress : event.progress) {
    Job* job = FindJob(progress.job);
    // A rank that steps has built its communicators, so the whole epoch is running.
    if (job != nullptr && job->run.has_value() && progress.epoch == job->state.epoch &&
        progress.step > job->state.BegunBehind() && job->run->TeamOf(node->name) != nullptr) {
      MarkRunning(*job);
    }
    if (job != nullptr && job->run.has_value() && progress.epoch == job->state.epoch)
      NoteWait(*job, node->name, progress.waits);
    NoteWork(*node, progress);
  }
}

// While there is a problem it is examined again each minute.
void Coordinator::NoteFitness(Node& node) {
  const std::vector<job::Finding>& findings = node.examination->findings;
  const auto state = std::find_if(findings.begin(), findings.end(), [](const job::Finding& one) {
    return one.check == job::kStateFolderCheck;
  });
  if (state == findings.end()) return;
  if (state->verdict != job::Finding::Verdict::kProblem) return EndUnfitness(node);
  if (node.unfit.empty())
    Log(absl::StrCat("node=", node.name, " gets nothing new reason=\"", state->found, "\""));
  node.unfit = state->found;
  node.unfit_until = absl::InfiniteFuture();
}

void Coordinator::RestUnfit(Node& node, const std::string& why) {
  node.unfit = absl::StrCat("cannot prepare data: ", why);
  node.unfit_until = now_ + options_.unfit_delay;
  NoteDeadline(node);
  PublishView(node);
}

void Coordinator::EndUnfitness(Node& node) {
  node.unfit_until = absl::InfiniteFuture();
  if (std::exchange(node.unfit, "").empty()) return;
  Log(absl::StrCat("node=", node.name, " may get jobs again"));
  PublishView(node);
  capacity_changed_ = true;
}

void Coordinator::NotePreparing(const Node& node, const std::vector<Preparing>& preparing) {
  for (const Preparing& data : preparing) {
    Job* job = FindJob(data.job);
    if (job == nullptr || !job->run.has_value()) continue;
    Run& run = *job->run;
    Team* team = run.TeamOf(node.name);
    if (run.prepare_deadline == absl::InfiniteFuture() || team == nullptr || team->prepared)
      continue;
    team->behind = data.behind;
    if (std::exchange(team->bytes_read, data.bytes_read) == data.bytes_read) continue;
    SetDeadline(*job, run.prepare_deadline, options_.prepare_timeout);
  }
}

// What was said before it was told went by.
void Coordinator::AssignAgain(Job& job, Node& node) {
  std::vector<Command> commands = {AssignmentOf(job)};
  for (Rendezvous& said : RendezvousOf(job, job.run->rendezvous))
    commands.push_back(std::move(said));
  for (Command& command : commands) {
    if (job.last_record <= stored_record_) {
      node.outstanding.push_back({0, std::move(command)});
    } else {  // sent once the epoch is stored
      Tell(job, NodeCommand{node.name, node.incarnation, std::move(command)});
    }
  }
}

void Coordinator::Reconcile(Node& node, const std::vector<RunningAssignment>& running,
                            uint64_t carried_out) {
  // What was foreign before stays so until the stop is answered: ranks that are ending are not
  // listed. On devices that jobs gave back are none but those that are.
  std::set<std::pair<JobId, Epoch>> listed;
  node.leftovers.clear();
  for (const RunningAssignment& assignment : running) {
    listed.insert({assignment.job, assignment.epoch});
    Job* job = FindJob(assignment.job);
    Team* team = job != nullptr && job->run.has_value() ? job->run->TeamOf(node.name) : nullptr;
    const bool current = team != nullptr && assignment.epoch == job->state.epoch;
    if (current) team->missing_deadline = absl::InfiniteFuture();
    if (current) team->seen = true;
    if (current && !job->state.IsTerminal()) continue;
    // The order to leave for the next epoch, lost with a coordinator before this one.
    const bool goes_over = team != nullptr && team->assigned &&
                           job->state.phase == JobPhase::kRunning &&
                           assignment.epoch < job->state.epoch;
    if (goes_over) {
      team->seen = true;
      listed.insert({job->state.id, job->state.epoch});  // as soon as it is told
      // Which devices its processes are on it does not say.
      node.NoteLeftovers(job->state.id, job->state.epoch);
      if (node.IsOnItsWay(job->state.id, job->state.epoch, carried_out)) continue;
      AssignAgain(*job, node);
      continue;
    }
    if (team == nullptr || team->released) {
      node.foreign.insert({assignment.job, assignment.epoch});
    } else if (!current) {
      node.NoteLeftovers(assignment.job, assignment.epoch);
    }
    node.outstanding.push_back({0, StopRanks{.job = assignment.job,
                                             .epoch = assignment.epoch,
                                             .grace = options_.failure_grace,
                                             .reason = "this epoch is over"}});
  }
  for (JobId id : std::vector<JobId>(active_.begin(), active_.end())) {
    Job& job = jobs_.at(id);
    Team* team = job.run->TeamOf(node.name);
    if (team == nullptr || team->released || !team->assigned) continue;
    if (listed.contains({id, job.state.epoch})) continue;
    if (job.state.IsTerminal()) {
      // A worker does not list ranks that it is ending; its answer to the stop will say when they
      // are gone.
      const bool stop_waits = job.last_record > stored_record_;  // for the store
      const bool stop_unanswered =
          stop_waits || std::any_of(node.outstanding.begin(), node.outstanding.end(),
                                    [&](const Outstanding& outstanding) {
                                      const auto* stop =
                                          std::get_if<StopRanks>(&outstanding.command);
                                      return stop != nullptr && stop->job == id;
                                    });
      if (!stop_unanswered) ReleaseTeam(job, *team);
    } else if (AwaitsKeeperOf(job, *team)) {
      // A worker does not list where it has no ranks: it may not have been told.
      if (!node.IsOnItsWay(id, job.state.epoch, carried_out)) AssignAgain(job, node);
    } else if (job.run->HasWork(*team) && job.run->stage != Run::Stage::kReattaching &&
               !node.IsOnItsWay(id, job.state.epoch, carried_out)) {
      SetDeadline(job, team->missing_deadline, options_.report_grace);
    }
  }
  for (JobId id : std::vector<JobId>(active_.begin(), active_.end())) {
    Job& job = jobs_.at(id);
    if (job.state.IsTerminal() || job.run->stage != Run::Stage::kReattaching) continue;
    if (job.run->TeamOf(node.name) == nullptr) continue;
    const auto all = [&](auto predicate) {
      return std::all_of(job.run->teams.begin(), job.run->teams.end(), predicate);
    };
    if (all([](const Team& p) { return p.seen; })) {
      // Workers say again what their ranks have said, so the rendezvous goes on where it was.
      job.run->stage = Run::Stage::kAssigned;
      job.run->reattach_deadline = absl::InfiniteFuture();
      SetDeadline(job, job.run->start_deadline, options_.start_timeout);
    } else if (all([this](const Team& p) { return nodes_.at(p.node).connected(); })) {
      // Some node never got its assignment, or has lost its ranks: the last reports will say which.
      SetDeadline(job, job.run->reattach_deadline, options_.report_grace);
    }
  }
}

void Coordinator::LoseRanks(Node& node, const std::string& message, bool processes_gone) {
  for (JobId id : std::vector<JobId>(active_.begin(), active_.end())) {
    Job& job = jobs_.at(id);
    Team* team = job.run.has_value() ? job.run->TeamOf(node.name) : nullptr;
    if (team == nullptr || team->released) continue;
    if (!job.state.IsTerminal()) {
      DropExits(job, *team);
      if (processes_gone) EndSilence(job, node.name);
      if (team->assigned && job.run->Succeeded(*team)) {
        // Without work it was left out before; its devices stay the job's, which has the first
        // claim on them.
        const bool may_keep = !job.run->HasWork(*team);
        const int32_t place = team->ranks.front();
        if (processes_gone) {
          for (const int32_t rank : team->ranks)
            job.run->ranks[static_cast<size_t>(rank)].exited = true;
          const std::optional<CheckpointWritten>& publishing = job.state.publishing;
          if (publishing.has_value() && team->Has(publishing->rank)) EndPublishing(job, message);
        }
        if (may_keep) LeaveOutKeeper(job, place);
      } else {
        FailureCause cause =
            CauseOf(now_, job, job.run->FirstRank(*team), FailureKind::kNodeLost, message);
        if (!team->assigned) cause.rank = -1;  // there is none yet
        OnFailure(job, std::move(cause));
        if (processes_gone) EndSilence(job, node.name);
      }
      if (!job.state.IsTerminal()) continue;  // it waits
    }
    team = job.run.has_value() ? job.run->TeamOf(node.name) : nullptr;
    if (team == nullptr || team->released) continue;
    if (processes_gone) {
      ReleaseTeam(job, *team);
    } else {
      CheckReleased(job, *team);
    }
  }
}

void Coordinator::PublishView(const Node& node) {
  actions_.push_back(PublishNode{std::make_shared<const NodeView>(node.View())});
}

}  // namespace phalanx::coordinator
