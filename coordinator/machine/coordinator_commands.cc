// Commands to worker daemons and their results.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/machine/coordinator.h"

namespace phalanx::coordinator {
namespace {

bool IsObsolete(const std::map<JobId, LiveJob>& jobs, const Node& node, const Command& command) {
  const auto check = [&jobs](JobId id, std::optional<Epoch> epoch) {
    const auto job = jobs.find(id);
    return job == jobs.end() || job->second.state.IsTerminal() ||
           (epoch.has_value() && *epoch != job->second.state.epoch);
  };
  if (const auto* prepare = std::get_if<PrepareData>(&command)) {
    if (check(prepare->job, {})) return true;
    const LiveJob& job = jobs.at(prepare->job);  // it may have gone elsewhere since
    return !job.run.has_value() ||
           (job.run->TeamOf(node.name) == nullptr && !job.prepared.contains(node.name));
  }
  if (const auto* assign = std::get_if<Assign>(&command)) {
    if (check(assign->job, assign->epoch)) return true;
    // It may have been queued again since: nobody would stop what it starts.
    const LiveJob& job = jobs.at(assign->job);
    const Team* team = job.run.has_value() ? job.run->TeamOf(node.name) : nullptr;
    return team == nullptr || !team->assigned;
  }
  if (const auto* begin = std::get_if<BeginEpoch>(&command)) return check(begin->job, begin->epoch);
  if (const auto* entries = std::get_if<Rendezvous>(&command))
    return check(entries->job, entries->epoch);
  if (const auto* publish = std::get_if<PublishCheckpoint>(&command))
    return check(publish->job, publish->epoch);
  if (const auto* wish = std::get_if<Wish>(&command)) return check(wish->job, wish->epoch);
  if (const auto* file = std::get_if<WriteIncident>(&command)) return check(file->job, file->epoch);
  if (const auto* set = std::get_if<PrepareStandby>(&command)) return check(set->job, set->epoch);
  return std::holds_alternative<FetchLogs>(command) ||
         std::holds_alternative<InjectFault>(command) || std::holds_alternative<TryPeer>(command);
}

}  // namespace

using job::FailureKind;

void Coordinator::SendTo(Node& node, Command command) {
  Outstanding outstanding{0, std::move(command)};
  if (node.connected()) {
    outstanding.number = ++node.last_command_number;
    actions_.push_back(SendCommand{node.session, outstanding.number, outstanding.command});
  }
  node.outstanding.push_back(std::move(outstanding));
}

// Every command that was not answered, but for the few that are sent once, is sent again: under its
// number where the worker has not carried it out, else (only the answer is missing) under a new
// one. All commands bear repetition. Numbers never fall within one process: it takes a number that
// it has seen for a repetition.
void Coordinator::Resend(Node& node, uint64_t carried_out) {
  std::vector<Outstanding> before = std::exchange(node.outstanding, {});
  std::vector<Command> renumbered;
  for (Outstanding& outstanding : before) {
    const bool obsolete = IsObsolete(jobs_, node, outstanding.command);
    if (outstanding.number > carried_out) {
      // Numbers have no gaps, so a harmless command takes the place of one that is not wanted any
      // more: for no job. A stop for none calls off the data of all jobs, in releases before.
      if (obsolete) outstanding.command = Rendezvous{};
      actions_.push_back(SendCommand{node.session, outstanding.number, outstanding.command});
      node.outstanding.push_back(std::move(outstanding));
    } else if (!obsolete &&
               (outstanding.number == 0 || !std::holds_alternative<Assign>(outstanding.command))) {
      // An assignment that was carried out is not repeated: its ranks are there, or were lost.
      renumbered.push_back(std::move(outstanding.command));
    }
  }
  node.last_command_number = std::max(node.last_command_number, carried_out);
  for (Command& command : renumbered) SendTo(node, std::move(command));
}

// Of a job whose order is answered, processes that it has not are gone, or told to end: nothing
// starts on their devices before they are.
void Coordinator::EndLeftovers(Node& node, const Command& command) {
  const auto* assign = std::get_if<Assign>(&command);
  const auto* stop = std::get_if<StopRanks>(&command);
  const bool ended = (assign != nullptr && node.EndLeftovers(assign->job, assign->epoch)) ||
                     (stop != nullptr && node.EndLeftovers(stop->job, stop->epoch));
  if (ended) capacity_changed_ = true;
}

void Coordinator::On(const CommandFinished& event) {
  Node* node = NodeOf(event.session);
  if (node == nullptr) return;
  Heard(*node, event.session);
  const auto it = std::find_if(
      node->outstanding.begin(), node->outstanding.end(),
      [&event](const Outstanding& o) { return o.number != 0 && o.number == event.command_number; });
  if (it == node->outstanding.end()) return;
  const Command command = std::move(it->command);
  node->outstanding.erase(it);
  EndLeftovers(*node, command);
  if (const auto* prepare = std::get_if<PrepareData>(&command)) {
    Job* job = FindJob(prepare->job);
    if (job == nullptr || !job->run.has_value() || job->state.IsTerminal()) return;
    Team* team = job->run->TeamOf(node->name);
    if (team != nullptr && job->run->stage == Run::Stage::kPreparing) {
      // Else of a start before this one, in which another node was to choose, or the job had no
      // checkpoint of its own yet: it is asked anew.
      if (prepare->choose_checkpoint == job->run->Chooses(*team)) OnPrepared(*job, *team, event);
    } else if (team != nullptr || job->prepared.contains(node->name)) {
      OnReturnPrepared(*job, *node, event);
    }
  } else if (const auto* inject = std::get_if<InjectFault>(&command)) {
    OnInjected(*node, *inject, event);
  } else if (const auto* trial = std::get_if<TryPeer>(&command)) {
    OnTried(*trial, event);
  } else if (event.code != 0 && !std::holds_alternative<StopRanks>(command)) {
    OnCommandFailed(*node, command, event);
  } else if (const auto* stop = std::get_if<StopRanks>(&command)) {
    if (node->foreign.erase({stop->job, stop->epoch}) != 0) capacity_changed_ = true;
    Job* job = FindJob(stop->job);
    if (job == nullptr || !job->run.has_value() || !job->state.IsTerminal()) return;
    Team* team = job->run->TeamOf(node->name);
    // Answered when the processes are gone: exits may have been told to a coordinator before this
    // one.
    if (team != nullptr && !team->released && event.code == 0) ReleaseTeam(*job, *team);
  }
}

void Coordinator::OnCommandFailed(const Node& node, const Command& command,
                                  const CommandFinished& result) {
  Log(absl::StrCat("node=", node.name, " command=", result.command_number, " code=", result.code,
                   " reason=\"", result.message, "\""));
  if (const auto* fetch = std::get_if<FetchLogs>(&command)) {
    actions_.push_back(
        EndLogs{fetch->fetch_id, absl::StrCat("node ", node.name, ": ", result.message)});
    return;
  }
  const auto* assign = std::get_if<Assign>(&command);
  Job* job = assign == nullptr ? nullptr : FindJob(assign->job);
  if (job == nullptr || !job->run.has_value() || assign->epoch != job->state.epoch) return;
  Team* team = job->run->TeamOf(node.name);
  if (team == nullptr) return;
  if (!job->state.IsTerminal()) {
    job->run->epoch_seen = std::max(job->run->epoch_seen, result.epoch_seen);
    const int32_t place = team->ranks.front();
    const bool keeps = job->recovery.has_value() && job->recovery->keepers.contains(place);
    if (keeps && result.epoch_seen < job->state.epoch) return LeaveOutKeeper(*job, place);
    OnFailure(*job, CauseOf(now_, *job, job->run->FirstRank(*team), FailureKind::kStartFailed,
                            absl::StrCat("node ", node.name,
                                         " could not start its ranks: ", result.message)));
  }
}

// Of jobs that the planner laid out: searches for the next ones count with it.
void Coordinator::NoteDataShape(Job& job, const std::optional<job::DataShape>& shape) {
  const std::string& key = job.state.request->data_key;
  if (!shape.has_value() || key.empty()) return;
  actions_.push_back(PublishDataShape{key, *shape});
  Commit(job, EventRecorded{"DataShape",
                            absl::StrFormat("the training set has %.2f items a sample and a label "
                                            "at %.2f %% of positions (batch.items, "
                                            "batch.labelled_share)",
                                            shape->items, 100 * shape->labelled_share),
                            job.state.epoch});
}

void Coordinator::OnPrepared(Job& job, Team& team, const CommandFinished& result) {
  int64_t unnamed = result.corrupt_samples;
  for (const std::string& message : result.corrupt_messages) {
    if (NoteCorrupt(job, message)) --unnamed;
  }
  if (!result.data_violations.empty() || result.code != 0 || result.data_digest.empty()) {
    std::vector<std::string> lines;
    for (const Violation& violation : result.data_violations) lines.push_back(ToString(violation));
    if (lines.empty()) {
      lines.push_back(result.message.empty() ? "the worker gave no digest of the data"
                                             : result.message);
    }
    const bool invalid = !result.data_violations.empty() ||
                         result.code == static_cast<int32_t>(absl::StatusCode::kInvalidArgument);
    return OnFailure(job, {.kind = result.failure_kind.value_or(
                               invalid ? FailureKind::kDataInvalid : FailureKind::kPrepareFailed),
                           .node = team.node,
                           .message = absl::StrJoin(lines, "\n"),
                           .time = now_});
  }
  // A worker names only the first of many.
  if (FailIfCorrupt(job, team.node, std::max<int64_t>(0, unnamed))) return;
  Run& run = *job.run;
  if (run.data_digest.empty()) {
    run.data_digest = result.data_digest;
  } else if (run.data_digest != result.data_digest) {
    return OnFailure(
        job, {.kind = FailureKind::kDataInvalid,
              .node = team.node,
              .message = absl::StrCat("node ", team.node, " reads other data than node ",
                                      run.teams.front().node, ": digest ", result.data_digest,
                                      " instead of ", run.data_digest),
              .time = now_});
  }
  team.prepared = true;
  if (&team == &run.teams.front()) {
    NoteChoice(job, result.choice);
    NoteDataShape(job, result.data_shape);
    for (size_t i = 1; i < run.teams.size(); ++i) {
      if (!run.teams[i].prepared) Prepare(job, run.teams[i]);
    }
  }
  if (std::all_of(run.teams.begin(), run.teams.end(), [](const Team& p) { return p.prepared; })) {
    AssignAll(job);
  }
}

}  // namespace phalanx::coordinator
