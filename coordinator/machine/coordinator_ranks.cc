// What ranks report, and when their devices are free again.
#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/machine/coordinator.h"
#include "coordinator/machine/ended_job.h"
#include "coordinator/machine/job_nodes.h"
#include "core/base/digest.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using job::JobPhase;

// Entries of one epoch; more than correct ranks ever send.
constexpr size_t kRendezvousEntriesMax = 1 << 20;

// Corrupt samples that a failure lists; the others have their events.
constexpr size_t kCorruptToldMax = 32;
// Of the corrupt samples of a job without an event so many are told apart; past it each report
// counts.
constexpr size_t kFingerprintsMax = 1 << 20;

// Whether a coordinator before this one may have heard that the step that the ranks ended with is
// written, and not stored it, for the checkpoint before was being published: nodes say it again,
// though it is stored that their ranks have succeeded.
bool PartsMayBeSaidAgain(const LiveJob& job) {
  return job.run->awaits_parts && job.state.request->checkpoints &&
         job.state.checkpoint_step < job.run->ended_step;
}

// "; of step 240 rank 3 (node b) has not reported its part": of the newest checkpoint that some
// ranks have written; empty: there is none.
std::string StillWriting(const NodeTable& nodes, const Run& run) {
  const auto newest = std::find_if(run.written.rbegin(), run.written.rend(), [&](const auto& one) {
    return !RanksMissing(run, one.second).empty();
  });
  if (newest == run.written.rend()) return "";
  return absl::StrCat("; of step ", newest->first, " ", MissingParts(nodes, run, newest->second));
}

}  // namespace

void Coordinator::On(const RankReported& event) {
  Node* node = NodeOf(event.session);
  // Reports may hold up the heartbeats behind them; whoever says anything is alive.
  if (node != nullptr) Heard(*node, event.session);
  Job* job = FindJob(event.job);
  if (node == nullptr || job == nullptr) return;
  const auto* published = std::get_if<RankCheckpointPublished>(&event.report);
  if (job->state.queued_again && published != nullptr)
    return OnEarlierReport(*job, event.epoch, *published);
  if (!job->run.has_value()) return;
  const Team* team = job->run->TeamOfRank(event.rank);
  if (team == nullptr || team->released || team->node != node->name) return;
  TellExit(*job, event);
  if (event.epoch != job->state.epoch) return OnEarlierReport(*job, event);  // most are fenced
  // Where a process of an earlier epoch ends, its node may start another for this one.
  if (std::holds_alternative<RankExited>(event.report))
    job->run->ranks[static_cast<size_t>(event.rank)].exited = true;
  NoteDecided(*job, event.decided);
  std::visit([&](const auto& report) { OnReport(*job, event.rank, report); }, event.report);
}

void Coordinator::OnReport(Job& job, int32_t rank, const RendezvousEntry& entry) {
  if (job.state.IsTerminal()) return;
  Run& run = *job.run;
  const auto known = run.rendezvous.find(entry.key);
  if (known != run.rendezvous.end() && known->second == entry.value) return;
  run.rendezvous_bytes += entry.key.size() + entry.value.size();
  if (known != run.rendezvous.end()) {
    run.rendezvous_bytes -= known->first.size() + known->second.size();
  }
  run.rendezvous.insert_or_assign(entry.key, entry.value);
  if (run.rendezvous.size() > kRendezvousEntriesMax ||
      run.rendezvous_bytes > options_.rendezvous_bytes_max) {
    return OnFailure(
        job,
        CauseOf(now_, job, rank, FailureKind::kRankError,
                absl::StrCat("with what rank ", rank, " says for the others, the rendezvous ",
                             "of epoch ", job.state.epoch.value, " has ", run.rendezvous.size(),
                             " entries of ", run.rendezvous_bytes, " bytes; at most ",
                             kRendezvousEntriesMax, " and ", options_.rendezvous_bytes_max)));
  }
  run.rendezvous_unsent.insert_or_assign(entry.key, entry.value);
  if (now_ + options_.rendezvous_delay < run.rendezvous_deadline) {
    SetDeadline(job, run.rendezvous_deadline, options_.rendezvous_delay);
  }
}

void Coordinator::FlushRendezvous(Job& job) {
  Run& run = *job.run;
  run.rendezvous_deadline = absl::InfiniteFuture();
  const std::vector<Rendezvous> commands =
      RendezvousOf(job, std::exchange(run.rendezvous_unsent, {}));
  // To the nodes that the entries came from too: their other ranks read the same table.
  for (const Team& team : run.teams) {
    const auto node = nodes_.find(team.node);
    if (node == nodes_.end()) continue;
    for (const Rendezvous& command : commands) {
      Tell(job, NodeCommand{team.node, node->second.incarnation, command});
    }
  }
}

void Coordinator::OnReport(Job& job, int32_t rank, const RankReady& report) {
  if (job.state.IsTerminal()) return;
  NoteReady(job, rank, report);
  job.run->ranks[static_cast<size_t>(rank)].ready = true;
  if (job.run->output_waiting_rank == rank) job.run->output_waiting.clear();
  CheckReady(job);
}

void Coordinator::CheckReady(Job& job) {
  Run& run = *job.run;
  if (job.recovery.has_value()) return CheckRecovered(job);
  if (job.state.phase != JobPhase::kStarting || run.stage == Run::Stage::kPreparing) return;
  if (!run.AllReady()) return;
  if (run.stage == Run::Stage::kReattaching) {
    // It runs after all; so a node that came back without ranks has lost them.
    for (Team& team : run.teams) {
      if (!team.seen && nodes_.at(team.node).connected()) {
        SetDeadline(job, team.missing_deadline, options_.report_grace);
      }
    }
  }
  run.stage = Run::Stage::kAssigned;
  run.start_deadline = run.reattach_deadline = absl::InfiniteFuture();
  job.copies_with = DaemonsOf(nodes_, job);
  NoteTrains(job);
  Commit(job, PhaseChanged{JobPhase::kRunning,
                           absl::StrCat("trains on ", ToString(WithoutLost(*job.state.layout))),
                           std::nullopt});
}

// A rank that has done a step of the epoch was connected to all others, whatever these have said.
// Of a job that goes back it would be thrown away with the next loss: nobody asks on the way.
void Coordinator::MarkRunning(Job& job) {
  const bool starts =
      job.state.phase == JobPhase::kStarting && job.run->stage != Run::Stage::kPreparing;
  const bool goes_back = job.recovery.has_value() && job.recovery->goes_back &&
                         job.recovery->stage == Recovery::Stage::kEntering;
  if (!starts && !goes_back) return;
  for (RankState& rank : job.run->ranks) rank.ready = true;
  CheckReady(job);
}

void Coordinator::OnReport(Job& job, int32_t rank, const StepReport& report) {
  if (job.state.IsTerminal()) return;
  if (job.last_step.has_value() && job.last_step->epoch == report.epoch &&
      report.step <= job.last_step->step) {
    return;
  }
  job.run->output_waiting.clear();
  MarkRunning(job);
  job.last_step = report;
  if (std::exchange(job.held_since, std::nullopt).has_value()) Publish(job);
  NoteStep(job, report);
  NoteFirstStep(job, rank);
  if (StoreIsBehind()) {
    spared_.insert(job.state.id);
    return;
  }
  Tell(job, Action(PublishStep{job.state.id, report}));
  if (now_ - job.step_stored_at >= options_.step_record_interval) {
    Commit(job, StepReached{report, job.decided});
  } else {
    Publish(job);
  }
  ConsiderReturn(job);
  ConsiderStandby(job);
  ConsiderDrain(job);
  ConsiderAsking(job);
}

void Coordinator::OnReport(Job& job, int32_t rank, const RankSucceeded& report) {
  RankState& state = job.run->ranks[static_cast<size_t>(rank)];
  if (job.state.IsTerminal() || state.succeeded) return;
  const bool early = report.early && job.state.ending.has_value();
  if (report.step < job.state.request->steps && !early) {
    return OnFailure(job, CauseOf(now_, job, rank, FailureKind::kRankError,
                                  absl::StrCat("rank ", rank, " ended at step ", report.step,
                                               " of ", job.state.request->steps)));
  }
  if (job.run->ended_step != 0 && report.step != job.run->ended_step) {
    return OnFailure(job, CauseOf(now_, job, rank, FailureKind::kRankError,
                                  absl::StrCat("rank ", rank, " ended at step ", report.step,
                                               ", others at step ", job.run->ended_step)));
  }
  job.run->ended_step = report.step;
  state.ready = state.succeeded = true;
  if (const Team& team = *job.run->TeamOfRank(rank); job.run->Succeeded(team)) {
    RanksSucceeded record{.epoch = job.state.epoch, .step = report.step};
    for (const int32_t each : team.ranks) {
      if (job.run->ranks[static_cast<size_t>(each)].used) record.ranks.push_back(each);
    }
    Commit(job, std::move(record));
  }
  CheckReady(job);
  CheckSucceeded(job);
}

void Coordinator::CheckSucceeded(Job& job) {
  if (job.state.phase != JobPhase::kRunning) return;
  if (!job.run->Succeeded() || !CheckpointsAreDone(job)) return;
  if (PartsMayBeSaidAgain(job)) {  // as soon as nodes are back
    if (job.run->publish_deadline == absl::InfiniteFuture())
      SetDeadline(job, job.run->publish_deadline, options_.end_grace / 4);
    return;
  }
  if (job.run->ended_step < job.state.request->steps) {
    if (job.state.ending.has_value()) return EndEarly(job, job.state.ending->wish);
    // A coordinator before this one did not live to order that.
    if (!job.recovery.has_value()) TrainOn(job);
    return;
  }
  EndDone(job);
}

bool Coordinator::NoteCorrupt(Job& job, const std::string& message) {
  const JobState& state = job.state;
  if (state.corrupt_samples.contains(message)) return true;
  if (static_cast<int64_t>(state.corrupt_samples.size()) >= options_.rank_events_max ||
      state.corrupt_bytes + static_cast<int64_t>(message.size()) > options_.corrupt_bytes_max) {
    return false;
  }
  Commit(job, EventRecorded{kCorruptSample, message, state.epoch});
  return true;
}

bool Coordinator::FailIfCorrupt(Job& job, const NodeName& node, int64_t unnamed) {
  const int64_t count = static_cast<int64_t>(job.state.corrupt_samples.size()) + unnamed;
  const int64_t limit = job.state.request->corrupt_max;
  if (count <= limit) return false;
  std::string message =
      absl::StrCat(count, " corrupt samples; spec.data.corrupt_max allows ", limit);
  size_t named = 0;
  for (const std::string& sample : job.state.corrupt_samples) {
    if (++named > kCorruptToldMax) break;
    absl::StrAppend(&message, "\n", sample);
  }
  OnFailure(job, {.kind = FailureKind::kDataCorrupt,
                  .node = node,
                  .message = std::move(message),
                  .time = now_});
  return true;
}

void Coordinator::OnCorrupt(Job& job, int32_t rank, const std::string& message) {
  if (job.state.corrupt_samples.contains(message)) return;
  if (!NoteCorrupt(job, message)) {
    std::set<uint64_t>& known = job.unnamed_fingerprints;
    if (known.size() < kFingerprintsMax) {
      uint64_t fingerprint = 0;
      static_cast<void>(absl::SimpleHexAtoi(Digest(message).substr(0, 16), &fingerprint));
      if (!known.insert(fingerprint).second) return;
    }
    if (++job.unnamed_corrupt == 1) {
      Commit(job, EventRecorded{"EventsDropped", "further corrupt samples are counted, not named",
                                job.state.epoch});
    }
  }
  FailIfCorrupt(job, job.run->TeamOfRank(rank)->node, job.unnamed_corrupt);
}

void Coordinator::OnReport(Job& job, int32_t rank, const RankEvent& report) {
  if (job.state.IsTerminal()) return;
  if (report.type == kCorruptSample) return OnCorrupt(job, rank, report.message);
  if (report.type == kOutputWaiting) {
    job.run->output_waiting = absl::StrCat("rank ", rank, ": ", report.message);
    job.run->output_waiting_rank = rank;
    Publish(job);
  }
  if (report.type == kCheckpointFailed)
    job.run->part_failed = absl::StrCat("rank ", rank, ": ", report.message);
  if (job.rank_events > options_.rank_events_max) return;
  if (StoreIsBehind()) {
    ++job.spared_events;
    spared_.insert(job.state.id);
    return;
  }
  if (++job.rank_events > options_.rank_events_max) {
    Commit(job, EventRecorded{"EventsDropped", "further events of its ranks are left out",
                              job.state.epoch});
    return;
  }
  std::string message = absl::StrCat("rank ", rank, ": ", report.message);
  if (report.type == kCheckpointSkipped) absl::StrAppend(&message, StillWriting(nodes_, *job.run));
  Commit(job, EventRecorded{report.type, std::move(message), job.state.epoch});
}

void Coordinator::OnReport(Job& job, int32_t, const EvaluationReport& report) {
  if (job.state.IsTerminal()) return;
  Commit(job, Evaluated{report});
  Tell(job,
       Action(PublishEvaluation{job.state.id, std::make_shared<const EvaluationReport>(report)}));
}

void Coordinator::Prepare(Job& job, Team& team) {
  const auto node = nodes_.find(team.node);
  if (node == nodes_.end()) return;
  SetDeadline(job, job.run->prepare_deadline, options_.prepare_timeout);
  Tell(job, NodeCommand{team.node, node->second.incarnation,
                        PrepareData{job.state.id, job.state.request,
                                    /*choose_checkpoint=*/job.run->Chooses(team)}});
}

void Coordinator::AssignAll(Job& job) {
  Run& run = *job.run;
  run.stage = Run::Stage::kAssigned;
  run.prepare_deadline = absl::InfiniteFuture();
  SetDeadline(job, run.start_deadline, options_.start_timeout);
  if (job.state.layout->data_digest != run.data_digest) {
    plan::Layout layout = *job.state.layout;
    layout.data_digest = run.data_digest;
    Commit(job, EpochPlanned{std::move(layout), job.state.plan_digest, run.checkpoint,
                             job.state.host_memory});
  }
  for (Team& team : run.teams) {
    team.assigned = true;
    // One that is away and has no work is told when it comes back and says that it runs some.
    if (!run.HasWork(team) && !nodes_.at(team.node).connected()) continue;
    Tell(job, NodeCommand{team.node, nodes_.at(team.node).incarnation, AssignmentOf(job)});
  }
}

// The same layout under a new number: the ranks of the old one may wait for each other for ever.
void Coordinator::StartNextEpoch(Job& job) {
  if (job.planning.has_value()) return;  // ordered before, and not answered yet
  plan::Layout layout = *job.state.layout;
  layout.epoch = Epoch{std::max(job.state.epoch, job.run->epoch_seen).value + 1};
  layout.data_digest = job.run->data_digest;
  OrderPlan(job, {.placement = *job.state.placement, .layout = std::move(layout)});
}

void Coordinator::OnNextEpochPlanned(Job& job, const Job::Planning& ordered,
                                     const absl::StatusOr<PlanSummary>& plan) {
  if (ordered.slow.has_value()) return OnPacePlanned(job, *ordered.slow, plan);
  if (plan.ok()) {
    if (const NodeName gone = UnfitNode(nodes_, job, plan->layout, ordered.lent); !gone.empty())
      return PlanWithout(job, gone);
  }
  if (job.recovery.has_value() && job.recovery->goes_back) return OnGoBackPlanned(job, plan);
  if (job.recovery.has_value()) return OnRecoveryPlanned(job, plan);
  if (!job.returning.empty()) return OnReturnPlanned(job, ordered.mirrored, plan);
  // Meanwhile its ranks may have shown that they run after all.
  if (job.run->stage != Run::Stage::kReattaching && job.run->epoch_seen < job.state.epoch) return;
  if (!plan.ok()) {
    return OnFailure(job, {.kind = FailureKind::kPlanInvalid,
                           .message = std::string(plan.status().message()),
                           .time = now_});
  }
  job.run = MakeRun(plan->layout);
  WatchEnd(job);
  job.run->data_digest = plan->layout.data_digest;
  Commit(job, EpochPlanned{plan->layout, plan->digest, job.state.checkpoint, plan->host_memory});
  ChargeNodes(job);
  AssignAll(job);
}

void Coordinator::StoreLastStep(Job& job) {
  const auto& stored = job.state.stored_step;
  if (job.last_step.has_value() && (!stored.has_value() || !(*stored == *job.last_step))) {
    Commit(job, StepReached{*job.last_step, job.decided});
  }
}

void Coordinator::DropPlanning(Job& job) {
  if (!job.planning.has_value()) return;
  actions_.push_back(DropPlan{job.planning->number});
  const Placement placement = EndPlanning(job).placement;
  for (const NodeDevices& entry : placement) {
    if (!job.run.has_value()) FreeDevices(job, entry.node, entry.devices);
  }
  NoteCharge(job);
}

void Coordinator::End(Job& job, JobPhase phase, std::string reason,
                      std::optional<FailureCause> failure, absl::Duration grace) {
  StoreLastStep(job);
  const std::string stop_reason = reason;
  CloseIncident(job, absl::StrCat("the job ended: ", reason));
  TellIncidents(job);
  Commit(job, PhaseChanged{phase, std::move(reason), std::move(failure)});
  LeaveQueue(job);
  DropPlanning(job);
  GiveUpLoans(job);
  DropStandbyPlan(job);
  const auto named = live_names_.find(job.state.request->name);
  if (named != live_names_.end() && named->second == job.state.id) live_names_.erase(named);
  CountDocument(*job.state.request, -RequestBytes(*job.state.request));
  if (!job.run.has_value()) return Archive(job);
  capacity_changed_ = true;  // its devices are free sooner than was reckoned with
  job.recovery.reset();
  job.run->EndAll();
  for (size_t i = 0; job.run.has_value() && i < job.run->teams.size(); ++i) {
    Team& team = job.run->teams[i];
    if (const auto node = nodes_.find(team.node); node != nodes_.end()) {
      NoteDeadline(node->second);  // one that is lost may be forgotten now
    }
    if (team.released) continue;
    if (!team.assigned) {
      ReleaseTeam(job, team);
      continue;
    }
    const auto node = nodes_.find(team.node);
    // A rank process outlives its epoch, so ranks that have succeeded are stopped too.
    if (node != nodes_.end()) {
      Tell(job, NodeCommand{team.node, node->second.incarnation,
                            StopRanks{.job = job.state.id,
                                      .epoch = job.state.epoch,
                                      .grace = grace,
                                      .reason = stop_reason}});
    }
    CheckReleased(job, team);
  }
}

void Coordinator::CheckReleased(Job& job, Team& team) {
  // Of ranks that were left out, and of those that are started again, processes may be there: the
  // stop's answer says when they are gone. A node that is lost answers nothing; should it come
  // back, what it has of the job is stopped before anything is placed there.
  bool has_others = team.starts_again;
  for (const int32_t each : team.ranks) {
    const RankState& rank = job.run->ranks[static_cast<size_t>(each)];
    if (rank.used && !rank.exited) return;
    has_others |= !rank.used;
  }
  const auto node = nodes_.find(team.node);
  if (has_others && node != nodes_.end() && !node->second.lost) return;
  ReleaseTeam(job, team);
}

// May end the run, and with it `team`.
void Coordinator::ReleaseTeam(Job& job, Team& team) {
  team.released = true;
  FreeDevices(job, team.node, team.devices);
  const std::vector<Team>& teams = job.run->teams;
  if (std::all_of(teams.begin(), teams.end(), [](const Team& p) { return p.released; })) {
    active_.erase(job.state.id);
    run_agenda_.Forget(job.state.id);
    job.run.reset();
    NoteCharge(job);
    if (job.state.IsTerminal()) Archive(job);
  }
}

}  // namespace phalanx::coordinator
