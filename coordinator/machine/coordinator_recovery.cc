// From the loss of ranks to the first step of the layout that is left (recovery.h).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/coordinator.h"
#include "coordinator/machine/job_nodes.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;

// The ranks that go with what a failure is blamed on.
std::set<int32_t> RanksOf(const Run& run, const FailureCause& cause) {
  const bool of_node =
      cause.kind == FailureKind::kNodeLost || cause.kind == FailureKind::kNodeUnreachable ||
      cause.kind == FailureKind::kNodeStopped || cause.kind == FailureKind::kRanksLost ||
      cause.kind == FailureKind::kStartFailed;
  const Team* team = of_node ? run.TeamOf(cause.node) : nullptr;
  std::set<int32_t> ranks;
  if (team == nullptr) {
    if (cause.rank >= 0) ranks.insert(cause.rank);
    return ranks;
  }
  for (const int32_t rank : team->ranks) {
    if (run.ranks[static_cast<size_t>(rank)].used) ranks.insert(rank);
  }
  return ranks;
}

bool HasWork(const Run& run, int32_t rank) {
  return run.TeamOfRank(rank) != nullptr && run.ranks[static_cast<size_t>(rank)].used;
}

// Whether the rank has work in both, on the same device: who comes anew has nothing to say.
bool HasStayed(const Run& before, const Run& now, int32_t rank) {
  if (!HasWork(before, rank) || !HasWork(now, rank)) return false;
  const Team &from = *before.TeamOfRank(rank), &to = *now.TeamOfRank(rank);
  return from.node == to.node && from.DeviceOf(rank) == to.DeviceOf(rank);
}

bool IsLost(const plan::Layout& layout, Rank rank) {
  return std::find(layout.lost.begin(), layout.lost.end(), rank) != layout.lost.end();
}

// A node that was only drained still has its ranks, until they end or another one of its jobs does.
bool MayLive(FailureKind kind) {
  return kind == FailureKind::kNodeLost || kind == FailureKind::kNodeUnreachable ||
         kind == FailureKind::kPeerLost || kind == FailureKind::kNodeStopped;
}

absl::Duration QuietTimeout(const NodeTable& nodes, const LiveJob& job,
                            const CoordinatorOptions& options) {
  if (job.recovery->beside) return options.connect_timeout;
  const bool some_are_away =
      std::any_of(job.run->teams.begin(), job.run->teams.end(), [&](const Team& team) {
        const auto node = nodes.find(team.node);
        return job.run->HasWork(team) && node != nodes.end() &&
               node->second.incarnation == Incarnation{};
      });
  // Since this coordinator started.
  return options.quiet_timeout + (some_are_away ? options.heartbeat_timeout : absl::ZeroDuration());
}

// Whether the node has been heard as lately as one is whose heartbeats come, and since its ranks
// were told to leave.
bool IsHeard(const NodeTable& nodes, const Run& run, int32_t rank, Instant now,
             const CoordinatorOptions& options) {
  const Team* team = run.TeamOfRank(rank);
  const auto node = team == nullptr ? nodes.end() : nodes.find(team->node);
  const absl::Duration silence =
      std::min(5 * options.heartbeat_interval / 4, 4 * options.quiet_timeout / 5);
  return node != nodes.end() && node->second.connected() && !node->second.suspect &&
         now - node->second.quiet_since() <= silence;
}

}  // namespace

void Coordinator::FailOfBudget(Job& job, FailureCause cause) {
  const job::Budget& budget = job.state.request->budget;
  FailOnceTold(job, std::move(cause),
               absl::StrCat("it has recovered as often as recovery.budget.total allows: ",
                            budget.total, " times within ", absl::FormatDuration(budget.window)));
}

void Coordinator::FailApart(Job& job, FailureCause cause) {
  AddReason(absl::StrCat(kTriesMax, " times in a row"), cause.message);
  Fail(job, std::move(cause));
}

// Of the epoch that runs: one that has begun, though not all of its ranks may be ready.
void Coordinator::AwaitQuiet(Job& job, const FailureCause& cause) {
  Run& run = *job.run;
  Recovery recovery{.from = job.state.epoch, .cause = cause, .since = now_};
  if (job.recovery.has_value()) {
    recovery.since = job.recovery->since;
    recovery.lost = job.recovery->lost;
    recovery.back = job.recovery->back;
    recovery.spared = job.recovery->spared;
    recovery.tries = job.recovery->tries;
    recovery.entered = job.recovery->entered;
  }
  recovery.quiets = std::exchange(run.quiets, {});
  std::erase_if(recovery.quiets, [](const auto& quiet) { return !quiet.second.context_ok; });
  for (size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const auto number = static_cast<int32_t>(rank);
    if (run.ranks[rank].used && !recovery.quiets.contains(number)) recovery.awaited.insert(number);
  }
  job.recovery = std::move(recovery);
}

void Coordinator::StartRecovery(Job& job, FailureCause cause) {
  Run& run = *job.run;
  std::set<int32_t> lost = RanksOf(run, cause);
  // They are judged, also where they accuse who is known to be lost.
  run.EndJudging();
  if (job.recovery.has_value() && job.recovery->goes_back)
    return GoBackWithout(job, std::move(cause), std::move(lost));
  bool by_choice = false, unpaces = false;
  if (job.recovery.has_value()) {
    std::erase_if(lost, [&](int32_t rank) { return job.recovery->lost.contains(rank); });
    // Ranks of the next epoch that do not find each other try again in another one.
    const bool apart = job.recovery->stage >= Recovery::Stage::kLeaving && cause.rank < 0 &&
                       cause.kind == FailureKind::kPeerLost;
    if (lost.empty() && !apart) return;
    if (IsSaving(job)) return EndSaving(job, cause.message);
    // Without those that came anew, if there are any and they have no state yet.
    if (apart && !MayHoldState(*job.recovery)) lost = job.recovery->back;
    by_choice = StaysByChoice(*job.recovery, lost, apart);
    unpaces = by_choice && job.recovery->paces;
    if (job.recovery->by_choice && !by_choice) job.recovery->tries = 0;
    if (apart && lost.empty() && ++job.recovery->tries > kTriesMax && !by_choice)
      return FailApart(job, std::move(cause));
  }
  const bool of_ranks =
      cause.kind != FailureKind::kPeerLost && cause.kind != FailureKind::kNoProgress;
  if (lost.empty() && of_ranks) return;  // left out already
  if (IsSaving(job)) return EndSaving(job, cause.message);
  const bool begins =
      !job.recovery.has_value() || job.recovery->stage == Recovery::Stage::kEntering;
  // What follows is of a loss, and counts as one.
  const bool turns = !begins && job.recovery->by_choice && !by_choice;
  if (!by_choice && (begins || turns) && BudgetIsSpent(job, now_))
    return FailOfBudget(job, std::move(cause));
  if (begins) AwaitQuiet(job, cause);
  NoteLost(job, cause, lost);
  job.returning.clear();
  Recovery& recovery = *job.recovery;
  const bool stood = recovery.cause.kind == FailureKind::kNoProgress && !lost.empty();
  if (stood || turns) recovery.cause = cause;
  for (const int32_t rank : lost) {
    recovery.spared.erase(rank);
    // Who came anew, and is not asked for what a process of before kept, has nothing to say.
    const bool is_new = recovery.back.erase(rank) != 0 && !recovery.awaited.contains(rank);
    recovery.awaited.erase(rank);
    const bool has_said = recovery.quiets.erase(rank) != 0;
    const bool may_live = MayLive(cause.kind) && !run.ranks[static_cast<size_t>(rank)].exited;
    if (!has_said && !is_new && may_live) recovery.silent.insert(rank);
  }
  recovery.lost.insert(lost.begin(), lost.end());
  recovery.stage = Recovery::Stage::kPlanning;
  recovery.beside = recovery.paces = false;
  recovery.by_choice = by_choice;
  recovery.tried.clear();
  run.EndRecovering();
  Commit(job, EventRecorded{cause.rank < 0 ? std::string(job::ToString(cause.kind)) : "RankFailed",
                            cause.message, job.state.epoch});
  DropPlanning(job);
  DropStandbyPlan(job);
  if (unpaces) return GoBackToPace(job);
  PlanWithoutLost(job);
}

void Coordinator::PlanWithoutLost(Job& job) {
  const Recovery& recovery = *job.recovery;
  std::optional<ComputePlan::Kept> kept;
  // State is where it was, and nobody has to leave there.
  if (recovery.by_choice && recovery.from != job.state.epoch && !recovery.back.empty())
    kept = {.layout = job.state.state_layout};
  OrderPlan(job, {.placement = *job.state.placement,
                  .layout = job.state.layout,
                  .lost = LostOfLayout(job),
                  .returned = SparesThatAreBack(nodes_, job),
                  .kept = std::move(kept)});
}

// Others that came back would have the work of ranks that have what nobody else has: all that did
// stay out, so that the layout is as it was.
void Coordinator::LeaveOutAllThatCameBack(Job& job) {
  Recovery& recovery = *job.recovery;
  for (const int32_t rank : std::exchange(recovery.back, {})) {
    recovery.spared.erase(rank);
    recovery.lost.insert(rank);
    const Team* team = job.run->TeamOfRank(rank);
    if (team == nullptr) continue;
    // Its process is of the epoch that is not to be.
    const auto prepared = job.prepared.find(team->node);
    if (prepared != job.prepared.end()) prepared->second.ranks.erase(rank);
  }
  PlanWithoutLost(job);
}

void Coordinator::OnRecoveryPlanned(Job& job, const absl::StatusOr<PlanSummary>& plan) {
  Recovery& recovery = *job.recovery;
  const plan::RankList back = std::exchange(job.returning, {});
  const bool may_stay = recovery.by_choice && back.empty() && !recovery.back.empty();
  if (absl::IsDataLoss(plan.status()) && may_stay) return LeaveOutAllThatCameBack(job);
  if (!plan.ok()) RefuseLoans(job, back, plan.status());
  if (!plan.ok() && IsSaving(job)) return EndSaving(job, std::string(plan.status().message()));
  if (!plan.ok() && job.state.request->waits) return WaitForLost(job, plan.status());
  for (const Rank rank : back) {
    // Whatever may live of it is on another device.
    const bool is_lent = job.loans.contains(rank.value);
    if (is_lent && plan.ok() && IsLost(plan->layout, rank)) continue;  // another place has that
    if (recovery.lost.erase(rank.value) != 0) {
      recovery.back.insert(rank.value);
      if (is_lent) recovery.spared.insert(rank.value);
    }
    if (recovery.silent.erase(rank.value) != 0 && !is_lent) recovery.awaited.insert(rank.value);
  }
  if (!plan.ok()) {
    return FailOnceTold(job, recovery.cause,
                        absl::StrCat("what is left cannot go on: ", plan.status().message()));
  }
  NoteSpared(*job.recovery, plan->layout.lost);
  std::string standby = StandbyFor(job, *plan);
  job.standby = {};
  if (plan->needs_copies && MayTakeCopiesAtOnce(nodes_, job)) {
    recovery = {.goes_back = true,
                .from_copies = true,
                .cause = recovery.cause,
                .since = recovery.since,
                .lost = recovery.lost};
    return AssignFromCopies(job, *plan, std::move(standby));
  }
  const Epoch left = job.state.epoch;
  const Run before = *std::exchange(job.run, MakeRun(plan->layout));
  job.run->KeepStartsAgain(before);
  WatchEnd(job);
  job.run->data_digest = plan->layout.data_digest;
  Commit(job, EpochPlanned{.layout = plan->layout,
                           .plan_digest = plan->digest,
                           .checkpoint = job.state.checkpoint,
                           .host_memory = plan->host_memory,
                           .state_epoch = recovery.from,
                           .standby = std::move(standby),
                           .beside = recovery.beside,
                           .ends = IsSaving(job),
                           .by_choice = recovery.by_choice});
  TellNotes(job, *plan);
  GiveBackDevices(job, before, left);
  ChargeNodes(job);
  recovery.stage = Recovery::Stage::kLeaving;
  AssignAll(job);
  NotePlanned(job, *plan);
  SetDeadline(job, job.run->quiet_deadline, QuietTimeout(nodes_, job, options_));
  CheckQuiet(job);
}

void Coordinator::OnReport(Job& job, int32_t rank, const RankQuiet& report) {
  if (job.state.IsTerminal()) return;
  if (!job.recovery.has_value() || job.recovery->stage == Recovery::Stage::kEntering ||
      job.recovery->from_copies) {
    job.run->quiets[rank] = report;
    // Who was ready knows of no state of before.
    const bool stepped = report.known.step() > job.state.BegunBehind();
    if (stepped && job.run->ranks[static_cast<size_t>(rank)].ready) MarkRunning(job);
    return;
  }
  Recovery& recovery = *job.recovery;
  if (recovery.beside) NotePause(job);
  if (recovery.silent.erase(rank) != 0 && report.context_ok) recovery.quiets[rank] = report;
  if (recovery.awaited.erase(rank) == 0) return;
  if (!report.context_ok) {
    return OnFailure(
        job, CauseOf(now_, job, rank, FailureKind::kDeviceFailed,
                     absl::StrCat("rank ", rank, ": its device has not done what it was given")));
  }
  recovery.quiets[rank] = report;
  CheckQuiet(job);
}

void Coordinator::CheckQuiet(Job& job) {
  Recovery& recovery = *job.recovery;
  if (recovery.stage != Recovery::Stage::kLeaving || !recovery.awaited.empty()) return;
  if (job.run->failing.has_value()) return;
  const bool nobody_knows =
      std::none_of(recovery.quiets.begin(), recovery.quiets.end(),
                   [](const auto& quiet) { return quiet.second.known.decision.has_value(); });
  for (auto& [rank, quiet] : recovery.quiets) ForgetBefore(recovery.from, quiet);
  const absl::StatusOr<EpochStart> start = Settle(recovery.quiets, job.decided);
  if (!start.ok()) {
    return FailOnceTold(
        job, recovery.cause,
        absl::StrCat("where training stands is not known: ", start.status().message()));
  }
  // Nobody is left who knows of a step, and there were some: nor is there any state of them.
  const bool forgotten = !start->decision.has_value() && job.last_step.has_value() &&
                         job.last_step->epoch == recovery.from;
  // To begin behind what was reported would give up later steps of which there may be copies.
  const bool in_copies = nobody_knows && start->decision.has_value() && MayTakeCopies(nodes_, job);
  if (forgotten || in_copies) {
    const int64_t step = forgotten ? job.last_step->step : start->step();
    return OnFailure(job, {.kind = FailureKind::kStateLost,
                           .message = absl::StrCat("nobody is left who knows of step ", step),
                           .time = now_});
  }
  const int32_t stalls_max = job.state.request->budget.without_progress;
  const bool stalls = !Progresses(job.state, *start) && job.state.without_progress >= stalls_max;
  if (stalls && !job.state.ends && !recovery.by_choice) {
    return FailOnceTold(
        job, recovery.cause,
        absl::StrCat("no step was decided since the recovery before, ", stalls_max,
                     " times in a row, which is all that recovery.budget.without_progress allows"));
  }
  recovery.stage = Recovery::Stage::kEntering;
  recovery.entered = true;
  job.run->quiet_deadline = absl::InfiniteFuture();
  Commit(job, EpochBegan{job.state.epoch, *start});
  NoteDecided(job, *start);
  for (const Team& team : job.run->teams) TellBegin(job, team);
  NoteBegan(job, start->step());
  SetDeadline(job, job.run->start_deadline, options_.start_timeout);
}

void Coordinator::TellBegin(const Job& job, const Team& team) {
  if (job.state.from_copies) return TellBeginWithCopies(job, team);
  const auto node = nodes_.find(team.node);
  if (node == nodes_.end()) return;
  // Also where no rank of the epoch is: its daemon keeps reports of the one before until then.
  if (!job.run->HasWork(team) && !node->second.connected()) return;
  Tell(job, NodeCommand{team.node, node->second.incarnation,
                        BeginEpoch{.job = job.state.id,
                                   .epoch = job.state.epoch,
                                   .start = *job.state.start,
                                   .ends = job.state.ends}});
}

// An order may have been lost with a coordinator before this one.
void Coordinator::TellBeginAgain(const Node& node) {
  for (JobId id : active_) {
    const Job& job = jobs_.at(id);
    const Team* team = job.run->TeamOf(node.name);
    if (team != nullptr && !job.state.IsTerminal() && job.state.start.has_value())
      TellBegin(job, *team);
  }
}

void Coordinator::OnQuietDeadline(Job& job) {
  if (job.recovery->from_copies) return LeaveOutKeepers(job);
  if (job.recovery->beside) return OnConnectDeadline(job);
  const std::set<int32_t> silent = job.recovery->awaited;
  // Where nobody got any further, who cannot leave is why.
  const bool hangs = job.recovery->cause.kind == FailureKind::kNoProgress;
  job.run->quiet_deadline = absl::InfiniteFuture();
  for (const int32_t rank : silent) {
    if (job.state.IsTerminal() || !job.recovery.has_value()) return;
    const bool heard = IsHeard(nodes_, *job.run, rank, now_, options_);
    const bool hung = hangs || heard;
    OnFailure(job,
              CauseOf(now_, job, rank, hung ? FailureKind::kRankHung : FailureKind::kPeerLost,
                      absl::StrCat("rank ", rank, " has not left epoch ", job.recovery->from.value,
                                   " within ", absl::FormatDuration(options_.quiet_timeout),
                                   heard   ? ", and its node is heard: it stands still"
                                   : hangs ? ""
                                           : ", nor is its node heard")));
    // Its process may live, and say so later.
    if (hung && job.recovery.has_value() && job.recovery->lost.contains(rank))
      job.recovery->silent.insert(rank);
  }
}

// Who was to make room trains on and is no loss: it is told to stop for a layout as there was. Who
// was to come back stays out.
void Coordinator::OnConnectDeadline(Job& job) {
  const std::set<int32_t> back = job.recovery->back;
  job.run->quiet_deadline = absl::InfiniteFuture();
  if (back.empty()) {
    return OnFailure(job, {.kind = FailureKind::kPeerLost,
                           .message = absl::StrCat("not all ranks were connected within ",
                                                   absl::FormatDuration(options_.connect_timeout)),
                           .time = now_});
  }
  for (const int32_t rank : back) {
    if (job.state.IsTerminal() || !job.recovery.has_value()) return;
    OnFailure(job,
              CauseOf(now_, job, rank, FailureKind::kPeerLost,
                      absl::StrCat("rank ", rank, ", which was back, was not connected within ",
                                   absl::FormatDuration(options_.connect_timeout))));
  }
}

void Coordinator::LoseUnreadyRanks(Job& job) {
  job.run->start_deadline = absl::InfiniteFuture();
  std::vector<int32_t> unready;
  for (size_t rank = 0; rank < job.run->ranks.size(); ++rank) {
    const RankState& state = job.run->ranks[rank];
    if (state.used && !state.ready) unready.push_back(static_cast<int32_t>(rank));
  }
  for (const int32_t rank : unready) {
    if (job.state.IsTerminal() || !job.recovery.has_value()) return;
    OnFailure(job, CauseOf(now_, job, rank, FailureKind::kRankHung,
                           absl::StrCat("rank ", rank, " is not ready ",
                                        absl::FormatDuration(options_.start_timeout),
                                        " after it was told from where training goes on")));
  }
}

void Coordinator::CheckRecovered(Job& job) {
  Recovery& recovery = *job.recovery;
  Run& run = *job.run;
  if (recovery.stage != Recovery::Stage::kEntering) return;
  if (!run.AllReady()) return;
  run.start_deadline = absl::InfiniteFuture();
  NoteResumed(job);
  std::erase_if(job.lost_again, [&recovery](const auto& again) {
    return recovery.back.contains(again.first.first);
  });
  // What is lost still may be lent for, and what is not gives back.
  if (!reserved_.empty() || !job.loans.empty()) capacity_changed_ = true;
  job.copies_with = DaemonsOf(nodes_, job);
  NoteTrains(job);
  job.recovery.reset();
  if (!job.state.ending.has_value()) return;
  WatchEnd(job);
  for (const Team& team : run.teams) TellWish(job, team);
}

void Coordinator::ResumeRecovery(Job& job) {
  if (job.state.from_copies) return ResumeFromCopies(job);
  if (!job.state.goes_on() || job.state.start.has_value()) return;
  Recovery& recovery = job.recovery.emplace(
      Recovery{.stage = Recovery::Stage::kLeaving, .from = job.state.state_epoch, .since = now_});
  recovery.cause = {.kind = FailureKind::kRanksLost,
                    .message = "ranks were lost before this coordinator started",
                    .time = now_};
  for (Rank rank : job.state.layout->lost) recovery.lost.insert(rank.value);
  if (job.incident.has_value()) recovery.cause = job.incident->cause;
  recovery.beside = job.state.beside;
  recovery.by_choice = job.state.by_choice || job.state.beside;  // of a release before
  recovery.paces = recovery.beside && job.state.layout->lost == job.state.state_layout->lost;
  job.run->ready_known = 0;
  const Run before = MakeRun(*job.state.state_layout);
  for (size_t i = 0; i < job.run->ranks.size(); ++i) {
    const auto rank = static_cast<int32_t>(i);
    job.run->ranks[i].ready = false;
    const bool stays = HasStayed(before, *job.run, rank);
    if (stays) recovery.awaited.insert(rank);
    if (!stays && HasWork(*job.run, rank)) recovery.back.insert(rank);
  }
  SetDeadline(job, job.run->quiet_deadline, QuietTimeout(nodes_, job, options_));
}

}  // namespace phalanx::coordinator
