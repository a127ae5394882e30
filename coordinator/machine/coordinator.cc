#include "coordinator/machine/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/machine/ended_job.h"
#include "coordinator/machine/job_nodes.h"
#include "core/base/stall_watch.h"

namespace phalanx::coordinator {

using job::FailureKind;
using job::JobPhase;

Coordinator::Coordinator(CoordinatorOptions options)
    : options_(std::move(options)),
      plans_(options_.plans_max),
      owners_(options_.quotas, options_.share_half_life) {}

std::vector<Action> Coordinator::Step(Instant now, const Event& event) {
  now_ = std::max(now, now_);
  actions_.clear();
  std::visit([this](const auto& body) { On(body); }, event);
  return std::exchange(actions_, {});
}

std::vector<Action> Coordinator::Recover(Instant now, const std::vector<JournalRecord>& records,
                                         const StoreMarks& marks) {
  now_ = now;
  actions_.clear();
  last_job_ = marks.last_job;
  RestoreNodes(records);
  for (const JournalRecord& record : records) {
    if (std::holds_alternative<NodeMarked>(record.body)) continue;
    if (const auto* used = std::get_if<DeviceTimeUsed>(&record.body)) {
      owners_.Restore(*used, record.time);
      continue;
    }
    Job& job = jobs_[record.job];
    job.state.id = record.job;
    last_job_ = std::max(last_job_, record.job);
    for (JobEvent& event : job.state.Apply(record)) {
      actions_.push_back(PublishEvent{record.job, std::move(event)});
    }
  }
  last_record_ = stored_record_ = std::max<uint64_t>(marks.last_record, records.size());
  std::erase_if(jobs_, [](const auto& entry) { return entry.second.state.request == nullptr; });
  for (auto& [id, job] : jobs_) {
    if (!job.state.request_id.empty()) request_ids_.emplace(job.state.request_id, id);
    job.last_step = job.state.stored_step;
    if (job.state.evaluation.has_value()) {
      actions_.push_back(
          PublishEvaluation{id, std::make_shared<const EvaluationReport>(*job.state.evaluation)});
    }
    for (const IncidentPtr& incident : job.state.incidents)
      actions_.push_back(PublishIncident{id, incident});
    Publish(job);
    if (job.state.IsTerminal()) {
      Archive(job);
      continue;
    }
    live_names_[job.state.request->name] = id;
    CountDocument(*job.state.request, RequestBytes(*job.state.request));
    // What was decided stays, though its coordinator did not live to record the next phase too.
    const bool planned = job.state.epoch.value > 0 && !job.state.queued_again;
    if (job.state.phase == JobPhase::kQueued && planned) SayStarts(job);
    if (job.state.phase == JobPhase::kQueued) Enqueue(job);
  }
  for (auto& [id, job] : jobs_) {
    if (!job.state.IsTerminal() && job.state.phase != JobPhase::kQueued) RecoverRun(job);
  }
  capacity_changed_ = true;
  return std::exchange(actions_, {});
}

void Coordinator::RecoverRun(Job& job) {
  const JobState& state = job.state;
  job.run = MakeRun(*state.layout);
  active_.insert(state.id);
  NoteCharge(job);
  owners_.HadBefore(state.request->owner, state.request->devices, state.counts_since.value_or(now_),
                    now_);
  Run& run = *job.run;
  run.data_digest = state.layout->data_digest;
  run.checkpoint = state.checkpoint;
  const bool was_assigned = !run.data_digest.empty();
  for (Team& team : run.teams) {
    Node& node = nodes_[team.node];
    node.name = team.node;
    node.device_kind = state.request->device_kind;
    node.disconnected_at = now_;
    for (int32_t device : team.devices) {
      if (device >= static_cast<int32_t>(node.device_jobs.size())) {
        node.device_jobs.resize(static_cast<size_t>(device) + 1);
      }
      node.device_jobs[static_cast<size_t>(device)] = state.id;
    }
    team.assigned = was_assigned;
    team.starts_again = state.goes_on();
    NoteDeadline(node);
  }
  ChargeNodes(job);
  for (int32_t rank : state.succeeded) {
    if (rank >= 0 && rank < static_cast<int32_t>(run.ranks.size())) {
      run.ranks[static_cast<size_t>(rank)].succeeded = true;
    }
  }
  run.ended_step = state.ended_step;
  run.awaits_parts = !state.succeeded.empty();
  WatchEnd(job);
  // Ranks may have ended while there was no coordinator, and have still to say so.
  if (state.ending.has_value())
    run.end_deadline = std::max(run.end_deadline, now_ + options_.end_grace / 4);
  const bool running = state.phase == JobPhase::kRunning;
  for (RankState& rank : run.ranks) rank.ready = running;
  if (running && state.stored_step.has_value()) NoteStep(job, *state.stored_step);
  if (running) NoteTrains(job);
  if (!was_assigned) return Prepare(job, run.teams.front());
  run.stage = running ? Run::Stage::kAssigned : Run::Stage::kReattaching;
  NoteDecided(job, state.decided);
  job.held_since = state.waits_since;
  if (job.held_since.has_value()) Publish(job);
  ResumeIncident(job);
  ResumeRecovery(job);
  ResumeSaving(job);
  CheckSucceeded(job);
}

void Coordinator::Commit(Job& job, decltype(JournalRecord::body) body) {
  JournalRecord record{.time = now_, .job = job.state.id, .body = std::move(body)};
  const std::vector<JobEvent> events = job.state.Apply(record);
  if (std::holds_alternative<StepReached>(record.body)) job.step_stored_at = now_;
  job.last_record = ++last_record_;
  actions_.push_back(StoreRecord{last_record_, std::move(record)});
  for (const JobEvent& event : events) {
    Log(absl::StrCat("job=", job.state.id.value, " epoch=", job.state.epoch.value,
                     " event=", event.type, " reason=\"", event.message, "\""));
    Tell(job, Action(PublishEvent{job.state.id, event}));
  }
  Publish(job);
}

void Coordinator::Publish(Job& job) {
  JobView view = job.state.View(job.last_step);
  if (job.too_large && view.phase == JobPhase::kQueued && !view.suspended) {
    view.reason = absl::StrCat("needs ", job.state.request->devices, " devices, and ", job.too_few,
                               "; it waits for more nodes and holds nobody up");
    view.fits_no_nodes = true;
    if (job.state.queued_again) absl::StrAppend(&view.reason, "; ", job.state.reason);
  }
  if (!job.over_quota.empty() && view.phase == JobPhase::kQueued && !view.suspended)
    view.reason = absl::StrCat("waits: ", job.over_quota);
  if (job.recovery.has_value() && job.recovery->stage == Recovery::Stage::kWaiting)
    view.reason = absl::StrCat("waits for ", LostText(*job.recovery));
  if (WaitsAsBefore(job)) view.reason = std::string(kWaitedBefore);
  if (OutputWaits(job)) view.reason = absl::StrCat(kOutputWaiting, ": ", job.run->output_waiting);
  if (std::vector<SlowDevice> slow = SlowDevicesOf(job); !slow.empty())
    view.slow_devices = std::move(slow);
  TellView(job, std::make_shared<const JobView>(std::move(view)));
}

void Coordinator::TellView(Job& job, JobViewPtr view) {
  if (job.last_record <= stored_record_) {
    actions_.push_back(PublishJob{std::move(view)});
    return;
  }
  const Job::NewestView before = job.newest_view;
  const bool waits = before.record > stored_record_;
  if (!waits) job.first_view_record = job.last_record;
  // The first is told with the next answer of the store, however fast records follow each other.
  if (waits && job.first_view_record <= stored_record_) job.first_view_record = before.record;
  const bool replaces = waits && before.phase == view->phase;
  job.newest_view = {job.last_record, 0, view->phase};
  Held held = Action(PublishJob{std::move(view)});
  if (replaces && before.record == job.last_record) {
    job.newest_view.index = before.index;
    return held_.Replace(before.record, before.index, std::move(held));
  }
  if (replaces && before.record != job.first_view_record)
    held_.Replace(before.record, before.index, std::monostate());
  Tell(job, std::move(held));
  job.newest_view.index = held_.CountFor(job.last_record) - 1;
}

void Coordinator::Tell(const Job& job, Held held) { TellAfter(job.last_record, std::move(held)); }

void Coordinator::TellAfter(uint64_t record_number, Held held) {
  if (record_number <= stored_record_) {
    Release(std::move(held));
  } else {
    held_.Add(record_number, std::move(held));
  }
}

void Coordinator::Release(Held held) {
  if (std::holds_alternative<std::monostate>(held)) return;
  if (Action* action = std::get_if<Action>(&held)) {
    actions_.push_back(std::move(*action));
    return;
  }
  if (const NodeMarked* marked = std::get_if<NodeMarked>(&held)) {
    const auto node = nodes_.find(marked->node);
    if (node == nodes_.end()) return;
    node->second.shown_mark = marked->mark;
    node->second.shown_reserve = marked->reserve;
    return PublishView(node->second);
  }
  NodeCommand& order = std::get<NodeCommand>(held);
  const auto node = nodes_.find(order.node);
  // 0: told before the process behind the name was known.
  const bool there = node != nodes_.end() && (order.incarnation == Incarnation{} ||
                                              order.incarnation == node->second.incarnation);
  if (const auto* inject = std::get_if<InjectFault>(&order.command);
      inject != nullptr && !(there && node->second.connected())) {
    return RefuseInject(*inject, order.node);
  }
  if (!there) return;
  SendTo(node->second, std::move(order.command));
}

void Coordinator::Log(std::string text) { actions_.push_back(LogLine{std::move(text)}); }

void Coordinator::On(const RecordStored& event) {
  stored_record_ = std::max(stored_record_, std::min(event.record_number, last_record_));
  for (Held& held : held_.Take(stored_record_)) Release(std::move(held));
  if (held_.empty() && !spared_.empty()) TellSpared();
}

void Coordinator::TellSpared() {
  for (JobId id : std::exchange(spared_, {})) {
    Job* job = FindJob(id);
    if (job == nullptr || job->state.IsTerminal()) continue;
    if (const int64_t count = std::exchange(job->spared_events, 0); count != 0) {
      Commit(*job,
             EventRecorded{"EventsDropped",
                           absl::StrCat(count,
                                        " events of its ranks came while the store was behind "
                                        "and are left out"),
                           job->state.epoch});
    }
    if (!job->last_step.has_value()) continue;
    Tell(*job, Action(PublishStep{id, *job->last_step}));
    Publish(*job);
  }
}

void Coordinator::SetDeadline(const Job& job, Instant& deadline, absl::Duration delay) {
  deadline = now_ + delay;
  run_agenda_.Note(job.state.id, deadline);
}

void Coordinator::On(const DeadlineReached& event) {
  const Instant judged = std::min(now_, event.read_until);
  CheckNodeDeadlines(judged);
  EndLateTrials(judged);
  TellHeardAgain();
  for (JobId id : run_agenda_.Take(judged)) {
    Job* job = FindJob(id);
    if (job == nullptr || !job->run.has_value()) continue;
    CheckRunDeadlines(*job, judged);
    if (job->run.has_value()) run_agenda_.Note(id, job->run->NextDeadline());
  }
  if (capacity_changed_ || look_ <= now_) Schedule();
}

// Who was silent or late while nobody listened is not to blame.
void Coordinator::On(const Stalled& event) {
  const absl::Duration excuse = ExcuseFor(event.duration);
  for (auto& [name, node] : nodes_) {
    node.excused += excuse;
    if (node.newcomer.has_value()) node.newcomer->since += excuse;
  }
  for (JobId id : active_) {
    Job& job = jobs_.at(id);
    job.run->MoveDeadlines(excuse);
    if (job.state.ending.has_value()) job.run->end_deadline += excuse;
  }
  if (event.duration >= absl::Seconds(1)) {
    Log(absl::StrCat("stalled for ", absl::FormatDuration(event.duration),
                     "; deadlines are moved by ", absl::FormatDuration(excuse)));
  }
}

void Coordinator::CheckRunDeadlines(Job& job, Instant judged) {
  Run& run = *job.run;
  if (judged >= run.rendezvous_deadline) FlushRendezvous(job);
  if (job.state.IsTerminal()) {
    for (Team& team : run.teams) team.missing_deadline = absl::InfiniteFuture();
    return;
  }
  if (judged >= run.end_deadline) return OnEndDeadline(job);
  if (judged >= run.publish_deadline) return OnPublishDeadline(job);
  if (judged >= run.fail_deadline) {
    const Run::Failing failing = *std::exchange(run.failing, std::nullopt);
    return FailAsTold(job, failing.cause, failing.why);
  }
  for (Team& team : run.teams) {
    if (judged < team.missing_deadline) continue;
    team.missing_deadline = absl::InfiniteFuture();  // judged, whatever comes of it
    if (run.Succeeded(team)) {
      team.missing_deadline = absl::InfiniteFuture();
      continue;
    }
    return OnFailure(
        job, CauseOf(now_, job, run.FirstRank(team), FailureKind::kRanksLost,
                     absl::StrCat("node ", team.node, " came back without the ranks of epoch ",
                                  job.state.epoch.value)));
  }
  if (judged >= run.settle_deadline) {
    if (const Node* awaited = AwaitedNode(nodes_, job)) {
      run.settle_deadline = DeadlineOf(*awaited);
      return;
    }
    // A node that came back without its ranks has still to say what became of them.
    Instant missing = absl::InfiniteFuture();
    for (const Team& team : run.teams) missing = std::min(missing, team.missing_deadline);
    if (missing < absl::InfiniteFuture()) {
      run.settle_deadline = missing;
      return;
    }
    // Without an accusation it is a death that a verdict waits for.
    std::set<NodeName> broken = BrokenNodes(nodes_, job);
    FailureCause verdict = run.accusations.empty() ? run.accuser_killed.value_or(FailureCause())
                                                   : VerdictOf(run, broken);
    // All nodes that are lost at once: training without one would wait for the others.
    std::vector<FailureCause> others;
    for (std::string node = verdict.node; !run.accusations.empty() && broken.erase(node) != 0;) {
      FailureCause other = VerdictOf(run, broken);
      node = other.node;
      if (other.kind == FailureKind::kNodeLost) others.push_back(std::move(other));
    }
    if (verdict.kind == FailureKind::kPeerLost && run.accuser_killed.has_value())
      verdict = *run.accuser_killed;
    if (job.recovery.has_value() && AccusesWhoTrains(*job.recovery, verdict)) {
      verdict.kind = FailureKind::kPeerLost;
      verdict.rank = -1;
      verdict.node.clear();
    }
    verdict.time = now_;
    OnFailure(job, std::move(verdict));
    for (FailureCause& other : others) {
      if (!job.recovery.has_value() || AccusesWhoTrains(*job.recovery, other)) return;
      other.time = now_;
      OnFailure(job, std::move(other));
    }
    return;
  }
  if (judged >= run.quiet_deadline) return OnQuietDeadline(job);
  if (judged >= run.standby_deadline) return OnStandbyDeadline(job);
  if (judged >= run.hold_deadline) return OnHoldDeadline(job);
  if (judged >= run.reattach_deadline) return LoseUnseenRanks(job);
  if (judged >= run.prepare_deadline) return FailPreparing(job);
  if (judged >= run.start_deadline) {
    if (job.recovery.has_value() && MayRecover(job)) return LoseUnreadyRanks(job);
    std::vector<std::string> missing;
    int32_t first = -1;
    for (size_t rank = 0; rank < run.ranks.size(); ++rank) {
      if (!run.ranks[rank].used || run.ranks[rank].ready) continue;
      if (first < 0) first = static_cast<int32_t>(rank);
      if (missing.size() < 16) missing.push_back(absl::StrCat(rank));
    }
    OnFailure(job,
              CauseOf(now_, job, first, FailureKind::kStartTimeout,
                      absl::StrCat("not ready after ", absl::FormatDuration(options_.start_timeout),
                                   ": ranks ", absl::StrJoin(missing, ", "))));
  }
}

void Coordinator::LoseUnseenRanks(Job& job) {
  Run& run = *job.run;
  run.reattach_deadline = absl::InfiniteFuture();
  const auto team =
      std::find_if(run.teams.begin(), run.teams.end(), [](const Team& t) { return !t.seen; });
  if (team == run.teams.end()) return;
  OnFailure(job, CauseOf(now_, job, run.FirstRank(*team), FailureKind::kRanksLost,
                         absl::StrCat("node ", team->node, " came back without the ranks of epoch ",
                                      job.state.epoch.value)));
}

void Coordinator::FailPreparing(Job& job) {
  std::vector<std::string> waiting;
  const Team* first = nullptr;
  // The first node is asked before the others.
  for (const Team& team : job.run->teams) {
    if (!team.prepared) waiting.push_back(team.PreparingName());
    if (!team.prepared && first == nullptr) first = &team;
    if (!team.prepared && &team == &job.run->teams.front()) break;
  }
  OnFailure(job, {.kind = FailureKind::kPrepareTimeout,
                  .node = first->node,
                  .message = absl::StrCat("node ", absl::StrJoin(waiting, ", "),
                                          " has read nothing of the job's data for ",
                                          absl::FormatDuration(options_.prepare_timeout),
                                          "; look at the storage that data.shards is on"),
                  .time = now_});
}

Coordinator::Job* Coordinator::FindJob(JobId id) {
  const auto it = jobs_.find(id);
  return it == jobs_.end() ? nullptr : &it->second;
}

}  // namespace phalanx::coordinator
