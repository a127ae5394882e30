// Ends before a job's last step: it has run for as long as it may, it leaves its devices, or it is
// cancelled with a checkpoint. Its ranks are told, agree on one step, write a checkpoint of it and
// have succeeded early; once that is published, or cannot be, the job ends.
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
  const int64_t step = run.ended_step;
  const std::string ended = absl::StrCat("it ended with step ", step, of_steps);
  if (last.has_value() && last->step == step)
    return absl::StrCat(ended, ", checkpoint ", last->path);
  std::string why = "no rank has reported a part of it";
  if (state.unpublished.has_value() && state.unpublished->step == step) {
    why = state.unpublished->error;
  } else if (absl::StrContains(run.part_failed, absl::StrCat(": step ", step, ": "))) {
    why = run.part_failed;
  } else if (state.publishing.has_value() && state.publishing->step == step) {
    why = absl::StrCat("rank ", state.publishing->rank, " has not published it");
  } else if (const auto written = run.written.find(step); written != run.written.end()) {
    why = MissingParts(nodes, run, written->second);
  }
  return absl::StrCat(ended, ", without a checkpoint: ", why, last_one);
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

void Coordinator::EndEarly(Job& job, const EndWished& wish) {
  EndAs(job, wish, HowItEnds(nodes_, job, options_.end_grace));
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
