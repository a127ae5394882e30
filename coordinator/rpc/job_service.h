// coordinator/rpc/job_service.h: JobService. Checks, translates and asks; the machine decides.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "coordinator/metrics/metrics.h"
#include "coordinator/rpc/admission.h"
#include "coordinator/rpc/ending.h"
#include "coordinator/rpc/job_calls.h"
#include "coordinator/rpc/log_relay.h"
#include "coordinator/runtime/board.h"
#include "coordinator/runtime/driver.h"
#include "coordinator/runtime/planning.h"
#include "coordinator/runtime/work_pool.h"
#include "phalanx/v1/job_service.grpc.pb.h"

namespace phalanx::coordinator {

// Thread-safe.
class JobServiceImpl final : public v1::JobService::CallbackService {
 public:
  // All that it is given outlive the service.
  JobServiceImpl(Driver& driver, Board& board, Metrics& metrics, LogRelay& logs, OpenCalls& watches,
                 OpenCalls& log_calls, Admission& admission, Audit& audit)
      : driver_(driver),
        board_(board),
        metrics_(metrics),
        logs_(logs),
        watches_(watches),
        log_calls_(log_calls),
        audit_(audit),
        admission_(admission),
        readers_("reader", WorkPool::Priority::kServing, kPoolThreads, kReadsWaitingMax),
        previewers_("previewer", WorkPool::Priority::kBehind, kPoolThreads, kPreviewsWaitingMax) {}

  // Answers the calls that wait for a thread or search, and whatever comes later, with Unavailable.
  void Stop() {
    stopping_ = true;
    readers_.Stop();
    previewers_.Stop();
  }

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;
  Reactor* SubmitJob(Context*, const v1::SubmitJobRequest*, v1::SubmitJobResponse*) override;
  Reactor* CheckSubmit(Context*, const v1::CheckSubmitRequest*, v1::CheckSubmitResponse*) override;
  Reactor* GetJob(Context*, const v1::GetJobRequest*, v1::GetJobResponse*) override;
  Reactor* ListJobs(Context*, const v1::ListJobsRequest*, v1::ListJobsResponse*) override;
  Reactor* CancelJob(Context*, const v1::CancelJobRequest*, v1::CancelJobResponse*) override;
  Reactor* SuspendJob(Context*, const v1::SuspendJobRequest*, v1::SuspendJobResponse*) override;
  Reactor* ResumeJob(Context*, const v1::ResumeJobRequest*, v1::ResumeJobResponse*) override;
  Reactor* DeleteJob(Context*, const v1::DeleteJobRequest*, v1::DeleteJobResponse*) override;
  Reactor* PlanJob(Context*, const v1::PlanJobRequest*, v1::PlanJobResponse*) override;
  Reactor* ListEvents(Context*, const v1::ListEventsRequest*, v1::ListEventsResponse*) override;
  Reactor* ListIncidents(Context*, const v1::ListIncidentsRequest*,
                         v1::ListIncidentsResponse*) override;
  Reactor* ExplainJob(Context*, const v1::ExplainJobRequest*, v1::ExplainJobResponse*) override;
  Reactor* InjectFault(Context*, const v1::InjectFaultRequest*, v1::InjectFaultResponse*) override;
  Reactor* ListNodes(Context*, const v1::ListNodesRequest*, v1::ListNodesResponse*) override;
  Reactor* TryConnection(Context*, const v1::TryConnectionRequest*,
                         v1::TryConnectionResponse*) override;
  Reactor* CordonNode(Context*, const v1::CordonNodeRequest*, v1::CordonNodeResponse*) override;
  Reactor* UncordonNode(Context*, const v1::UncordonNodeRequest*,
                        v1::UncordonNodeResponse*) override;
  Reactor* DrainNode(Context*, const v1::DrainNodeRequest*, v1::DrainNodeResponse*) override;
  Reactor* ReserveNode(Context*, const v1::ReserveNodeRequest*, v1::ReserveNodeResponse*) override;
  Reactor* UnreserveNode(Context*, const v1::UnreserveNodeRequest*,
                         v1::UnreserveNodeResponse*) override;
  grpc::ServerWriteReactor<v1::WatchJobResponse>* WatchJob(Context*,
                                                           const v1::WatchJobRequest*) override;
  grpc::ServerWriteReactor<v1::GetLogsResponse>* GetLogs(Context*,
                                                         const v1::GetLogsRequest*) override;

 private:
  struct SubmitCall {
    Ending end;
    const Context* context;  // lives until the end
    const v1::SubmitJobRequest* request;
    v1::SubmitJobResponse* response;
  };
  // A submit's way. Read on a thread that may take so long; ...
  void Read(const SubmitCall& call);
  // ... of a layout that is left to the planner, where no job came of the request id before, ...
  void Search(const SubmitCall& call, std::shared_ptr<const ReadSubmit> read);
  // ... and what came of that.
  void Submit(const SubmitCall& call, absl::StatusOr<JobRequestPtr> read);
  // Says what speaks against a job of the document.
  void Check(const v1::JobDocument& document, const Ending& end);
  // Answers with the job.
  static void Answer(const SubmitCall& call, const absl::StatusOr<JobViewPtr>& job);
  // OK: somebody waits for what is searched for. Errors: Cancelled, DeadlineExceeded, Unavailable.
  absl::Status StillWanted(const Context& context) const;
  // Says of the jobs where they stand in the queue, and ends the call.
  void TellQueue(std::vector<v1::JobStatus*> jobs, std::function<void(const absl::Status&)> end);
  // Suspends the job or resumes it, and answers with it.
  void SetSuspended(const std::string& job, bool suspended, v1::JobStatus* answer,
                    const Ending& end);
  // Has `plan` done by those who plan, as one of the caller's.
  void Preview(const Caller& caller, WorkPool::Work plan);
  // Of a stream that begins: its call is taken.
  // As Admission::Take, of a call with such a request.
  absl::Status Take(const Ending& end, const google::protobuf::Message& request);
  Peer PeerOf(const Context& context, const google::protobuf::Message& request);
  // Errors: NotFound, PermissionDenied; those of Board::Find.
  absl::StatusOr<JobViewPtr> FindToChange(const Ending& end, const std::string& job,
                                          absl::string_view verb) const;

  // Errors: PermissionDenied; DataLoss, where the store could not delete it; those of Board::Find.
  absl::Status MayDelete(const Ending& end, JobId job) const;

  static constexpr int32_t kPoolThreads = 2;
  static constexpr size_t kReadsWaitingMax = 64, kPreviewsWaitingMax = 16;

  Driver& driver_;
  Board& board_;
  Metrics& metrics_;
  LogRelay& logs_;
  OpenCalls& watches_;
  OpenCalls& log_calls_;
  Audit& audit_;
  Admission& admission_;
  std::atomic<bool> stopping_ = false;
  // gRPC serves all calls and sessions on a few threads (two on a small machine), so none of them
  // plans, or reads a long document. Reading one takes less than a second, planning may take
  // several.
  WorkPool readers_, previewers_;
};

}  // namespace phalanx::coordinator
