// Commands that change a job that is there.
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/job_view.h"
#include "client/rpc_status.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"
#include "core/wire/fault_codec.h"
#include "core/wire/job_yaml.h"

namespace phalanx::client {
namespace {

std::string IsInPhase(const v1::JobStatus& job) {
  return absl::StrCat(" is ", PhaseWord(job.phase()));
}

// A call that changes a job, answered with what it is then: for people as `words` say it behind the
// job's name.
template <typename Response, typename Request, typename Method>
int ChangeJob(Connection& connection, Method method, const Request& request, Format format, Io& io,
              absl::FunctionRef<std::string(const v1::JobStatus& job)> words) {
  Response response;
  const absl::Status status = connection.Call(method, request, &response);
  if (!status.ok()) return FailChange(status, io);
  if (format == Format::kTable || format == Format::kWide) {
    io.talk << JobName(response.job()) << words(response.job()) << "\n";
  } else {
    PrintJob(response.job(), format, io.headers, absl::Now(), io.out);
  }
  return kSuccess;
}

// Whether a job that is there has where to put a checkpoint. Errors: FailedPrecondition: it has
// not.
absl::Status HasCheckpoints(Connection& connection, const std::string& job) {
  v1::GetJobRequest request;
  request.set_job(job);
  v1::GetJobResponse found;
  RETURN_IF_ERROR(connection.Call(&v1::JobService::Stub::GetJob, request, &found));
  ASSIGN_OR_RETURN(const job::ReadJob read,
                   wire::ReadJobFile(found.job().document().text(), job::Purpose::kAccepted));
  if (read.spec.checkpoint.has_value()) return absl::OkStatus();
  const std::string name = JobName(found.job());
  return absl::FailedPreconditionError(absl::StrCat(
      name, " has no checkpoint section, so what it has trained would be lost; phalanx cancel ",
      name, " ends it"));
}

}  // namespace

int Cancel(Connection& connection, const CancelOptions& options, Io& io) {
  if (options.checkpoint) {
    const absl::Status has = HasCheckpoints(connection, options.job);
    if (!has.ok()) return FailCall(has, io);
  }
  v1::CancelJobRequest request;
  request.set_job(options.job);
  request.set_checkpoint(options.checkpoint);
  return ChangeJob<v1::CancelJobResponse>(
      connection, &v1::JobService::Stub::CancelJob, request, options.format, io,
      [](const v1::JobStatus& job) {
        return IsTerminal(job.phase()) ? IsInPhase(job) : " saves its state, and then ends";
      });
}

int Suspend(Connection& connection, const std::string& job, Format format, Io& io) {
  v1::SuspendJobRequest request;
  request.set_job(job);
  return ChangeJob<v1::SuspendJobResponse>(
      connection, &v1::JobService::Stub::SuspendJob, request, format, io,
      [](const v1::JobStatus& job) {
        const bool saves = job.phase() == v1::JOB_PHASE_RUNNING;
        return absl::StrCat(saves ? " saves its state, and then waits" : " waits",
                            " until phalanx resume lets it go on");
      });
}

int Resume(Connection& connection, const std::string& job, Format format, Io& io) {
  v1::ResumeJobRequest request;
  request.set_job(job);
  return ChangeJob<v1::ResumeJobResponse>(connection, &v1::JobService::Stub::ResumeJob, request,
                                          format, io, IsInPhase);
}

// By its number: where the answer is lost and it is asked again, the name may be that of an older
// job by then.
int Delete(Connection& connection, const std::string& job, Format format, Io& io) {
  v1::GetJobRequest named;
  named.set_job(job);
  v1::GetJobResponse found;
  absl::Status status = connection.Call(&v1::JobService::Stub::GetJob, named, &found);
  // One whose entry is damaged can be deleted, and not read; of who may do neither it is said of
  // the deletion.
  const bool unread = absl::IsDataLoss(status) || absl::IsPermissionDenied(status);
  if (!status.ok() && !unread) return FailCall(status, io);
  v1::DeleteJobRequest request;
  request.set_job(unread ? job : absl::StrCat("job-", found.job().id()));
  v1::DeleteJobResponse response;
  status = connection.Call(&v1::JobService::Stub::DeleteJob, request, &response);
  if (absl::IsNotFound(status) && !unread) {
    // It was there a moment ago: by whomever, it is deleted.
    response.set_id(found.job().id());
    status = absl::OkStatus();
  }
  if (!status.ok()) return FailChange(status, io);
  if (format == Format::kJson || format == Format::kYaml) {
    PrintTree(ToTree(response), format, io.out);
  } else {
    (format == Format::kName ? io.out : io.talk << "deleted ") << "job-" << response.id() << "\n";
  }
  return kSuccess;
}

int Inject(Connection& connection, const InjectOptions& options, Io& io) {
  const absl::StatusOr<job::InjectedFault> fault = job::ParseFault(options.fault);
  if (!fault.ok()) {
    Fail(fault.status(), io);
    return kUsage;
  }
  v1::InjectFaultRequest request;
  request.set_job(options.job);
  wire::ToProto(*fault, request.mutable_fault());
  v1::InjectFaultResponse response;
  const absl::Status status =
      connection.CallOnce(&v1::JobService::Stub::InjectFault, request, &response);
  if (!status.ok()) {
    const int code = FailCall(status, io);
    return absl::IsInvalidArgument(status) ? kUsage : code;
  }
  const std::string job = absl::StrCat("job-", response.job());
  if (options.format == Format::kJson || options.format == Format::kYaml) {
    PrintTree(ToTree(response), options.format, io.out);
  } else if (options.format == Format::kName) {
    io.out << job << "\n";
  } else {
    io.talk << job << " epoch " << response.epoch() << ": rank " << fault->rank << " (node "
            << TerminalText(response.node()) << "): " << job::Describe(*fault) << "\n";
  }
  return kSuccess;
}

}  // namespace phalanx::client
