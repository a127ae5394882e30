#include "client/logs.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/job_view.h"
#include "client/rpc_status.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"
#include "core/job/log_dropped.h"
#include "core/job/scalar.h"
#include "core/wire/job_yaml.h"

namespace phalanx::client {
namespace {

// "2026-11-24T02:13:25.890Z ", with which a rank begins the lines that it writes itself.
constexpr size_t kStampBytes = 25;

// When a line was written, taken from its beginning; nullopt: it does not say, and stays as it is.
std::optional<absl::Time> TakeStamp(absl::string_view& line) {
  if (line.size() < kStampBytes || line[10] != 'T' || line[kStampBytes - 2] != 'Z' ||
      line[kStampBytes - 1] != ' ') {
    return std::nullopt;
  }
  absl::Time time;
  if (!absl::ParseTime(absl::RFC3339_full, line.substr(0, kStampBytes - 1), &time, nullptr))
    return std::nullopt;
  line.remove_prefix(kStampBytes);
  return time;
}

void SetDeadline(grpc::ClientContext& context, absl::Duration timeout) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
}

class LogReading {
 public:
  LogReading(Connection& connection, const LogsOptions& options, Stopper& stopper, Io& io)
      : connection_(connection), options_(options), stopper_(stopper), io_(io) {
    request_.set_job(options.job);
    request_.set_follow(options.follow);
    // Nodes count a tail over all epochs.
    if (!HoldsTail()) request_.set_tail(options.tail);
    for (const int32_t rank : options.ranks) request_.add_ranks(rank);
  }

  // From whoever serves, and answers within the connection's timeout.
  grpc::Status Once() {
    const auto end =
        std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(connection_.timeout());
    const auto left = [end] { return absl::FromChrono(end - std::chrono::steady_clock::now()); };
    while (true) {
      const grpc::Status status = Read(left());
      // What a coordinator that serves cannot give now is not asked for again.
      const bool unanswered = IsOfStandby(status) || (status.error_code() == grpc::UNAVAILABLE &&
                                                      !SaidByCoordinator(status));
      if (!unanswered || !printed_.empty() || stopper_.stopped()) return status;
      const absl::Duration wait = connection_.TryNext(backoff_);
      if (wait >= left()) return status;
      if (!connection_.has_several() && !std::exchange(lost_, true)) TellLost(status);
      connection_.Wait(status, wait);
    }
  }

  // Prints one stream to its end. Only one that follows has no deadline.
  grpc::Status Read(absl::Duration patience = absl::InfiniteDuration()) {
    grpc::ClientContext context;
    if (patience < absl::InfiniteDuration()) SetDeadline(context, patience);
    const StopScope scope(stopper_, context);
    const auto stream = connection_.stub().GetLogs(&context, request_);
    v1::GetLogsResponse chunk;
    bool opened = false;
    while (stream->Read(&chunk)) {
      opened = true;
      Print(chunk);
      if (!io_.out) context.TryCancel();  // nobody reads what is printed
    }
    grpc::Status status = stream->Finish();
    // A stream may be quiet for hours before it breaks.
    heard_ = std::chrono::steady_clock::now();
    lost_ &= !opened;
    PrintHeld();
    return status;
  }

  // Whether any line was printed.
  bool printed() const { return any_; }

  // Until the job has ended, or nobody has answered for the connection's timeout.
  grpc::Status Follow() {
    while (true) {
      v1::GetJobResponse answer;
      grpc::Status status = Ask(&answer);
      if (status.ok()) {
        // A name may be another job's by the next time.
        request_.set_job(JobName(answer.job()));
        GoOnAfterWhatWasPrinted();
        status = Read();
      }
      if (stopper_.stopped() || !io_.out) return grpc::Status::OK;
      if (status.ok()) {
        // What was read after the job's end is the rest.
        if (IsTerminal(answer.job().phase())) return status;
        Heard();
      } else if (!IsOfEnding(status) || Left() <= kNone) {
        return status;
      } else if (!std::exchange(lost_, true)) {
        TellLost(status);
      }
      const absl::Duration wait = status.ok() ? backoff_.Next() : connection_.TryNext(backoff_);
      connection_.Wait(status, std::min(wait, std::max(Left(), kNone)));
    }
  }

 private:
  static constexpr absl::Duration kNone = absl::ZeroDuration();

  // A clock that is set meanwhile ends or prolongs nothing.
  absl::Duration Left() const {
    return connection_.timeout() - absl::FromChrono(std::chrono::steady_clock::now() - heard_);
  }
  void Heard() {
    heard_ = std::chrono::steady_clock::now();
    lost_ = false;
  }

  void TellLost(const grpc::Status& status) {
    io_.talk << TerminalText(connection_.Explain(status).message()) << "; trying again\n";
  }

  grpc::Status Ask(v1::GetJobResponse* answer) {
    grpc::ClientContext context;
    SetDeadline(context, Left());
    const StopScope scope(stopper_, context);
    v1::GetJobRequest request;
    request.set_job(request_.job());
    return connection_.stub().GetJob(&context, request, answer);
  }

  void GoOnAfterWhatWasPrinted() {
    request_.clear_after();
    for (const auto& [source, place] : printed_) {
      v1::LogPlace* after = request_.add_after();
      after->set_node(source.first);
      after->set_rank(source.second);
      after->set_place(place);
    }
  }

  struct HeldLine {
    std::string line;
    std::optional<absl::Time> written;  // of the line before it, where it does not say
  };

  // The last lines of an epoch are known once all of them are.
  bool HoldsTail() const { return options_.epoch != 0 && options_.tail > 0 && !options_.follow; }

  void Hold(const v1::GetLogsResponse& chunk, absl::string_view line,
            std::optional<absl::Time>& written) {
    absl::string_view text = line;
    std::deque<HeldLine>& held = held_[{chunk.node(), chunk.rank()}];
    held.push_back({std::string(line), written});
    if (const std::optional<absl::Time> own = TakeStamp(text)) written = own;
    if (held.size() > static_cast<size_t>(options_.tail)) held.pop_front();
  }

  void PrintHeld() {
    for (auto& [source, lines] : std::exchange(held_, {})) {
      for (HeldLine& held : lines) PrintLine(held.line, source.second, held.written);
    }
    io_.out << std::flush;
  }

  // Whether it was written on a node and in the epoch that are asked for.
  bool Wanted(const v1::GetLogsResponse& chunk) {
    const std::vector<std::string>& nodes = options_.nodes;
    if (!nodes.empty() && std::find(nodes.begin(), nodes.end(), chunk.node()) == nodes.end())
      return false;
    if (options_.epoch == 0 || chunk.epoch() == options_.epoch) return true;
    if (chunk.epoch() == 0 && silent_.insert(chunk.node()).second) {
      io_.talk << "node " << TerminalText(chunk.node())
               << " does not say in which epoch its ranks wrote what: its worker is of an older "
                  "version\n";
    }
    return false;
  }

  void TellAbsent(const std::string& node) {
    const std::vector<std::string>& wanted = options_.nodes;
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), node) == wanted.end()) return;
    if (!absent_.insert(node).second) return;
    io_.talk << "node " << TerminalText(node)
             << " is not connected: what ranks wrote there is left out\n";
  }

  void Print(const v1::GetLogsResponse& chunk) {
    if (chunk.absent()) return TellAbsent(chunk.node());
    if (chunk.text().empty()) return;
    backoff_.Reset();
    printed_[{chunk.node(), chunk.rank()}] = chunk.place();
    if (!Wanted(chunk)) return;
    std::vector<absl::string_view> lines = absl::StrSplit(chunk.text(), '\n');
    // Whole lines end with a line end, after which nothing is left.
    if (lines.back().empty()) lines.pop_back();
    std::optional<absl::Time>& written = written_[{chunk.node(), chunk.rank()}];
    for (const absl::string_view line : lines)
      HoldsTail() ? Hold(chunk, line, written) : PrintLine(line, chunk.rank(), written);
    io_.out << std::flush;
  }

  // `written`: when the rank's line before it was; then when this one was.
  void PrintLine(absl::string_view line, int32_t rank, std::optional<absl::Time>& written) {
    absl::string_view text = line;
    // What libraries write says no time: it comes right behind what the rank wrote.
    if (const std::optional<absl::Time> own = TakeStamp(text)) written = own;
    if (options_.since.has_value() && written.has_value() && *written < *options_.since) return;
    any_ = true;
    if (options_.ranks.size() != 1) io_.out << "[" << rank << "] ";
    if (options_.raw) {
      io_.out << line << "\n";
      return;
    }
    if (options_.timestamps) {
      io_.out << (written.has_value()
                      ? absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", *written, absl::UTCTimeZone())
                      : "-")
              << " ";
    }
    io_.out << TerminalText(text) << "\n";
  }

  Connection& connection_;
  const LogsOptions& options_;
  Stopper& stopper_;
  Io& io_;
  v1::GetLogsRequest request_;
  Backoff backoff_{Connection::Draw()};
  std::chrono::steady_clock::time_point heard_ = std::chrono::steady_clock::now();
  bool lost_ = false;
  bool any_ = false;
  std::map<std::pair<std::string, int32_t>, std::deque<HeldLine>> held_;  // by node and rank
  std::set<std::string> absent_;  // nodes that are not there, as was said
  std::set<std::string> silent_;  // nodes that do not say of which epoch their lines are
  // Of each node and rank: where what was printed ends, and when the last line was written.
  std::map<std::pair<std::string, int32_t>, std::string> printed_;
  std::map<std::pair<std::string, int32_t>, std::optional<absl::Time>> written_;
};

// The ranks that `modules` of a job have, appended to `ranks`. Errors: InvalidArgument.
absl::Status AddRanksOf(const std::vector<std::string>& modules, const v1::JobStatus& job,
                        std::vector<int32_t>& ranks) {
  ASSIGN_OR_RETURN(const job::ReadJob read,
                   wire::ReadJobFile(job.document().text(), job::Purpose::kAccepted));
  std::vector<absl::string_view> names;
  for (const job::Module& module : read.spec.modules) names.push_back(module.name);
  for (const std::string& name : modules) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      const auto near = job::NearestName(name, names);
      return absl::InvalidArgumentError(
          absl::StrCat(JobName(job), " has no module \"", LineText(name), "\"; ",
                       near.has_value() ? absl::StrCat("did you mean ", *near, "?")
                                        : absl::StrCat("it has ", absl::StrJoin(names, ", "))));
    }
    const job::Module& module = read.spec.modules[static_cast<size_t>(found - names.begin())];
    for (int32_t i = 0; i < module.parallel.ranks; ++i) ranks.push_back(module.offset + i);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return absl::OkStatus();
}

// Options that say which ranks and which epoch, of what the job itself says.
absl::StatusOr<LogsOptions> Resolved(Connection& connection, LogsOptions options) {
  if (options.modules.empty() && !options.previous && options.epoch == 0) return options;
  v1::GetJobRequest request;
  request.set_job(options.job);
  v1::GetJobResponse response;
  RETURN_IF_ERROR(connection.Call(&v1::JobService::Stub::GetJob, request, &response));
  const v1::JobStatus& job = response.job();
  options.job = JobName(job);
  RETURN_IF_ERROR(AddRanksOf(options.modules, job, options.ranks));
  if (!options.previous) {
    if (options.follow || options.epoch <= job.epoch()) return options;
    return absl::InvalidArgumentError(
        job.epoch() == 0
            ? absl::StrCat(JobName(job), " has not started, and has no epoch yet: ", "phalanx why ",
                           JobName(job))
            : absl::StrCat(JobName(job), " has no epoch ", options.epoch, "; its last one is ",
                           job.epoch()));
  }
  options.epoch = job.epoch() - 1;
  if (options.epoch >= 1) return options;
  return absl::FailedPreconditionError(
      absl::StrCat(JobName(job),
                   " is in its first epoch, and has no other logs than those: "
                   "leave --previous out"));
}

// What a node says last of lines that it dropped.
std::string WhatWasLost(Connection& connection, const LogsOptions& options) {
  v1::ListEventsRequest request;
  request.set_job(options.job);
  request.add_types(job::kLogDropped);
  v1::ListEventsResponse response;
  if (!connection.Call(&v1::JobService::Stub::ListEvents, request, &response).ok() ||
      response.events().empty()) {
    return "";
  }
  return absl::StrCat("; ", TerminalText(response.events().rbegin()->message()));
}

// Why nothing was printed.
std::string WhyNoLogs(Connection& connection, const LogsOptions& options) {
  v1::GetJobRequest request;
  request.set_job(options.job);
  v1::GetJobResponse response;
  if (!connection.Call(&v1::JobService::Stub::GetJob, request, &response).ok())
    return "no such logs";
  const v1::JobStatus& job = response.job();
  if (job.epoch() > 0 && options.nodes.empty())
    return absl::StrCat("no such logs", WhatWasLost(connection, options));
  if (job.epoch() > 0) {
    std::vector<std::string> names;
    for (const v1::NodeDevices& node : job.placement().nodes())
      names.push_back(TerminalText(node.node()));
    for (const std::string& node : job.earlier_nodes()) names.push_back(TerminalText(node));
    return absl::StrCat("no such logs; ", JobName(job), " has been on ",
                        absl::StrJoin(names, ", "));
  }
  return absl::StrCat(JobName(job), " has not started, and has no logs: phalanx why ",
                      JobName(job));
}

}  // namespace

int Logs(Connection& connection, const LogsOptions& options, Stopper& stopper, Io& io) {
  const absl::StatusOr<LogsOptions> resolved = Resolved(connection, options);
  if (!resolved.ok()) return FailCall(resolved.status(), io);
  LogReading reading(connection, *resolved, stopper, io);
  const grpc::Status status = resolved->follow ? reading.Follow() : reading.Once();
  if (!status.ok() && !stopper.stopped() && io.out) {
    return FailCall(connection.Explain(status), io);
  }
  if (!reading.printed() && !resolved->follow) io.talk << WhyNoLogs(connection, *resolved) << "\n";
  return kSuccess;
}

}  // namespace phalanx::client
