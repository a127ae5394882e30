// Jobs that leave their devices in order: somebody suspends them, or a job of a larger priority
// needs what they have. Their ranks end at one step with a checkpoint (coordinator_early_end.cc),
// and they wait in the queue.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/coordinator.h"

namespace phalanx::coordinator {

using job::JobPhase;

void Coordinator::On(const SuspensionRequested& event) {
  Job* job = FindJob(event.job);
  if (job == nullptr) {
    actions_.push_back(AnswerJob{event.token, NoSuchJob(event.job)});
    return;
  }
  const bool changes = event.suspended != job->state.suspended;
  absl::Status refusal;
  if (job->state.IsTerminal()) {
    refusal = absl::FailedPreconditionError(
        absl::StrCat(ToString(event.job), " is ", job::ToString(job->state.phase),
                     "; only a job that has not ended is suspended or resumed: phalanx rerun ",
                     ToString(event.job), " submits it anew"));
  } else if (changes && event.suspended) {
    refusal = MaySuspend(*job);
  }
  if (!refusal.ok()) {
    actions_.push_back(AnswerJob{event.token, std::move(refusal)});
    return;
  }
  if (changes && event.suspended) {
    Suspend(*job, event.by);
  } else if (changes) {
    Commit(*job, SuspensionChanged{false, event.by});
    if (job->state.phase == JobPhase::kQueued) Enqueue(*job);
    capacity_changed_ = true;
  }
  Tell(*job, Action(AnswerJob{event.token,
                              std::make_shared<const JobView>(job->state.View(job->last_step))}));
}

void Coordinator::Suspend(Job& job, const std::string& by) {
  // Last of the records: a coordinator that dies between them has not answered, and has no job that
  // is suspended and goes on.
  if (job.state.phase == JobPhase::kRunning)
    WishEnd(job, {.queues = true, .suspends = true, .by = by});
  if (job.state.phase == JobPhase::kStarting)
    QueueAgain(job, absl::StrCat("suspended ", OnRequestOf(by)), /*in_order=*/true);
  Commit(job, SuspensionChanged{true, by});
  if (job.state.phase != JobPhase::kQueued) return;
  LeaveQueue(job);
  DropPlanning(job);
  Enqueue(job);  // among those that are suspended
}

void Coordinator::LeaveDevices(Job& job, const std::string& how) {
  std::string reason = ReasonOf(job.state.ending->wish, *job.state.request);
  const std::optional<CheckpointSource> from = LastCheckpoint(job);
  const int64_t step = from.has_value() ? from->step : 0;
  absl::StrAppend(&reason, ": it goes on behind step ", step,
                  job.state.suspended ? " once it is resumed" : " once it has devices again");
  if (const int64_t lost = StepsSince(job, step); lost > 0) {
    absl::StrAppend(&reason, "; ", lost, lost == 1 ? " step" : " steps",
                    " since are done again: ", how);
  }
  QueueAgain(job, reason, /*in_order=*/!IsSaving(job));  // a hold that was over is a loss
}

bool Coordinator::MayBeAsked(const Job& job) const {
  return now_ - job.unsaved >= options_.save_retry_delay;
}

// Who stayed since its state could not be saved is among those again that room is made of.
void Coordinator::ConsiderAsking(Job& job) {
  if (job.unsaved == absl::InfinitePast() || !MayBeAsked(job)) return;
  job.unsaved = absl::InfinitePast();
  capacity_changed_ = true;
}

void Coordinator::MakeRoomFor(const Job& job) {
  const JobRequest& request = *job.state.request;
  int64_t missing = request.devices;
  std::map<JobId, int64_t> held;
  for (const auto& [name, node] : nodes_) {
    if (!node.connected() || !node.MayTakeJobs() || !Matches(node, request)) continue;
    if (closed_.contains(name)) continue;  // what is free there is for those before it
    // Also where ranks of before are still ending: for what is free soon nobody else leaves.
    if (!node.suspect) missing -= node.UnheldDevices();
    for (const JobId holder : node.device_jobs) {
      if (holder != JobId{}) ++held[holder];
    }
  }
  std::vector<Preemptible> candidates;
  for (const auto& [id, devices] : held) {
    const Job& holder = jobs_.at(id);
    // They leave already, or have left.
    if (holder.state.IsTerminal() || holder.state.ending.has_value()) missing -= devices;
    const bool may_leave = MayEndWithCheckpoint(holder) && MaySuspend(holder).ok() &&
                           !holder.state.ending.has_value() && MayBeAsked(holder);
    if (!holder.state.request->preemptible || !may_leave) continue;
    if (holder.state.request->priority >= request.priority) continue;
    candidates.push_back({{holder.state.request->priority, id}, devices});
  }
  if (missing <= 0) return;
  for (const JobId id : WhoLeaves(missing, std::move(candidates)))
    WishEnd(jobs_.at(id), {.queues = true, .preempted_by = job.state.id});
}

}  // namespace phalanx::coordinator
