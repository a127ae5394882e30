#include "client/commands.h"

#include <set>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/advice.h"
#include "client/exit_code.h"
#include "client/incidents.h"
#include "client/job_file.h"
#include "client/job_view.h"
#include "client/node_list.h"
#include "client/rpc_status.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"
#include "core/base/violation.h"
#include "core/job/directory.h"
#include "core/job/scalar.h"
#include "core/schedule/tolerance.h"
#include "core/wire/fault_codec.h"
#include "core/wire/job_yaml.h"

namespace phalanx::client {
namespace {

constexpr int32_t kEventsPageSize = 1000;
// A store that fails has what it was given, and may keep it once it works again.
constexpr char kMaybeAJob[] =
    "see that phalanx-coordinator serves, then look with phalanx list: it may be a job all the "
    "same; submit it again only where it is not";

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
                                                     const EventsOptions& options) {
  v1::ListEventsRequest request;
  request.set_job(options.job);
  request.set_page_size(kEventsPageSize);
  for (const std::string& type : options.types) request.add_types(type);
  if (options.since.has_value()) {
    const absl::Duration since = *options.since - absl::UnixEpoch();
    request.mutable_since()->set_seconds(
        absl::ToInt64Seconds(absl::Floor(since, absl::Seconds(1))));
    request.mutable_since()->set_nanos(static_cast<int32_t>(
        absl::ToInt64Nanoseconds(since - absl::Floor(since, absl::Seconds(1)))));
  }
  std::vector<v1::JobEvent> events;
  while (true) {
    v1::ListEventsResponse response;
    const absl::Status status =
        connection.Call(&v1::JobService::Stub::ListEvents, request, &response);
    if (!status.ok()) return status;
    for (v1::JobEvent& event : *response.mutable_events()) events.push_back(std::move(event));
    if (!response.more() || events.empty()) return events;
    if (events.back().number() <= request.after_number()) {
      return absl::DataLossError(absl::StrCat(
          "the coordinator's pages of events do not go on after ", events.size(), " events"));
    }
    request.set_after_number(events.back().number());
  }
}

// Which types of events a job has, for those who asked for another.
void TellTypes(Connection& connection, const std::string& job, Io& io) {
  const absl::StatusOr<std::vector<v1::JobEvent>> events = ListEvents(connection, {.job = job});
  if (!events.ok()) return;  // it is a hint
  std::set<std::string> types;
  for (const v1::JobEvent& event : *events) types.insert(event.type());
  if (types.empty()) return;
  io.talk << "those of " << TerminalText(job) << " are of the types "
          << TerminalText(absl::StrJoin(types, ", ")) << "\n";
}

// What a watch found, told; its exit code.
int TellOutcome(const absl::StatusOr<Watched>& watched, const std::string& job, Io& io) {
  if (!watched.ok()) {
    const int code = FailCall(watched.status(), io);
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

// Queues a job, and watches it where that is asked for.
int SubmitAndTell(Connection& connection, v1::SubmitJobRequest request, Format format, bool wait,
                  Stopper& stopper, Io& io) {
  request.set_request_id(absl::StrCat(absl::Hex(Connection::Draw(), absl::kZeroPad16),
                                      absl::Hex(Connection::Draw(), absl::kZeroPad16)));
  v1::SubmitJobResponse response;
  const absl::Status status = connection.Call(&v1::JobService::Stub::SubmitJob, request, &response);
  if (!status.ok()) {
    if (MayBeDone(status)) return FailCall(WithNext(status, kMaybeAJob), io);
    if (!absl::IsResourceExhausted(status) || SaysNext(status.message())) {
      return FailCall(status, io);
    }
    return FailCall(WithNext(status,
                             "wait, or cancel what is not needed: phalanx list --state "
                             "queued,starting,running"),
                    io);
  }
  if (format == Format::kTable || format == Format::kWide) {
    io.talk << "submitted " << TerminalText(response.job().name()) << " as "
            << JobName(response.job()) << "\n";
  }
  if (!wait) {
    // The table is one word, so that `JOB=$(phalanx submit ...)` works.
    const bool words = format == Format::kTable;
    PrintJob(response.job(), words ? Format::kName : format, io.headers, absl::Now(), io.out);
    return kSuccess;
  }
  const std::string job = JobName(response.job());
  return TellOutcome(WatchJob(connection, job, stopper, io), job, io);
}

// What is wrong; the exit code.
int TellError(const absl::Status& status, Io& io) {
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

void TellNext(const std::string& next, Io& io) {
  if (!next.empty()) io.talk << "what to do: " << next << "\n";
}

}  // namespace

int Fail(const absl::Status& status, Io& io) {
  const int code = TellError(status, io);
  TellNext(NextAfterFailure(status), io);
  return code;
}

int FailCall(const absl::Status& status, Io& io) {
  const int code = TellError(status, io);
  TellNext(NextAfterCall(status), io);
  return code;
}

int FailChange(const absl::Status& status, Io& io) {
  if (!MayBeDone(status)) return FailCall(status, io);
  return FailCall(WithNext(status,
                           "see that phalanx-coordinator serves, then look: it may have been done "
                           "all the same; do it again only where it has not"),
                  io);
}

int FailFile(const absl::Status& status, Io& io) {
  const int code = TellError(status, io);
  if (!absl::IsNotFound(status) && !absl::IsPermissionDenied(status)) {
    TellNext(NextAfterFailure(status), io);
    return code;
  }
  TellNext("name one that is there and that you can read", io);
  return absl::IsNotFound(status) ? static_cast<int>(kNoInput) : code;
}

namespace {

// A coordinator of a release before does not know the question.
bool CannotBeAsked(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsUnimplemented(status) ||
         absl::StrContains(status.message(), "is a method that nobody may call");
}

// What speaks against a submit of a file, as far as can be told without one.
int DryRun(Connection& connection, const SubmitOptions& options, JobFile file, Io& io) {
  const absl::Status directory = job::CheckDirectory(file.document.directory());
  if (!directory.ok()) return FailCall(directory, io);  // as a coordinator would say it
  if (const absl::Status laid = CheckOpenLayout(file, io); !laid.ok()) return Fail(laid, io);
  if (options.asks) {
    v1::CheckSubmitRequest request;
    *request.mutable_document() = std::move(file.document);
    v1::CheckSubmitResponse response;
    const absl::Status asked =
        connection.Call(&v1::JobService::Stub::CheckSubmit, request, &response);
    if (CannotBeAsked(asked)) {
      io.talk << "note: what the coordinator would refuse was not checked: "
              << TerminalText(asked.message()) << "\n";
    } else if (!asked.ok()) {
      return FailCall(asked, io);
    }
  }
  io.talk << LineText(options.file) << " is valid; nothing was submitted\n";
  return kSuccess;
}

// The job file with another name, read again.
absl::Status Rename(const std::string& name, JobFile& file) {
  ASSIGN_OR_RETURN(std::string text, WithName(file.document.text(), name));
  ASSIGN_OR_RETURN(file.job, wire::ReadJobFile(text, job::Purpose::kSubmit));
  file.document.set_text(std::move(text));
  return absl::OkStatus();
}

}  // namespace

int Submit(Connection& connection, const SubmitOptions& options, Stopper& stopper, Io& io) {
  if (GoesUp(options.directory)) {
    Fail(absl::InvalidArgumentError(
             absl::StrCat("--directory: ", options.directory, ": must have no '..' in it")),
         io);
    return kUsage;
  }
  if (!options.directory.empty() && options.directory[0] != '/') {
    Fail(WithNext(
             absl::InvalidArgumentError(
                 absl::StrCat("--directory: ", options.directory,
                              ": must begin with /: it is a folder of the cluster's machines")),
             "name it as the nodes do, such as /shared/jobs, or leave --directory out where they "
             "have the job file's own folder"),
         io);
    return kUsage;
  }
  absl::StatusOr<JobFile> file = LoadJobFile(options.file, job::Purpose::kSubmit);
  if (!file.ok()) return FailFile(file.status(), io);
  if (!options.directory.empty()) file->document.set_directory(AbsolutePath(options.directory));
  if (!options.name.empty()) {
    const absl::Status named = Rename(options.name, *file);
    if (!named.ok()) return Fail(named, io);
  }
  PrintWarnings(file->job.warnings, io);
  PrintWarnings(schedule::IntoleranceOf(file->job.spec), io);
  if (options.dry_run) return DryRun(connection, options, *std::move(file), io);
  v1::SubmitJobRequest request;
  *request.mutable_document() = std::move(file->document);
  return SubmitAndTell(connection, std::move(request), options.format, options.wait, stopper, io);
}

namespace {

// Of a job that has not ended, to somebody who wants it to run again; they may be its owner or not.
absl::Status RunsStill(const v1::JobStatus& job) {
  const std::string name = JobName(job);
  const std::string is =
      absl::StrCat(" is ", PhaseWord(job.phase()), "; only a job that has ended runs again");
  if (job.owner().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, is, ": phalanx cancel ", name, " ends it"));
  }
  return WithNext(
      absl::FailedPreconditionError(absl::StrCat(name, " of ", job.owner(), is)),
      absl::StrCat("phalanx watch ", name, " waits for its end; ", LineText(job.owner()),
                   " or an operator may end it now: phalanx cancel ", name));
}

}  // namespace

int Rerun(Connection& connection, const RerunOptions& options, Stopper& stopper, Io& io) {
  v1::GetJobRequest get;
  get.set_job(options.job);
  v1::GetJobResponse found;
  if (const absl::Status status = connection.Call(&v1::JobService::Stub::GetJob, get, &found);
      !status.ok()) {
    return FailCall(status, io);
  }
  if (!IsTerminal(found.job().phase())) return Fail(RunsStill(found.job()), io);
  v1::SubmitJobRequest request;
  *request.mutable_document() = std::move(*found.mutable_job()->mutable_document());
  if (!options.name.empty()) {
    absl::StatusOr<std::string> text = WithName(request.document().text(), options.name);
    if (!text.ok()) return Fail(text.status(), io);
    request.mutable_document()->set_text(*std::move(text));
  }
  return SubmitAndTell(connection, std::move(request), options.format, options.wait, stopper, io);
}

int Get(Connection& connection, const std::string& job, Format format, Io& io) {
  v1::GetJobRequest request;
  request.set_job(job);
  v1::GetJobResponse response;
  const absl::Status status = connection.Call(&v1::JobService::Stub::GetJob, request, &response);
  if (!status.ok()) return FailCall(status, io);
  PrintJob(response.job(), format, io.headers, absl::Now(), io.out);
  return kSuccess;
}

int Describe(Connection& connection, const std::string& job, Format format, Io& io) {
  absl::StatusOr<v1::ExplainJobResponse> explained = ExplainJob(connection, job);
  if (!explained.ok()) return FailCall(explained.status(), io);
  if (format == Format::kName) {
    PrintJob(explained->job(), format, io.headers, absl::Now(), io.out);
    return kSuccess;
  }
  const absl::StatusOr<std::vector<v1::JobEvent>> events = ListEvents(connection, {.job = job});
  if (!events.ok()) return FailCall(events.status(), io);
  if (format == Format::kJson || format == Format::kYaml) {
    job::Tree tree = ToTree(*explained);
    tree.entries.push_back(std::move(ToTree("events", *events).entries.front()));
    PrintTree(tree, format, io.out);
    return kSuccess;
  }
  const std::vector<std::string> reasons(explained->reasons().begin(), explained->reasons().end());
  // Without these the rest is told all the same.
  v1::GetJobRequest request;
  request.set_job(JobName(explained->job()));
  v1::GetJobResponse whole;
  if (connection.Call(&v1::JobService::Stub::GetJob, request, &whole).ok())
    *explained->mutable_job()->mutable_document() =
        std::move(*whole.mutable_job()->mutable_document());
  absl::StatusOr<std::vector<v1::Incident>> incidents = std::vector<v1::Incident>();
  if (explained->job().has_failure()) incidents = ListIncidents(connection, job);
  DescribeJob(explained->job(), reasons, incidents, *events, absl::Now(), io.out);
  return kSuccess;
}

int Watch(Connection& connection, const std::string& job, Stopper& stopper, Io& io) {
  return TellOutcome(WatchJob(connection, job, stopper, io), job, io);
}

int Events(Connection& connection, const EventsOptions& options, Io& io) {
  const absl::StatusOr<std::vector<v1::JobEvent>> events = ListEvents(connection, options);
  if (!events.ok()) return FailCall(events.status(), io);
  const bool words = options.format == Format::kTable || options.format == Format::kWide;
  if (events->empty() && words) {
    io.talk << "no such events\n";
    if (!options.types.empty()) TellTypes(connection, options.job, io);
    return kSuccess;
  }
  PrintEvents(*events, options.format, io.headers, io.out);
  return kSuccess;
}

std::optional<absl::Time> ParseSince(const std::string& text, absl::Time now) {
  if (const auto age = job::ParseDuration(text); age && *age >= absl::ZeroDuration()) {
    return now - *age;
  }
  absl::Time time;
  if (absl::ParseTime(absl::RFC3339_full, text, &time, nullptr)) return time;
  return std::nullopt;
}

int Why(Connection& connection, const std::string& job, Format format, Io& io) {
  const absl::StatusOr<v1::ExplainJobResponse> explained = ExplainJob(connection, job);
  if (!explained.ok()) return FailCall(explained.status(), io);
  if (format == Format::kJson || format == Format::kYaml) {
    PrintTree(ToTree(*explained), format, io.out);
    return kSuccess;
  }
  io.out << JobName(explained->job()) << " is " << PhaseWord(explained->job().phase()) << "\n";
  for (const std::string& reason : explained->reasons()) io.out << TerminalText(reason) << "\n";
  if (!explained->job().has_failure()) return kSuccess;
  // Without these the rest is told all the same.
  const absl::StatusOr<std::vector<v1::Incident>> incidents = ListIncidents(connection, job);
  if (!incidents.ok()) return kSuccess;
  for (const std::string& line : EvidenceLines(explained->job(), *incidents))
    io.out << TerminalText(line) << "\n";
  return kSuccess;
}

int Nodes(Connection& connection, Format format, Io& io) {
  const absl::StatusOr<std::vector<v1::NodeStatus>> nodes = ListNodes(connection, false);
  if (!nodes.ok()) return FailCall(nodes.status(), io);
  if (nodes->empty() && (format == Format::kTable || format == Format::kWide)) {
    io.talk << "no nodes\n";
    return kSuccess;
  }
  PrintNodes(*nodes, format, io.headers, absl::Now(), io.out);
  return kSuccess;
}

}  // namespace phalanx::client
