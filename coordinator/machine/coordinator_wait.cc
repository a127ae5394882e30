// Where what is left of a job cannot go on by itself: it waits for what is lost, and goes back to
// its last checkpoint, or its beginning, where state is lost.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "coordinator/machine/coordinator.h"
#include "coordinator/machine/job_nodes.h"

namespace phalanx::coordinator {
namespace {

// At the end of a hold: what is left may hold all of the state between the last checkpoint and the
// last step, and writes another one before its devices are free.
bool MaySave(const LiveJob& job) {
  // What goes back has lost state.
  if (!MayEndWithCheckpoint(job) || !job.recovery.has_value() || job.recovery->goes_back)
    return false;
  const std::optional<CheckpointSource> last = LastCheckpoint(job);
  return StepsSince(job, last.has_value() ? last->step : 0) > 0;
}

}  // namespace

void Coordinator::WaitForLost(Job& job, const absl::Status& why) {
  job.recovery->stage = Recovery::Stage::kWaiting;
  NoteWaiting(job);
  if (job.run->hold_deadline == absl::InfiniteFuture()) BeginHold(job, why);
  Publish(job);
  if (!reserved_.empty()) capacity_changed_ = true;  // it may be lent what it waits for
  ConsiderReturn(job);
}

void Coordinator::BeginHold(Job& job, const absl::Status& why) {
  const absl::Duration hold = job.state.request->hold;
  if (job.held_since.has_value()) {  // by the coordinator before, and nodes have still to come
    const Instant over = *std::exchange(job.held_since, std::nullopt) + hold;
    return SetDeadline(job, job.run->hold_deadline,
                       std::max(options_.heartbeat_timeout, over - now_));
  }
  SetDeadline(job, job.run->hold_deadline, hold);
  Commit(job, EventRecorded{kWaiting,
                            absl::StrCat("what is left cannot go on: ", why.message(),
                                         "; the job waits up to ", absl::FormatDuration(hold),
                                         " for ", LostText(*job.recovery)),
                            job.state.epoch});
  TellVerdict(job);
}

void Coordinator::GoOnWith(Job& job, const plan::RankList& back) {
  Recovery& recovery = *job.recovery;
  std::set<int32_t> there;
  for (const Rank rank : back) there.insert(rank.value);
  if (there == recovery.tried) return;
  recovery.tried = there;
  recovery.stage = Recovery::Stage::kPlanning;
  const plan::RankList& without = job.state.layout->lost;
  const auto is_without = [&](Rank rank) {
    return std::find(without.begin(), without.end(), rank) != without.end();
  };
  plan::RankList gone, returned;
  // One that returns on another device is both.
  const auto is_lent = [&job](Rank rank) { return job.loans.contains(rank.value); };
  for (const int32_t rank : recovery.lost) {
    if (is_without(Rank{rank})) continue;
    if (!there.contains(rank) || is_lent(Rank{rank})) gone.push_back(Rank{rank});
  }
  std::copy_if(back.begin(), back.end(), std::back_inserter(returned),
               [&](Rank rank) { return is_without(rank) || is_lent(rank); });
  // On another device a place has nothing of what may still be where it was.
  plan::RankList stateless;
  if (!recovery.goes_back && std::any_of(back.begin(), back.end(), is_lent)) {
    for (const int32_t rank : recovery.lost) stateless.push_back(Rank{rank});
  }
  job.returning = back;
  OrderPlan(job, {.placement = *job.state.placement,
                  .layout = job.state.layout,
                  .lost = std::move(gone),
                  .returned = std::move(returned),
                  .stateless = std::move(stateless)});
}

void Coordinator::OnHoldDeadline(Job& job) {
  job.run->hold_deadline = absl::InfiniteFuture();
  const bool leaves = Leaves(job);
  if (job.state.ending.has_value() && !leaves) return;  // as wished, once the grace is over
  if (!leaves && BudgetIsSpent(job, now_))
    return FailOfBudget(job, job.recovery.has_value() ? job.recovery->cause : FailureCause{});
  if (!MaySave(job)) return EndHold(job, "");
  EndWished wish = leaves ? job.state.ending->wish : EndWished{.queues = true};
  wish.lost.clear();
  for (const int32_t rank : job.recovery->lost) wish.lost.push_back(Rank{rank});
  Commit(job, std::move(wish));
  WatchEnd(job);
  PlanSaving(job);
}

void Coordinator::PlanSaving(Job& job) {
  job.returning.clear();
  job.recovery->stage = Recovery::Stage::kPlanning;
  DropPlanning(job);
  OrderPlan(
      job,
      {.placement = *job.state.placement, .layout = job.state.layout, .lost = LostOfLayout(job)});
}

// The hold was over, and its plan went with the coordinator before this one.
void Coordinator::ResumeSaving(Job& job) {
  if (!IsSaving(job) || job.state.ends) return;
  if (!job.recovery.has_value()) {
    Recovery& recovery = job.recovery.emplace(Recovery{.from = job.state.epoch, .since = now_});
    recovery.cause = {.kind = job::FailureKind::kRanksLost,
                      .message = "ranks were lost before this coordinator started",
                      .time = now_};
    if (job.incident.has_value()) recovery.cause = job.incident->cause;
    for (size_t i = 0; i < job.run->ranks.size(); ++i) {
      if (job.run->ranks[i].used) recovery.awaited.insert(static_cast<int32_t>(i));
    }
  }
  // Otherwise they were on their way to an epoch that cannot begin without what was lost then.
  for (const Rank rank : job.state.ending->lost) {
    job.recovery->lost.insert(rank.value);
    job.recovery->awaited.erase(rank.value);
    job.recovery->back.erase(rank.value);
  }
  job.run->EndRecovering();
  PlanSaving(job);
}

void Coordinator::EndSaving(Job& job, const std::string& how) {
  EndAs(job, job.state.ending->wish, how.substr(0, how.find('\n')));  // no process's log
}

void Coordinator::EndHold(Job& job, const std::string& how) {
  const std::optional<JobState::Ending>& ending = job.state.ending;
  if (ending.has_value() && ending->wish.queues && !ending->wish.AfterHold())
    return LeaveDevices(job, how);
  const std::string hold = absl::FormatDuration(job.state.request->hold);
  if (const auto step = StepToGoBackTo(job); step.has_value()) {
    std::string reason = absl::StrCat("not enough came back within ", hold,
                                      ": its devices are free, and it waits for others, to go on "
                                      "behind step ",
                                      *step);
    if (const int64_t lost = StepsSince(job, *step); lost > 0) {
      absl::StrAppend(&reason, "; ", lost, lost == 1 ? " step" : " steps", " since are done again",
                      how.empty() ? "" : absl::StrCat(": ", how));
    }
    return QueueAgain(job, reason);
  }
  FailureCause cause;
  if (job.incident.has_value()) cause = job.incident->cause;
  if (job.recovery.has_value()) cause = job.recovery->cause;
  AddReason(absl::StrCat("what is left cannot go on, not enough came back within ", hold,
                         ", and there is no checkpoint to start again from",
                         how.empty() ? "" : absl::StrCat(": ", how)),
            cause.message);
  Fail(job, std::move(cause));
}

void Coordinator::QueueAfterLoss(Job& job, FailureCause cause) {
  // What has never trained has recovered from nothing, also where `total` is 0.
  if (job.state.trained && BudgetIsSpent(job, now_)) return FailOfBudget(job, std::move(cause));
  // What takes long to fail never spends that.
  const int32_t starts_max = job.state.request->budget.without_progress;
  if (job.state.failed_starts >= starts_max) {
    AddReason(absl::StrCat(starts_max,
                           " starts before it failed, too, which is all that "
                           "recovery.budget.without_progress allows"),
              cause.message);
    return Fail(job, std::move(cause));
  }
  const int64_t left = CapacityFor(nodes_, *job.state.request);
  if (!job.state.trained && !job.state.request->waits && left < job.state.request->devices) {
    AddReason(
        absl::StrCat("it needs ", job.state.request->devices, " devices, nodes that match have ",
                     left, ", and without `wait` in its recovery.ladder it waits for no others"),
        cause.message);
    return Fail(job, std::move(cause));
  }
  Commit(job, EventRecorded{cause.rank < 0 ? std::string(job::ToString(cause.kind)) : "RankFailed",
                            cause.message, job.state.epoch});
  const Team* team = job.run->TeamOfRank(cause.rank);
  const auto node = team == nullptr ? nodes_.end() : nodes_.find(team->node);
  if (cause.kind == job::FailureKind::kDeviceFailed && node != nodes_.end())
    node->second.failed_devices.insert(team->DeviceOf(cause.rank));
  const std::vector<std::string> lines = absl::StrSplit(cause.message, absl::MaxSplits('\n', 1));
  const auto blamed = nodes_.find(cause.node);
  if (cause.kind == job::FailureKind::kPrepareFailed && blamed != nodes_.end())
    RestUnfit(blamed->second, lines.front());
  QueueAgain(job,
             absl::StrCat(lines.front(),
                          job.state.trained ? " before it trained again" : " before it trained",
                          ": it waits for devices"));
}

void Coordinator::WaitForState(Job& job, FailureCause cause) {
  Commit(job,
         EventRecorded{std::string(job::ToString(cause.kind)), cause.message, job.state.epoch});
  Recovery next{.goes_back = true, .from_copies = true, .cause = std::move(cause), .since = now_};
  if (job.recovery.has_value()) {
    next.since = job.recovery->since;
    next.lost = job.recovery->lost;
  }
  const plan::RankList& began_without = job.state.request->lost;
  for (const Rank rank : job.state.layout->lost) {
    if (std::find(began_without.begin(), began_without.end(), rank) == began_without.end())
      next.lost.insert(rank.value);
  }
  job.recovery = std::move(next);
  NoteVerdict(job, job.recovery->cause);
  job.returning.clear();
  job.run->EndJudging();
  job.run->EndRecovering();
  DropPlanning(job);
  const std::string why = job.recovery->cause.message;
  WaitForLost(job, absl::FailedPreconditionError(why));
}

void Coordinator::QueueAgain(Job& job, const std::string& reason, bool in_order) {
  job.recovery.reset();
  StoreLastStep(job);
  CloseIncident(job, reason);
  TellIncidents(job);
  Commit(job, PhaseChanged{job::JobPhase::kQueued, reason, std::nullopt, in_order});
  DropPlanning(job);
  GiveUpLoans(job);
  job.decided.reset();
  job.held_since.reset();
  job.returning.clear();
  job.prepared.clear();
  job.lost_again.clear();
  job.copies_with.clear();
  job.exits_awaited.clear();
  job.reporter = -1;
  for (const Team& team : job.run->teams) {
    if (team.released) continue;
    FreeDevices(job, team.node, team.devices);
    const auto node = nodes_.find(team.node);
    if (!team.assigned || node == nodes_.end() || !node->second.connected()) continue;
    // Nothing else runs there before they are gone.
    node->second.foreign.insert({job.state.id, job.state.epoch});
    Tell(job, NodeCommand{team.node, node->second.incarnation,
                          StopRanks{.job = job.state.id,
                                    .epoch = job.state.epoch,
                                    .grace = options_.failure_grace,
                                    .reason = reason}});
  }
  active_.erase(job.state.id);
  run_agenda_.Forget(job.state.id);
  job.run.reset();
  NoteCharge(job);
  Enqueue(job);
  capacity_changed_ = true;
}

void Coordinator::GoBack(Job& job, FailureCause cause) {
  const bool from_copies = MayTakeCopies(nodes_, job);
  if (job.recovery.has_value() && job.recovery->goes_back &&
      job.recovery->from_copies == from_copies) {
    return;  // said by the others, too
  }
  if (BudgetIsSpent(job, now_)) return FailOfBudget(job, std::move(cause));
  Commit(job,
         EventRecorded{std::string(job::ToString(cause.kind)), cause.message, job.state.epoch});
  Recovery next{
      .goes_back = true, .from_copies = from_copies, .cause = std::move(cause), .since = now_};
  if (job.recovery.has_value()) {
    next.since = job.recovery->since;
    next.lost = job.recovery->lost;
    next.back = job.recovery->back;
    next.spared = job.recovery->spared;
  }
  job.recovery = std::move(next);
  NoteVerdict(job, job.recovery->cause);
  OrderGoBack(job);
}

// Ranks are lost on the way: what they had is not asked for.
void Coordinator::GoBackWithout(Job& job, FailureCause cause, std::set<int32_t> lost) {
  Recovery& recovery = *job.recovery;
  std::erase_if(lost, [&](int32_t rank) { return recovery.lost.contains(rank); });
  // Ranks that do not find each other try again in another epoch.
  const bool apart = recovery.stage >= Recovery::Stage::kLeaving && cause.rank < 0 &&
                     cause.kind == job::FailureKind::kPeerLost;
  if (lost.empty() && !apart) return;
  if (apart) lost = recovery.back;  // as StartRecovery
  if (apart && lost.empty() && ++recovery.tries > kTriesMax)
    return FailApart(job, std::move(cause));
  if (recovery.stage == Recovery::Stage::kEntering && BudgetIsSpent(job, now_))
    return FailOfBudget(job, std::move(cause));
  NoteLost(job, cause, lost);
  for (const int32_t rank : lost) {
    recovery.back.erase(rank);
    recovery.spared.erase(rank);
  }
  recovery.lost.insert(lost.begin(), lost.end());
  Commit(job, EventRecorded{"RankFailed", cause.message, job.state.epoch});
  OrderGoBack(job);
}

void Coordinator::OrderGoBack(Job& job) {
  Recovery& recovery = *job.recovery;
  recovery.stage = Recovery::Stage::kPlanning;
  recovery.tried.clear();
  job.returning.clear();
  job.run->EndJudging();
  job.run->EndRecovering();
  DropPlanning(job);
  OrderPlan(job, {.placement = *job.state.placement,
                  .layout = job.state.layout,
                  .lost = LostOfLayout(job),
                  .returned = SparesThatAreBack(nodes_, job)});
}

// The checkpoint that training goes back to is gone or damaged: the one before it may be sound.
// False: there is none, or nobody goes back.
bool Coordinator::PassOver(Job& job, const FailureCause& cause) {
  const std::optional<CheckpointSource>& from = job.state.checkpoint;
  const std::optional<PublishedCheckpoint>& last = job.state.last_checkpoint;
  if (!MayGoBack(job) || !job.recovery.has_value() || !job.recovery->goes_back) return false;
  if (job.recovery->from_copies || !from.has_value() || !last.has_value()) return false;
  const bool passed = last->path != from->path;  // or a newer one was published meanwhile
  if (job.recovery->stage != Recovery::Stage::kEntering) return passed;  // said by others, too
  if (!passed && job.state.earlier_checkpoints.empty()) return false;
  if (BudgetIsSpent(job, now_)) {
    FailOfBudget(job, cause);
    return true;
  }
  if (!passed) {
    const std::string what = cause.message.substr(0, cause.message.find('\n'));
    Commit(job, EventRecorded{kCheckpointGivenUp,
                              absl::StrCat(what, "; training goes back to the one before, of step ",
                                           job.state.earlier_checkpoints.back().step),
                              job.state.epoch});
  }
  OrderGoBack(job);
  return true;
}

void Coordinator::OnGoBackPlanned(Job& job, const absl::StatusOr<PlanSummary>& plan) {
  const plan::RankList back = std::exchange(job.returning, {});
  if (!plan.ok()) RefuseLoans(job, back, plan.status());
  if (!plan.ok() && job.state.request->waits) return WaitForLost(job, plan.status());
  if (!plan.ok()) {
    return FailOnceTold(job, job.recovery->cause,
                        absl::StrCat("what is left cannot go on: ", plan.status().message()));
  }
  const plan::RankList& gone = plan->layout.lost;
  for (const Rank rank : back) {
    // Another place has what was lent to it.
    if (job.loans.contains(rank.value) && std::find(gone.begin(), gone.end(), rank) != gone.end())
      continue;
    if (job.recovery->lost.erase(rank.value) == 0) continue;
    job.recovery->back.insert(rank.value);
    if (job.loans.contains(rank.value)) job.recovery->spared.insert(rank.value);
  }
  NoteSpared(*job.recovery, plan->layout.lost);
  if (job.recovery->from_copies) return AssignFromCopies(job, *plan);
  const Epoch left = job.state.epoch;
  if (job.recovery->left == Epoch{}) job.recovery->left = left;
  const Run before = *std::exchange(job.run, MakeRun(plan->layout));
  job.run->KeepStartsAgain(before);
  WatchEnd(job);
  job.run->data_digest = plan->layout.data_digest;
  job.decided.reset();
  Commit(job, EpochPlanned{.layout = plan->layout,
                           .plan_digest = plan->digest,
                           .checkpoint = LastCheckpoint(job),
                           .host_memory = plan->host_memory});
  GiveBackDevices(job, before, left);
  ChargeNodes(job);
  job.recovery->stage = Recovery::Stage::kEntering;
  AssignAll(job);
  NotePlanned(job, *plan);
  NoteBegan(job, job.state.FirstStep());
}

}  // namespace phalanx::coordinator
