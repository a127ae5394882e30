// What users ask of whole jobs: submit, cancel, delete; and the archive of those that have ended.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/machine/coordinator.h"
#include "coordinator/machine/ended_job.h"
#include "coordinator/machine/job_nodes.h"

namespace phalanx::coordinator {

using job::JobPhase;

namespace {

std::string OwnerName(const std::string& owner) { return owner.empty() ? "nobody" : owner; }

}  // namespace

absl::Status Coordinator::CheckSubmit(const JobRequest& request, bool any_priority) const {
  const auto named = live_names_.find(request.name);
  if (named != live_names_.end()) {
    const std::string& owner = jobs_.at(named->second).state.request->owner;
    const bool own = owner == request.owner;  // who asks may not cancel another's
    return absl::AlreadyExistsError(
        absl::StrCat(ToString(named->second), own ? "" : " of ", own ? "" : OwnerName(owner),
                     " is named \"", request.name, "\" and has not ended; ",
                     own ? "cancel it or choose another name" : "choose another name"));
  }
  if (static_cast<int64_t>(live_names_.size()) >= options_.live_jobs_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat(live_names_.size(), " jobs have not ended; at most ", options_.live_jobs_max));
  }
  const int64_t bytes = RequestBytes(request);
  if (live_request_bytes_ + bytes > options_.live_request_bytes_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the documents of jobs that have not ended hold ", live_request_bytes_,
                     " bytes and this one has ", bytes, "; at most ",
                     options_.live_request_bytes_max, " in all"));
  }
  const auto held = owner_request_bytes_.find(request.owner);
  const int64_t held_bytes = held == owner_request_bytes_.end() ? 0 : held->second;
  if (!request.owner.empty() && held_bytes + bytes > options_.owner_request_bytes_max) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the documents of ", request.owner, "'s jobs that have not ended hold ", held_bytes,
        " bytes and this one has ", bytes, "; at most ", options_.owner_request_bytes_max,
        ": submit again when one of them has ended, or cancel one"));
  }
  return owners_.CheckSubmit(request, any_priority);
}

void Coordinator::On(const SubmitRequested& event) {
  const auto refuse = [&](absl::Status status) {
    actions_.push_back(AnswerJob{event.token, std::move(status)});
  };
  if (!event.request_id.empty()) {
    const auto known = request_ids_.find(event.request_id);
    if (known != request_ids_.end()) {
      Job& job = jobs_.at(known->second);
      if (!IsRepetition(*job.state.request, *event.request)) {
        return refuse(RequestIdReused(event.request_id, job.state.id));
      }
      return Tell(job, Action(AnswerJob{event.token, std::make_shared<const JobView>(
                                                         job.state.View(job.last_step))}));
    }
  }
  if (!event.refusal.ok() && !event.asks_only) return refuse(event.refusal);
  absl::Status fits = CheckSubmit(*event.request, event.any_priority);
  if (!fits.ok()) return refuse(std::move(fits));
  if (event.asks_only) return refuse(event.refusal);
  CountDocument(*event.request, RequestBytes(*event.request));
  const JobId id{++last_job_.value};
  Job& job = jobs_[id];
  job.state.id = id;
  if (!event.request_id.empty()) request_ids_.emplace(event.request_id, id);
  live_names_.emplace(event.request->name, id);
  Commit(job, JobSubmitted{event.request, event.request_id});
  Tell(job, Action(AnswerJob{event.token,
                             std::make_shared<const JobView>(job.state.View(job.last_step))}));
  Enqueue(job);
  LookFor(job);
}

void Coordinator::CountDocument(const JobRequest& request, int64_t bytes) {
  live_request_bytes_ += bytes;
  if ((owner_request_bytes_[request.owner] += bytes) == 0)
    owner_request_bytes_.erase(request.owner);
}

void Coordinator::On(const CancelRequested& event) {
  Job* job = FindJob(event.job);
  if (job == nullptr) {
    actions_.push_back(AnswerJob{event.token, NoSuchJob(event.job)});
    return;
  }
  if (event.checkpoint && MayEndWithCheckpoint(*job)) {
    WishEnd(*job, {.by = event.by});
  } else if (!job->state.IsTerminal()) {
    End(*job, JobPhase::kCancelled, absl::StrCat("cancelled ", OnRequestOf(event.by)), std::nullopt,
        options_.cancel_grace);
  }
  const auto view = std::make_shared<const JobView>(job->state.View(job->last_step));
  Tell(*job, Action(AnswerJob{event.token, job->state.IsTerminal() ? CancelEnded(view) : view}));
}

void Coordinator::On(const DeleteRequested& event) {
  Job* job = FindJob(event.job);
  if (job == nullptr) {
    actions_.push_back(DeleteEndedJob{event.token, event.job});
  } else if (job->state.IsTerminal()) {
    job->delete_requests.push_back(event.token);
    if (const Team* team = TeamOutOfReach(nodes_, *job); team != nullptr) {
      RefuseDeletes(*job, MayHaveRanksOn(event.job, team->node, options_.node_forget_delay));
    } else if (!job->archive_failure.ok()) {
      RefuseDeletes(*job, job->archive_failure);
    }
  } else {
    actions_.push_back(RefuseDelete{
        event.token, absl::FailedPreconditionError(absl::StrCat(
                         ToString(event.job), " is ", job::ToString(job->state.phase),
                         "; only a job that has ended can be deleted: cancel it first"))});
  }
}

void Coordinator::RefuseDeletes(Job& job, const absl::Status& status) {
  for (Token token : std::exchange(job.delete_requests, {})) {
    actions_.push_back(RefuseDelete{token, status});
  }
}

void Coordinator::On(const JobArchived& event) {
  const auto found = jobs_.find(event.job);
  if (found == jobs_.end() || !found->second.state.IsTerminal() || found->second.run.has_value()) {
    return;
  }
  for (Token token : found->second.delete_requests) {
    actions_.push_back(DeleteEndedJob{token, event.job});
  }
  const auto requested = request_ids_.find(found->second.state.request_id);
  if (requested != request_ids_.end() && requested->second == event.job) {
    request_ids_.erase(requested);
  }
  spared_.erase(event.job);
  jobs_.erase(found);
}

void Coordinator::On(const ArchiveFailed& event) {
  Job* job = FindJob(event.job);
  if (job == nullptr || !job->state.IsTerminal()) return;
  job->archive_failure = absl::DataLossError(
      absl::StrCat(ToString(event.job),
                   " cannot be stored among the jobs that "
                   "have ended: ",
                   event.status.message(), "; phalanx-coordinator --check-store lists all damage"));
  Log(absl::StrCat("job=", event.job.value, " stays in memory reason=\"",
                   job->archive_failure.message(), "\""));
  RefuseDeletes(*job, job->archive_failure);
}

void Coordinator::Archive(const Job& job) { Tell(job, Action(ArchiveJob{job.state.id})); }

}  // namespace phalanx::coordinator
