#include "client/run.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/commands.h"
#include "client/connection.h"
#include "client/exit_code.h"
#include "client/interrupt.h"
#include "client/job_file.h"
#include "client/job_view.h"
#include "client/local_cluster.h"
#include "client/output.h"
#include "client/rpc_status.h"
#include "client/watch.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"
#include "core/job/devices.h"
#include "core/job/schema.h"
#include "core/posix/whole_file.h"

namespace phalanx::client {
namespace {

// With a coordinator of one's own, silence is a fault rather than a restart.
constexpr absl::Duration kPatience = absl::Seconds(10);
constexpr absl::Duration kLogTimeout = absl::Seconds(10);
// For a job that is cancelled with a checkpoint: longer than the coordinator gives it.
constexpr absl::Duration kEndPatience = absl::Minutes(3);

// What signals ask of a run. Thread-safe.
struct Wishes {
  Stopper stop;                          // the first one
  std::atomic<bool> checkpoint = false;  // with a checkpoint
  Stopper hurry;                         // another one
};

std::string OutputFolder(const RunOptions& options, const JobFile& file) {
  if (!options.output.empty()) return AbsolutePath(options.output);
  const std::filesystem::path folder = file.document.directory();
  return AbsolutePath((folder / file.job.spec.output).string());
}

absl::Status WriteJson(const std::string& path, const job::Tree& tree) {
  std::ostringstream text;
  PrintTree(tree, Format::kJson, text);
  return WriteWholeFile(path, text.str());
}

// What every rank wrote, a file each; returns what could not be written. A coordinator that does
// not answer keeps its logs: the job is over.
std::vector<absl::Status> StoreLogs(Connection& connection, const std::string& job,
                                    const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kLogTimeout));
  v1::GetLogsRequest request;
  request.set_job(job);
  const auto stream = connection.stub().GetLogs(&context, request);
  std::map<int32_t, OutputFile> files;
  v1::GetLogsResponse response;
  while (stream->Read(&response)) {
    const int32_t rank = response.rank();
    files.try_emplace(rank, absl::StrCat(folder, "/rank-", rank, ".log"))
        .first->second.Write(response.text());
  }
  stream->Finish();
  std::vector<absl::Status> failures;
  for (auto& [rank, file] : files) {
    if (absl::Status status = file.Close(); !status.ok()) failures.push_back(std::move(status));
  }
  return failures;
}

// What came out of the job, into its folder. Returns what could not be written, a file each.
std::vector<absl::Status> StoreResults(Connection& connection, const Watched& watched,
                                       const std::string& output) {
  std::vector<absl::Status> failures =
      StoreLogs(connection, JobName(watched.job), output + "/logs");
  const auto write = [&](const char* name, const google::protobuf::Message& message) {
    absl::Status status = WriteJson(absl::StrCat(output, "/", name), ToTree(message));
    if (!status.ok()) failures.push_back(std::move(status));
  };
  write("job.json", watched.job);
  if (watched.evaluation.has_value()) write("evaluation.json", *watched.evaluation);
  return failures;
}

absl::StatusOr<v1::JobStatus> SubmitDocument(Connection& connection, v1::JobDocument document,
                                             const std::vector<int32_t>& lost) {
  v1::SubmitJobRequest request;
  *request.mutable_document() = std::move(document);
  request.mutable_lost()->Assign(lost.begin(), lost.end());
  request.set_request_id(absl::StrCat(absl::Hex(Connection::Draw(), absl::kZeroPad16)));
  v1::SubmitJobResponse response;
  RETURN_IF_ERROR(connection.Call(&v1::JobService::Stub::SubmitJob, request, &response));
  return response.job();
}

void PrintOutcome(const v1::JobStatus& job, const std::string& output, Io& io) {
  io.out << TerminalText(job.name()) << " " << PhaseWord(job.phase());
  if (job.has_last_step()) {
    io.out << " after " << job.last_step().step() << " of " << job.steps() << " steps";
    if (job.has_started() && job.has_ended()) {
      io.out << " in " << FormatAge(ToTime(job.ended()) - ToTime(job.started()));
    }
    io.out << "\nloss " << FormatLoss(job.last_step().loss());
  }
  io.out << "\n";
  io.talk << "results are in " << output << "\n";
}

// `watched` becomes the job as it is afterwards. Errors: what became of it is not known.
absl::Status CancelJob(Connection& connection, const std::string& job, Wishes& wishes, Io& io,
                       Watched& watched) {
  io.talk << "interrupted: cancelling " << job
          << (wishes.checkpoint ? ", with a checkpoint if it writes any" : "") << "\n";
  v1::CancelJobRequest request;
  request.set_job(job);
  request.set_checkpoint(wishes.checkpoint);
  v1::CancelJobResponse response;
  const absl::Status cancelled =
      connection.Call(&v1::JobService::Stub::CancelJob, request, &response);
  // What has ended meanwhile cannot be cancelled, and is shown as it ended.
  if (!cancelled.ok() && !absl::IsFailedPrecondition(cancelled)) return cancelled;
  if (cancelled.ok()) watched.job = response.job();
  if (IsTerminal(watched.job.phase())) return absl::OkStatus();
  absl::Notification ended;
  std::jthread patience([&] {
    if (!ended.WaitForNotificationWithTimeout(kEndPatience)) wishes.hurry.Stop();
  });
  absl::StatusOr<Watched> end = WatchJob(connection, job, wishes.hurry, io, kPatience);
  ended.Notify();
  RETURN_IF_ERROR(end.status());
  watched = *std::move(end);
  if (!watched.detached) io.talk << TerminalText(watched.job.reason()) << "\n";
  return absl::OkStatus();
}

// The part of a run that has a cluster.
int TrainOn(LocalCluster& cluster, v1::JobDocument document, const std::vector<int32_t>& lost,
            const std::string& output, Wishes& wishes, Io& io) {
  Connection connection({.server = cluster.server(), .timeout = absl::Seconds(10)});
  Connection patient({.server = cluster.server(), .timeout = kSubmitTimeout});
  const absl::StatusOr<v1::JobStatus> submitted =
      SubmitDocument(patient, std::move(document), lost);
  if (!submitted.ok()) return FailCall(submitted.status(), io);
  const std::string job = JobName(*submitted);
  absl::StatusOr<Watched> watched = WatchJob(connection, job, wishes.stop, io, kPatience);
  if (!watched.ok() || (watched->detached && cluster.AnyEnded())) {
    if (!watched.ok()) FailCall(watched.status(), io);
    io.talk << "error: the local cluster broke down; its logs end with why\n"
            << TerminalText(cluster.LogTails());
    return kFailure;
  }
  if (watched->detached) {
    if (const absl::Status cancelled = CancelJob(connection, job, wishes, io, *watched);
        !cancelled.ok()) {
      cluster.Hurry();  // nobody is there who could end it in good order
      return FailCall(WithNext(cancelled, absl::StrCat("the local cluster ends now, and ", job,
                                                       " with it; how far it came says ", output,
                                                       "/metrics.jsonl")),
                      io);
    }
  }
  const v1::JobStatus& last = watched->job;
  const std::vector<absl::Status> failures = StoreResults(connection, *watched, output);
  for (const std::string& line : FailureLines(last)) io.talk << line << "\n";
  PrintOutcome(last, output, io);
  if (watched->evaluation.has_value()) PrintEvaluation(*watched->evaluation, io.out);
  for (const absl::Status& failure : failures) Fail(failure, io);
  if (watched->detached) return kJobCancelled;
  const int code = ExitCodeOf(last.phase());
  return code == kSuccess && !failures.empty() ? kCannotCreate : code;
}

}  // namespace

int Run(const RunOptions& options, Io& io) {
  absl::StatusOr<JobFile> file = LoadJobFile(options.file, job::Purpose::kSubmit);
  if (!file.ok()) return FailFile(file.status(), io);
  for (const std::string& warning : file->job.warnings) {
    io.talk << "warning: " << TerminalText(warning) << "\n";
  }
  if (std::any_of(options.output.begin(), options.output.end(),
                  [](unsigned char c) { return absl::ascii_iscntrl(c); })) {
    io.talk << "error: --output: \"" << TerminalText(options.output)
            << "\": must have no control characters\n";
    return kUsage;
  }
  const std::string output = OutputFolder(options, *file);
  const absl::StatusOr<std::string> text = WithOutput(file->document.text(), output);
  if (!text.ok()) return FailFile(text.status(), io);
  std::error_code error;
  std::filesystem::create_directories(output, error);
  if (error) {
    io.talk << "error: cannot make " << output << ": " << error.message()
            << "; name another folder with --output\n";
    return kCannotCreate;
  }
  file->document.set_text(*text);

  const job::Resources& resources = file->job.spec.resources;
  LocalCluster cluster(
      {.programs = options.programs,
       .device = std::string(job::DeviceNames()[static_cast<size_t>(resources.device)]),
       .devices = job::DevicesOf(file->job.spec),
       .allow_inject = options.allow_inject});
  Wishes wishes;
  const Interrupt interrupt({SIGINT, SIGTERM, SIGHUP, SIGCHLD}, [&](int signal) {
    if (signal == SIGCHLD) {
      if (!cluster.AnyEnded()) return;
      wishes.stop.Stop();
      wishes.hurry.Stop();
    } else if (wishes.stop.stopped()) {
      wishes.hurry.Stop();
      cluster.Hurry();
    } else {
      wishes.checkpoint = signal == SIGTERM;
      wishes.stop.Stop();
    }
  });
  io.talk << "starting a coordinator and a worker with " << job::DevicesOf(file->job.spec) << " "
          << job::DeviceNames()[static_cast<size_t>(resources.device)] << " devices\n";
  int code = kFailure;
  if (const absl::Status started = cluster.Start(wishes.stop); started.ok()) {
    if (options.allow_inject) {
      io.talk << "faults can be brought about: phalanx inject --server " << cluster.server()
              << " --job " << TerminalText(file->job.spec.name) << "\n";
    }
    code = TrainOn(cluster, std::move(file->document), options.lost, output, wishes, io);
  } else {
    Fail(started, io);
    if (absl::IsCancelled(started)) code = kJobCancelled;
  }
  cluster.Stop();
  return code;
}

}  // namespace phalanx::client
