// Ends before a job's last step: it has run for as long as it may, it leaves its devices, or it is
// cancelled with a checkpoint. Its ranks are told, agree on one step, write a checkpoint of it and
// have succeeded early; once that is published, or cannot be, the job ends. One that was to go on
// later, and whose state cannot be saved, stays on its devices and trains on.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/machine/coordinator.h"
#include "coordinator/machine/job_nodes.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using job::JobPhase;

// There is a checkpoint of the step that its ranks have ended with.
bool HasSaved(const LiveJob& job) {
  const std::optional<PublishedCheckpoint>& last = job.state.last_checkpoint;
  return last.has_value() && last->step == job.run->ended_step;
}

std::string WhyNotSaved(const NodeTable& nodes, const LiveJob& job) {
  const JobState& state = job.state;
  const Run& run = *job.run;
  const int64_t step = run.ended_step;
  if (state.unpublished.has_value() && state.unpublished->step == step)
    return state.unpublished->error;
  if (absl::StrContains(run.part_failed, absl::StrCat(": step ", step, ": ")))
    return run.part_failed;
  if (state.publishing.has_value() && state.publishing->step == step)
    return absl::StrCat("rank ", state.publishing->rank, " has not published it");
  const auto written = run.written.find(step);
  if (written != run.written.end()) return MissingParts(nodes, run, written->second);
  return "no rank has reported a part of it";
}

// Of the checkpoint that the job ended with: the only rank that has not reported its part; -1: it
// is not one alone.
int32_t SlowestWriter(const LiveJob& job) {
  const Run& run = *job.run;
  const auto written = run.written.find(run.ended_step);
  if (written == run.written.end()) return -1;
  const std::vector<int32_t> missing = RanksMissing(run, written->second);
  return missing.size() == 1 ? missing.front() : -1;
}

// With work, and no process any more, or on a node that is lost.
std::vector<int32_t> RanksGone(const NodeTable& nodes, const Run& run) {
  std::vector<int32_t> gone;
  for (const Team& team : run.teams) {
    const auto node = nodes.find(team.node);
    const bool lost = node == nodes.end() || node->second.lost;
    for (const int32_t rank : team.ranks) {
      const RankState& state = run.ranks[static_cast<size_t>(rank)];
      if (state.used && (lost || state.exited)) gone.push_back(rank);
    }
  }
  return gone;
}

// Some of it at least: workers that are stopping end their ranks soon.
bool MayTrainOn(const NodeTable& nodes, const LiveJob& job) {
  const Run& run = *job.run;
  const auto stops = [&](const Team& team) {
    const auto node = nodes.find(team.node);
    return run.HasWork(team) && node != nodes.end() && node->second.draining;
  };
  const auto stays = [&](const Team& team) { return run.HasWork(team) && !stops(team); };
  if (MayRecover(job)) return std::any_of(run.teams.begin(), run.teams.end(), stays);
  return RanksGone(nodes, run).empty() && std::none_of(run.teams.begin(), run.teams.end(), stops);
}

// What there is of the checkpoint that it was to end with, in `grace`.
std::string HowItEnds(const NodeTable& nodes, const LiveJob& job, absl::Duration grace) {
  const JobState& state = job.state;
  const Run& run = *job.run;
  const std::string of_steps = absl::StrCat(" of ", state.request->steps);
  if (state.phase != JobPhase::kRunning) return "it had not begun to train";
  if (!state.request->checkpoints) {
    return absl::StrCat("it had done ", job.last_step.has_value() ? job.last_step->step : 0,
                        of_steps, " steps and has no checkpoint section");
  }
  const std::optional<PublishedCheckpoint>& last = state.last_checkpoint;
  const std::string last_one =
      last.has_value() ? absl::StrCat("; the last one is ", last->path) : std::string();
  if (!run.Succeeded()) {
    return absl::StrCat("its ranks had not all ended ", absl::FormatDuration(grace),
                        " later, without a checkpoint of their last step", last_one);
  }
  const std::string ended = absl::StrCat("it ended with step ", run.ended_step, of_steps);
  if (HasSaved(job)) return absl::StrCat(ended, ", checkpoint ", last->path);
  return absl::StrCat(ended, ", without a checkpoint: ", WhyNotSaved(nodes, job), last_one);
}

}  // namespace

void Coordinator::WatchEnd(Job& job) {
  const JobState& state = job.state;
  Instant& deadline = job.run->end_deadline;
  if (!state.ending.has_value()) {
    deadline = *state.counts_since + state.TimeLeft();
  } else {
    // Of who is to go on later no step may be lost: each layout that it leaves with has all of it.
    deadline = (Leaves(job) ? now_ : state.ending->since) + options_.end_grace;
  }
  run_agenda_.Note(state.id, deadline);
}

void Coordinator::OnEndDeadline(Job& job) {
  job.run->end_deadline = absl::InfiniteFuture();
  if (!job.state.ending.has_value()) return WishEnd(job, {.failure = FailureKind::kTimeLimit});
  const bool recovers = Leaves(job) && !IsSaving(job) && job.recovery.has_value();
  if (!recovers) return EndEarly(job, job.state.ending->wish);
  if (job.recovery->stage == Recovery::Stage::kWaiting) return OnHoldDeadline(job);
  WatchEnd(job);  // a recovery has deadlines of its own
}

void Coordinator::WishEnd(Job& job, EndWished wish) {
  // Who waits only for the last checkpoint of all has succeeded; and the first reason counts, but
  // that a job which is to wait in the queue may be cancelled, or after a hold end of any cause.
  const EndWished* before = job.state.ending.has_value() ? &job.state.ending->wish : nullptr;
  if (job.run->Succeeded() || (before != nullptr && !before->queues)) return;
  if (before != nullptr && !before->AfterHold() && wish.failure.has_value()) return;
  if (!MayEndWithCheckpoint(job)) return EndEarly(job, wish);
  Commit(job, std::move(wish));
  WatchEnd(job);
  for (const Team& team : job.run->teams) TellWish(job, team);
}

void Coordinator::TellWish(const Job& job, const Team& team) {
  const auto node = nodes_.find(team.node);
  if (node == nodes_.end()) return;
  Tell(job, NodeCommand{team.node, node->second.incarnation,
                        Wish{.job = job.state.id, .epoch = job.state.epoch}});
}

void Coordinator::TellWishAgain(const Node& node) {
  for (const JobId id : active_) {
    const Job& job = jobs_.at(id);
    const Team* team = job.run->TeamOf(node.name);
    if (job.state.IsTerminal() || !job.state.ending.has_value() || team == nullptr) continue;
    if (team->seen && !job.run->Succeeded(*team)) TellWish(job, *team);
  }
}

void Coordinator::EndDone(Job& job) {
  const JobState& state = job.state;
  const std::string done = absl::StrCat("all ranks have done ", state.request->steps, " steps");
  const bool trained = state.FirstStep() < state.request->steps;
  if (!state.request->checkpoints || !trained || HasSaved(job))
    return End(job, JobPhase::kSucceeded, done, std::nullopt, options_.cancel_grace);
  // Who was to publish it, say. The others have what they need to write it again, in an epoch that
  // does no step.
  if (!RanksGone(nodes_, *job.run).empty() && MayTrainOn(nodes_, job)) {
    if (!job.recovery.has_value()) TrainOn(job);
    return;
  }
  const std::optional<PublishedCheckpoint>& last = state.last_checkpoint;
  const std::string message =
      absl::StrCat(done, ", and there is no checkpoint of the last one: ", WhyNotSaved(nodes_, job),
                   last.has_value() ? absl::StrCat("; the last one is ", last->path) : "");
  End(job, JobPhase::kFailed, message,
      CauseOf(now_, job, SlowestWriter(job), FailureKind::kCheckpointUnavailable, message),
      options_.cancel_grace);
}

void Coordinator::EndEarly(Job& job, const EndWished& wish) {
  // Who was to go on later would lose what its ranks still have.
  const bool may_stay = Leaves(job) && !IsSaving(job) && job.run->Succeeded() && !HasSaved(job);
  if (may_stay && MayTrainOn(nodes_, job)) return StayUnsaved(job);
  EndAs(job, wish, HowItEnds(nodes_, job, options_.end_grace));
}

void Coordinator::StayUnsaved(Job& job) {
  const EndWished& wish = job.state.ending->wish;
  const std::string why = absl::StrCat(
      ReasonOf(wish, *job.state.request),
      ", and its state cannot be saved: ", WhyNotSaved(nodes_, job), "; it trains on",
      wish.suspends ? absl::StrCat(": phalanx suspend ", ToString(job.state.id), " asks again")
                    : absl::StrCat(", and is asked again after ",
                                   absl::FormatDuration(options_.save_retry_delay)));
  while (!job.run->written.empty()) GiveUpWritten(job, job.run->written.begin()->first);
  job.unsaved = now_;
  Commit(job, EventRecorded{kEndGivenUp, why, job.state.epoch});
  if (!job.recovery.has_value()) TrainOn(job);
}

// All ranks have ended before the last step, and nobody wishes it any more, or behind it without
// its checkpoint: as their places are, in another epoch.
void Coordinator::TrainOn(Job& job) {
  job.run->EndJudging();
  job.returning.clear();
  DropPlanning(job);
  DropStandbyPlan(job);
  AwaitQuiet(job, {.kind = FailureKind::kStartFailed, .message = "its state cannot be saved"});
  job.recovery->by_choice = true;
  for (RankState& rank : job.run->ranks) rank.succeeded = false;
  PlanWithoutLost(job);
  // Who was gone by then was not missed.
  for (const int32_t rank : RanksGone(nodes_, *job.run)) {
    if (job.state.IsTerminal() || !job.run.has_value()) return;
    OnFailure(job, CauseOf(now_, job, rank, FailureKind::kRankKilled,
                           absl::StrCat("rank ", rank,
                                        " has ended, or its node is lost, since it "
                                        "was done")));
  }
}

void Coordinator::EndAs(Job& job, EndWished wish, const std::string& how) {
  std::string reason = absl::StrCat(ReasonOf(wish, *job.state.request), "; ", how);
  while (!job.run->written.empty()) GiveUpWritten(job, job.run->written.begin()->first);
  if (wish.queues) return EndHold(job, how);
  if (!wish.failure.has_value())
    return End(job, JobPhase::kCancelled, std::move(reason), std::nullopt, options_.cancel_grace);
  OnFailure(job,
            {.kind = *wish.failure, .node = wish.node, .message = std::move(reason), .time = now_});
}

}  // namespace phalanx::coordinator
