#include "client/commands.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/exit_code.h"
#include "client/job_file.h"
#include "client/job_view.h"
#include "client/rpc_status.h"
#include "core/base/terminal_text.h"
#include "core/base/violation.h"
#include "core/schedule/tolerance.h"
#include "core/wire/fault_codec.h"

namespace phalanx::client {
namespace {

constexpr int32_t kPageSize = 100;

void PrintWarnings(const std::vector<std::string>& warnings, Io& io) {
  for (const std::string& warning : warnings)
    io.talk << "warning: " << TerminalText(warning) << "\n";
}

absl::StatusOr<v1::ExplainJobResponse> ExplainJob(Connection& connection, const std::string& job) {
  v1::ExplainJobRequest request;
  request.set_job(job);
  v1::ExplainJobResponse response;
  const absl::Status status =
      connection.Call(&v1::JobService::Stub::ExplainJob, request, &response);
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<std::vector<v1::JobEvent>> ListEvents(Connection& connection,
                                                     const std::string& job) {
  v1::ListEventsRequest request;
  request.set_job(job);
  v1::ListEventsResponse response;
  const absl::Status status =
      connection.Call(&v1::JobService::Stub::ListEvents, request, &response);
  if (!status.ok()) return status;
  return std::vector<v1::JobEvent>(response.events().begin(), response.events().end());
}

// What a watch found, told; its exit code.
int TellOutcome(const absl::StatusOr<Watched>& watched, const std::string& job, Io& io) {
  if (!watched.ok()) {
    const int code = Fail(watched.status(), io);
    return absl::IsNotFound(watched.status()) ? kJobNotFound : code;
  }
  if (watched->detached) {
    io.talk << "detached; " << job << " goes on. `phalanx watch " << job << "` looks again, "
            << "`phalanx cancel " << job << "` ends it\n";
    return kJobNotFinished;
  }
  for (const std::string& line : FailureLines(watched->job)) io.talk << line << "\n";
  if (watched->evaluation.has_value()) PrintEvaluation(*watched->evaluation, io.out);
  return ExitCodeOf(watched->job.phase());
}

}  // namespace

int Fail(const absl::Status& status, Io& io) {
  const std::vector<Violation> violations = ViolationsOf(status);
  if (violations.empty()) {
    io.talk << "error: " << TerminalText(status.message()) << "\n";
  } else {
    for (const Violation& violation : violations) {
      io.talk << TerminalText(ToString(violation)) << "\n";
    }
    io.talk << violations.size() << (violations.size() == 1 ? " violation" : " violations") << "\n";
  }
  return ExitCodeOf(status);
}

int FailFile(const absl::Status& status, Io& io) {
  const int code = Fail(status, io);
  if (absl::IsNotFound(status)) return kNoInput;
  return code;
}

int Submit(Connection& connection, const SubmitOptions& options, Stopper& stopper, Io& io) {
  absl::StatusOr<JobFile> file = LoadJobFile(options.file, job::Purpose::kSubmit);
  if (!file.ok()) return FailFile(file.status(), io);
  PrintWarnings(file->job.warnings, io);
  PrintWarnings(schedule::IntoleranceOf(file->job.spec), io);
  if (options.dry_run) {
    io.talk << options.file << " is valid; nothing was submitted\n";
    return kSuccess;
  }
  v1::SubmitJobRequest request;
  *request.mutable_document() = std::move(file->document);
  request.set_request_id(absl::StrCat(absl::Hex(Connection::Draw(), absl::kZeroPad16),
                                      absl::Hex(Connection::Draw(), absl::kZeroPad16)));
  v1::SubmitJobResponse response;
  const absl::Status status = connection.Call(&v1::JobService::Stub::SubmitJob, request, &response);
  if (!status.ok()) return Fail(status, io);
  if (options.format == Format::kTable || options.format == Format::kWide) {
    io.talk << "submitted " << TerminalText(response.job().name()) << " as "
            << JobName(response.job()) << "\n";
  }
  if (!options.wait) {
    // The table is one word, so that `JOB=$(phalanx submit ...)` works.
    const bool words = options.format == Format::kTable;
    PrintJob(response.job(), words ? Format::kName : options.format, absl::Now(), io.out);
    return kSuccess;
  }
  const std::string job = JobName(response.job());
  return TellOutcome(WatchJob(connection, job, stopper, io), job, io);
}

int List(Connection& connection, Format format, int32_t limit, Io& io) {
  std::vector<v1::JobStatus> jobs;
  v1::ListJobsRequest request;
  while (true) {
    const int32_t left = limit - static_cast<int32_t>(jobs.size());
    request.set_page_size(limit > 0 ? std::min(left, kPageSize) : kPageSize);
    v1::ListJobsResponse response;
    const absl::Status status =
        connection.Call(&v1::JobService::Stub::ListJobs, request, &response);
    if (!status.ok()) return Fail(status, io);
    for (v1::JobStatus& job : *response.mutable_jobs()) jobs.push_back(std::move(job));
    const bool enough = limit > 0 && jobs.size() >= static_cast<size_t>(limit);
    if (response.next_page_token().empty() || enough) break;
    request.set_page_token(response.next_page_token());
  }
  if (jobs.empty() && (format == Format::kTable || format == Format::kWide)) {
    io.talk << "no jobs\n";
    return kSuccess;
  }
  PrintJobs(jobs, format, absl::Now(), io.out);
  return kSuccess;
}

int Get(Connection& connection, const std::string& job, Format format, Io& io) {
  v1::GetJobRequest request;
  request.set_job(job);
  v1::GetJobResponse response;
  const absl::Status status = connection.Call(&v1::JobService::Stub::GetJob, request, &response);
  if (!status.ok()) return Fail(status, io);
  PrintJob(response.job(), format, absl::Now(), io.out);
  return kSuccess;
}

int Describe(Connection& connection, const std::string& job, Format format, Io& io) {
  const absl::StatusOr<v1::ExplainJobResponse> explained = ExplainJob(connection, job);
  if (!explained.ok()) return Fail(explained.status(), io);
  const absl::StatusOr<std::vector<v1::JobEvent>> events = ListEvents(connection, job);
  if (!events.ok()) return Fail(events.status(), io);
  if (format == Format::kJson || format == Format::kYaml) {
    job::Tree tree = ToTree(*explained);
    tree.entries.push_back(std::move(ToTree("events", *events).entries.front()));
    PrintTree(tree, format, io.out);
    return kSuccess;
  }
  const std::vector<std::string> reasons(explained->reasons().begin(), explained->reasons().end());
  DescribeJob(explained->job(), reasons, *events, absl::Now(), io.out);
  return kSuccess;
}

int Watch(Connection& connection, const std::string& job, Stopper& stopper, Io& io) {
  return TellOutcome(WatchJob(connection, job, stopper, io), job, io);
}

int Events(Connection& connection, const std::string& job, Format format, Io& io) {
  const absl::StatusOr<std::vector<v1::JobEvent>> events = ListEvents(connection, job);
  if (!events.ok()) return Fail(events.status(), io);
  PrintEvents(*events, format, io.out);
  return kSuccess;
}

int Why(Connection& connection, const std::string& job, Format format, Io& io) {
  const absl::StatusOr<v1::ExplainJobResponse> explained = ExplainJob(connection, job);
  if (!explained.ok()) return Fail(explained.status(), io);
  if (format == Format::kJson || format == Format::kYaml) {
    PrintTree(ToTree(*explained), format, io.out);
    return kSuccess;
  }
  io.out << JobName(explained->job()) << " is " << PhaseWord(explained->job().phase()) << "\n";
  for (const std::string& reason : explained->reasons()) io.out << TerminalText(reason) << "\n";
  return kSuccess;
}

int Cancel(Connection& connection, const std::string& job, Format format, Io& io) {
  v1::CancelJobRequest request;
  request.set_job(job);
  v1::CancelJobResponse response;
  const absl::Status status = connection.Call(&v1::JobService::Stub::CancelJob, request, &response);
  if (!status.ok()) return Fail(status, io);
  if (format == Format::kTable || format == Format::kWide) {
    io.talk << JobName(response.job()) << " is " << PhaseWord(response.job().phase()) << "\n";
    return kSuccess;
  }
  PrintJob(response.job(), format, absl::Now(), io.out);
  return kSuccess;
}

int Delete(Connection& connection, const std::string& job, Format format, Io& io) {
  v1::DeleteJobRequest request;
  request.set_job(job);
  v1::DeleteJobResponse response;
  const absl::Status status = connection.Call(&v1::JobService::Stub::DeleteJob, request, &response);
  if (!status.ok()) return Fail(status, io);
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
    const int code = Fail(status, io);
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

int Nodes(Connection& connection, Format format, Io& io) {
  v1::ListNodesResponse response;
  const absl::Status status =
      connection.Call(&v1::JobService::Stub::ListNodes, v1::ListNodesRequest(), &response);
  if (!status.ok()) return Fail(status, io);
  const std::vector<v1::NodeStatus> nodes(response.nodes().begin(), response.nodes().end());
  if (nodes.empty() && (format == Format::kTable || format == Format::kWide)) {
    io.talk << "no nodes\n";
    return kSuccess;
  }
  PrintNodes(nodes, format, absl::Now(), io.out);
  return kSuccess;
}

}  // namespace phalanx::client
