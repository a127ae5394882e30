#include "coordinator/rpc/job_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/machine/ended_job.h"
#include "coordinator/rpc/ending.h"
#include "coordinator/rpc/job_filter.h"
#include "coordinator/wire/common_codec.h"
#include "coordinator/wire/incident_codec.h"
#include "coordinator/wire/job_codec.h"
#include "core/base/status.h"
#include "core/base/violation.h"
#include "core/posix/waker.h"
#include "core/wire/fault_codec.h"
#include "core/wire/layout_codec.h"

namespace phalanx::coordinator {
namespace {

constexpr size_t kRequestIdBytesMax = 128;
// Longer documents are read on threads of their own, and so are jobs that begin without some of
// their ranks; a gRPC thread reads these in some milliseconds.
constexpr size_t kShortDocumentBytes = 16 << 10;
// By so much gRPC prolongs the time of a call on its way here, of up to 100 s, and the way itself.
constexpr absl::Duration kHangUp = absl::Milliseconds(150);

// Of work for a call; empty: in plaintext nobody is asked.
std::string OwnerOf(const Caller& caller) { return caller.has_value() ? KeyOf(*caller) : ""; }

// Whether no quota bounds the priority of the caller's jobs.
bool AnyPriority(const Caller& caller) {
  return caller.has_value() && caller->role == Role::kOperator;
}

// Whether it may have a place in the queue.
bool Waits(const v1::JobStatus& job) {
  return job.phase() == v1::JOB_PHASE_QUEUED && !job.suspended() && !job.damaged();
}

JobRequestPtr OwnedBy(const Caller& caller, JobRequestPtr request) {
  if (!caller.has_value()) return request;
  JobRequest owned = *request;
  owned.owner = caller->name;
  return std::make_shared<const JobRequest>(std::move(owned));
}

// Everybody has request ids of their own: one that somebody else has used answers nobody with their
// job. A name has no '/'.
std::string RequestIdOf(const Caller& caller, const std::string& request_id) {
  if (!caller.has_value() || request_id.empty()) return request_id;
  return absl::StrCat(caller->name, "/", request_id);
}

}  // namespace

JobServiceImpl::Reactor* JobServiceImpl::SubmitJob(Context* context,
                                                   const v1::SubmitJobRequest* request,
                                                   v1::SubmitJobResponse* response) {
  const Ending end(context, "SubmitJob", metrics_, audit_);
  if (absl::Status status = Take(end, *request); !status.ok()) return end.With(status);
  if (request->request_id().size() > kRequestIdBytesMax) {
    return end.With(absl::InvalidArgumentError(absl::StrCat(
        "request_id has ", request->request_id().size(), " bytes; at most ", kRequestIdBytesMax)));
  }
  const SubmitCall call{end, context, request, response};
  if (request->document().text().size() <= kShortDocumentBytes && request->lost().empty()) {
    Read(call);
  } else {
    readers_.Add([this, call](const absl::Status& go) { go.ok() ? Read(call) : call.end(go); },
                 OwnerOf(end.caller()));
  }
  return end.reactor();
}

void JobServiceImpl::Read(const SubmitCall& call) {
  absl::StatusOr<ReadSubmit> read =
      ReadDocument(FromProto(call.request->document()), wire::RanksOf(call.request->lost()),
                   [this] { return board_.Fp8(); });
  if (!read.ok()) return Submit(call, read.status());
  if (!read->NeedsSearch()) return Submit(call, RequestOf(*std::move(read)));
  const auto shared = std::make_shared<const ReadSubmit>(*std::move(read));
  driver_.FindSubmit(
      OwnedBy(call.end.caller(), RequestBeforeSearch(*shared)),
      RequestIdOf(call.end.caller(), call.request->request_id()),
      [this, call, shared](const absl::StatusOr<JobViewPtr>& job) {
        // An id that was used otherwise may still be of this job: releases before
        // knew one by the layout that is searched for.
        const bool other =
            absl::IsInvalidArgument(job.status()) && ViolationsOf(job.status()).empty();
        const bool may_be_new = absl::IsNotFound(job.status()) || other;
        may_be_new ? Search(call, shared) : Answer(call, job);
      },
      AnyPriority(call.end.caller()));
}

void JobServiceImpl::Search(const SubmitCall& call, std::shared_ptr<const ReadSubmit> read) {
  Preview(call.end.caller(), [this, call, read = std::move(read)](const absl::Status& go) {
    const auto go_on = [this, &call] { return StillWanted(*call.context); };
    const absl::Status wanted = go.ok() ? go_on() : go;
    if (!wanted.ok()) return call.end(wanted);
    Submit(call, RequestOf(
                     *read, [this] { return board_.Nodes(); },
                     [this](const std::string& key) { return board_.DataShapeOf(key); }, go_on));
  });
}

void JobServiceImpl::Submit(const SubmitCall& call, absl::StatusOr<JobRequestPtr> read) {
  const v1::SubmitJobRequest& request = *call.request;
  absl::Status refusal = read.status();
  if (!refusal.ok()) {
    if (request.request_id().empty()) return call.end(refusal);
    // Whoever repeats a submit gets the job that it became, whatever would be said to a new one.
    read = RequestAsSubmitted(FromProto(request.document()), wire::RanksOf(request.lost()));
  }
  driver_.Submit(
      OwnedBy(call.end.caller(), *std::move(read)),
      RequestIdOf(call.end.caller(), request.request_id()),
      [call](const absl::StatusOr<JobViewPtr>& job) { Answer(call, job); }, std::move(refusal),
      AnyPriority(call.end.caller()));
}

JobServiceImpl::Reactor* JobServiceImpl::CheckSubmit(Context* context,
                                                     const v1::CheckSubmitRequest* request,
                                                     v1::CheckSubmitResponse*) {
  const Ending end(context, "CheckSubmit", metrics_);
  if (absl::Status status = Take(end, *request); !status.ok()) return end.With(status);
  if (request->document().text().size() <= kShortDocumentBytes) {
    Check(request->document(), end);
  } else {
    readers_.Add(
        [this, request, end](const absl::Status& go) {
          go.ok() ? Check(request->document(), end) : end(go);
        },
        OwnerOf(end.caller()));
  }
  return end.reactor();
}

void JobServiceImpl::Check(const v1::JobDocument& document, const Ending& end) {
  absl::StatusOr<ReadSubmit> read =
      ReadDocument(FromProto(document), {}, [this] { return board_.Fp8(); });
  if (!read.ok()) return end(read.status());
  const absl::StatusOr<JobRequestPtr> request =
      read->NeedsSearch() ? RequestBeforeSearch(*read) : RequestOf(*std::move(read));
  if (!request.ok()) return end(request.status());
  driver_.FindSubmit(
      OwnedBy(end.caller(), *request), /*request_id=*/"",
      [end](const absl::StatusOr<JobViewPtr>& job) {
        end(absl::IsNotFound(job.status()) ? absl::OkStatus() : job.status());
      },
      AnyPriority(end.caller()));
}

void JobServiceImpl::Answer(const SubmitCall& call, const absl::StatusOr<JobViewPtr>& job) {
  if (job.ok()) call.end.Changes((*job)->id);
  // The caller has the document.
  if (job.ok()) ToProto(**job, false, call.response->mutable_job());
  call.end(job.status());
}

absl::Status JobServiceImpl::StillWanted(const Context& context) const {
  if (stopping_) return absl::UnavailableError("the coordinator is stopping");
  if (!context.IsCancelled()) return absl::OkStatus();
  // Whoever waits no longer hangs up a moment before the time is over here.
  if (absl::FromChrono(context.deadline()) - absl::Now() < kHangUp)
    return absl::DeadlineExceededError("the caller's time is over: nobody waits for the layout");
  return absl::CancelledError("the caller is gone: nobody waits for the layout");
}

JobServiceImpl::Reactor* JobServiceImpl::GetJob(Context* context, const v1::GetJobRequest* request,
                                                v1::GetJobResponse* response) {
  const Ending end(context, "GetJob", metrics_);
  if (absl::Status status = Take(end, *request); !status.ok()) return end.With(status);
  const absl::StatusOr<JobViewPtr> job = board_.FindWhole(request->job());
  if (job.ok()) ToProto(**job, true, response->mutable_job());
  if (!job.ok() || !Waits(response->job())) return end.With(job.status());
  TellQueue({response->mutable_job()}, end);
  return end.reactor();
}

JobServiceImpl::Reactor* JobServiceImpl::ListJobs(Context* context,
                                                  const v1::ListJobsRequest* request,
                                                  v1::ListJobsResponse* response) {
  const Ending end(context, "ListJobs", metrics_);
  if (absl::Status status = Take(end, *request); !status.ok()) return end.With(status);
  const absl::Status listed = coordinator::ListJobs(board_, *request, response);
  std::vector<v1::JobStatus*> waiting;
  for (v1::JobStatus& job : *response->mutable_jobs()) {
    if (Waits(job)) waiting.push_back(&job);
  }
  if (!listed.ok() || waiting.empty()) return end.With(listed);
  TellQueue(std::move(waiting), end);
  return end.reactor();
}

void JobServiceImpl::TellQueue(std::vector<v1::JobStatus*> jobs,
                               std::function<void(const absl::Status&)> end) {
  std::vector<JobId> ids;
  for (const v1::JobStatus* job : jobs) ids.push_back(JobId{job->id()});
  driver_.AskQueue(std::move(ids), [jobs = std::move(jobs), end = std::move(end)](
                                       const absl::StatusOr<std::map<JobId, QueueSpot>>& spots) {
    for (v1::JobStatus* job : jobs) {
      if (!spots.ok()) break;  // what the board has is told all the same
      const auto spot = spots->find(JobId{job->id()});
      if (spot == spots->end()) continue;
      job->set_queue_number(spot->second.number);
      if (spot->second.starts_by.has_value())
        ToProto(*spot->second.starts_by, job->mutable_starts_by());
      if (spot->second.starts_about.has_value())
        ToProto(*spot->second.starts_about, job->mutable_starts_about());
    }
    end(absl::OkStatus());
  });
}

JobServiceImpl::Reactor* JobServiceImpl::CancelJob(Context* context,
                                                   const v1::CancelJobRequest* request,
                                                   v1::CancelJobResponse* response) {
  const Ending end(context, "CancelJob", metrics_, audit_);
  if (absl::Status status = Take(end, *request); !status.ok()) return end.With(status);
  const absl::StatusOr<JobViewPtr> found = FindToChange(end, request->job(), "cancel");
  if (!found.ok()) return end.With(found.status());
  // Nothing more becomes of a job that has ended, so the driver need not be asked.
  if (job::IsTerminal((*found)->phase)) {
    absl::StatusOr<JobViewPtr> job = board_.FindWhole(ToString((*found)->id));
    if (job.ok()) job = CancelEnded(*std::move(job));
    if (job.ok()) ToProto(**job, true, response->mutable_job());
    return end.With(job.status());
  }
  driver_.Cancel((*found)->id, request->checkpoint(), NameOf(end.caller()),
                 [end, response](const absl::StatusOr<JobViewPtr>& job) {
                   if (job.ok()) ToProto(**job, true, response->mutable_job());
                   end(job.status());
                 });
  return end.reactor();
}

absl::StatusOr<JobViewPtr> JobServiceImpl::FindToChange(const Ending& end, const std::string& job,
                                                        absl::string_view verb) const {
  absl::StatusOr<JobViewPtr> found = board_.Find(job);
  if (!found.ok()) return found;
  end.Changes((*found)->id);
  RETURN_IF_ERROR(MayChange(end.caller(), **found, verb));
  return found;
}

void JobServiceImpl::SetSuspended(const std::string& job, bool suspended, v1::JobStatus* answer,
                                  const Ending& end) {
  const absl::StatusOr<JobViewPtr> found = FindToChange(end, job, suspended ? "suspend" : "resume");
  if (!found.ok()) return end(found.status());
  // The driver does not know those that have ended.
  if (job::IsTerminal((*found)->phase)) {
    return end(absl::FailedPreconditionError(
        absl::StrCat(ToString((*found)->id), " is ", job::ToString((*found)->phase),
                     "; only a job that has not ended is suspended or resumed: phalanx rerun ",
                     ToString((*found)->id), " submits it anew")));
  }
  driver_.SetSuspended((*found)->id, suspended, NameOf(end.caller()),
                       [end, answer](const absl::StatusOr<JobViewPtr>& told) {
                         if (told.ok()) ToProto(**told, true, answer);
                         end(told.status());
                       });
}

JobServiceImpl::Reactor* JobServiceImpl::SuspendJob(Context* context,
                                                    const v1::SuspendJobRequest* request,
                                                    v1::SuspendJobResponse* response) {
  const Ending end(context, "SuspendJob", metrics_, audit_);
  if (absl::Status status = Take(end, *request); !status.ok()) return end.With(status);
  SetSuspended(request->job(), true, response->mutable_job(), end);
  return end.reactor();
}

JobServiceImpl::Reactor* JobServiceImpl::ResumeJob(Context* context,
                                                   const v1::ResumeJobRequest* request,
                                                   v1::ResumeJobResponse* response) {
  const Ending end(context, "ResumeJob", metrics_, audit_);
  if (absl::Status status = Take(end, *request); !status.ok()) return end.With(status);
  SetSuspended(request->job(), false, response->mutable_job(), end);
  return end.reactor();
}

absl::Status JobServiceImpl::MayDelete(const Ending& end, JobId job) const {
  RETURN_IF_ERROR(board_.CheckPlaceOf(job));
  // Whose a job is does not matter then: one whose summary is damaged says it to nobody.
  if (!end.caller().has_value() || end.caller()->role == Role::kOperator) return absl::OkStatus();
  const absl::Status status = FindToChange(end, ToString(job), "delete").status();
  if (!absl::IsDataLoss(status)) return status;
  return absl::PermissionDeniedError(
      absl::StrCat("the store: the summary of ", ToString(job),
                   " is damaged, which says whose it is: ask an operator to delete it"));
}

JobServiceImpl::Reactor* JobServiceImpl::DeleteJob(Context* context,
                                                   const v1::DeleteJobRequest* request,
                                                   v1::DeleteJobResponse* response) {
  const Ending end(context, "DeleteJob", metrics_, audit_);
  if (absl::Status status = Take(end, *request); !status.ok()) return end.With(status);
  const absl::StatusOr<JobId> found = board_.IdOf(request->job());
  if (!found.ok()) return end.With(found.status());
  end.Changes(*found);
  if (absl::Status may = MayDelete(end, *found); !may.ok()) return end.With(may);
  response->set_id(found->value);
  driver_.Delete(*found, end);
  return end.reactor();
}

// Of one person one plan is made at a time: nobody has all who plan.
void JobServiceImpl::Preview(const Caller& caller, WorkPool::Work plan) {
  if (absl::Status status = admission_.BeginPlan(caller); !status.ok()) return plan(status);
  previewers_.Add(
      [this, caller, plan = std::move(plan)](const absl::Status& go) {
        plan(go);
        admission_.EndPlan(caller);
      },
      OwnerOf(caller));
}

JobServiceImpl::Reactor* JobServiceImpl::PlanJob(Context* context,
                                                 const v1::PlanJobRequest* request,
                                                 v1::PlanJobResponse* response) {
  const Ending end(context, "PlanJob", metrics_);
  if (absl::Status status = Take(end, *request); !status.ok()) return end.With(status);
  Preview(end.caller(), [this, end, context, request, response](const absl::Status& go) {
    const auto go_on = [this, context] { return StillWanted(*context); };
    const absl::Status wanted = go.ok() ? go_on() : go;
    if (!wanted.ok()) return end(wanted);
    const SteadyTime start = SteadyNow();
    absl::StatusOr<v1::Plan> plan = PreviewPlan(
        FromProto(request->document()), wire::RanksOf(request->lost()), board_.Nodes(),
        [this](const std::string& key) { return board_.DataShapeOf(key); }, go_on);
    metrics_.Planned(Since(start));
    if (plan.ok()) *response->mutable_plan() = *std::move(plan);
    end(plan.status());
  });
  return end.reactor();
}

JobServiceImpl::Reactor* JobServiceImpl::ListEvents(Context* context,
                                                    const v1::ListEventsRequest* request,
                                                    v1::ListEventsResponse* response) {
  const Ending end(context, "ListEvents", metrics_);
  if (absl::Status status = Take(end, *request); !status.ok()) return end.With(status);
  const absl::StatusOr<JobViewPtr> job = board_.Find(request->job());
  if (!job.ok()) return end.With(job.status());
  const absl::StatusOr<std::vector<JobEvent>> events =
      board_.Events((*job)->id, request->after_number());
  if (!events.ok()) return end.With(events.status());
  return end.With(SelectEvents(*events, *request, response));
}

JobServiceImpl::Reactor* JobServiceImpl::ListIncidents(Context* context,
                                                       const v1::ListIncidentsRequest* request,
                                                       v1::ListIncidentsResponse* response) {
  const Ending end(context, "ListIncidents", metrics_);
  if (absl::Status status = Take(end, *request); !status.ok()) return end.With(status);
  const absl::StatusOr<JobViewPtr> job = board_.Find(request->job());
  if (!job.ok()) return end.With(job.status());
  const absl::StatusOr<std::vector<IncidentPtr>> incidents = board_.Incidents((*job)->id);
  if (!incidents.ok()) return end.With(incidents.status());
  for (const IncidentPtr& incident : *incidents) ToProto(*incident, response->add_incidents());
  return end.With(absl::OkStatus());
}

JobServiceImpl::Reactor* JobServiceImpl::ExplainJob(Context* context,
                                                    const v1::ExplainJobRequest* request,
                                                    v1::ExplainJobResponse* response) {
  const Ending end(context, "ExplainJob", metrics_);
  if (absl::Status status = Take(end, *request); !status.ok()) return end.With(status);
  const absl::StatusOr<JobViewPtr> found = board_.Find(request->job());
  if (!found.ok()) return end.With(found.status());
  if (job::IsTerminal((*found)->phase)) {
    const std::vector<std::string> reasons = ExplainEnded(**found);
    response->mutable_reasons()->Assign(reasons.begin(), reasons.end());
    ToProto(**found, false, response->mutable_job());
    return end.With(absl::OkStatus());
  }
  driver_.Explain((*found)->id, [end, response, board = &board_, id = (*found)->id](
                                    const absl::StatusOr<std::vector<std::string>>& reasons) {
    if (reasons.ok()) {
      response->mutable_reasons()->Assign(reasons->begin(), reasons->end());
      const absl::StatusOr<JobViewPtr> job = board->Find(ToString(id));
      if (job.ok()) ToProto(**job, false, response->mutable_job());
    }
    end(reasons.status());
  });
  return end.reactor();
}

JobServiceImpl::Reactor* JobServiceImpl::InjectFault(Context* context,
                                                     const v1::InjectFaultRequest* request,
                                                     v1::InjectFaultResponse* response) {
  const Ending end(context, "InjectFault", metrics_, audit_);
  if (absl::Status status = Take(end, *request); !status.ok()) return end.With(status);
  // Whether faults are allowed at all is said first, whatever the job.
  const absl::StatusOr<JobViewPtr> found = FindToChange(end, request->job(), "harm");
  if (absl::IsPermissionDenied(found.status())) return end.With(found.status());
  driver_.Inject(
      found.ok() ? (*found)->id : JobId{}, wire::FromProto(request->fault()),
      [end, response, found](const absl::StatusOr<Injected>& injected) {
        if (injected.ok()) {
          response->set_job(injected->job.value);
          response->set_epoch(injected->epoch.value);
          response->set_node(injected->node);
        }
        if (!absl::IsNotFound(injected.status())) return end(injected.status());
        if (!found.ok()) return end(found.status());
        const JobView& job = **found;
        end(job::IsTerminal(job.phase) ? NoFaultsFor(job.id, job.phase) : injected.status());
      });
  return end.reactor();
}

absl::Status JobServiceImpl::Take(const Ending& end, const google::protobuf::Message& request) {
  return admission_.Take(end.caller(), end.peer(), request.ByteSizeLong());
}

Peer JobServiceImpl::PeerOf(const Context& context, const google::protobuf::Message& request) {
  const std::shared_ptr<const grpc::AuthContext> who = context.auth_context();
  return {.who = who,
          .admitted = admission_.Take(CallerOf(*who), context.peer(), request.ByteSizeLong()),
          .metrics = metrics_};
}

grpc::ServerWriteReactor<v1::WatchJobResponse>* JobServiceImpl::WatchJob(
    Context* context, const v1::WatchJobRequest* request) {
  return MakeWatchCall(board_, watches_, PeerOf(*context, *request), *request);
}

grpc::ServerWriteReactor<v1::GetLogsResponse>* JobServiceImpl::GetLogs(
    Context* context, const v1::GetLogsRequest* request) {
  return MakeLogsCall(board_, driver_, logs_, log_calls_, PeerOf(*context, *request), *request);
}

}  // namespace phalanx::coordinator
