#include "client/logs.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/job_view.h"
#include "core/base/terminal_text.h"

namespace phalanx::client {
namespace {

void SetDeadline(grpc::ClientContext& context, absl::Duration timeout) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
}

class LogReading {
 public:
  LogReading(Connection& connection, const LogsOptions& options, Stopper& stopper, Io& io)
      : connection_(connection), options_(options), stopper_(stopper), io_(io) {
    request_.set_job(options.job);
    request_.set_follow(options.follow);
    request_.set_tail(options.tail);
    for (const int32_t rank : options.ranks) request_.add_ranks(rank);
  }

  // Prints one stream to its end. Only one that follows has no deadline.
  grpc::Status Read() {
    grpc::ClientContext context;
    if (!options_.follow) SetDeadline(context, connection_.timeout());
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
    return status;
  }

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
      } else if (status.error_code() != grpc::StatusCode::UNAVAILABLE || Left() <= kNone) {
        return status;
      } else if (!std::exchange(lost_, true)) {
        io_.talk << TerminalText(connection_.Explain(status).message()) << "; trying again\n";
      }
      absl::SleepFor(std::min(backoff_.Next(), std::max(Left(), kNone)));
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

  void Print(const v1::GetLogsResponse& chunk) {
    if (chunk.text().empty()) return;
    backoff_.Reset();
    const bool named = options_.ranks.size() != 1;
    std::vector<absl::string_view> lines = absl::StrSplit(chunk.text(), '\n');
    // Whole lines end with a line end, after which nothing is left.
    if (lines.back().empty()) lines.pop_back();
    for (const absl::string_view line : lines) {
      if (named) io_.out << "[" << chunk.rank() << "] ";
      io_.out << (options_.raw ? std::string(line) : TerminalText(line)) << "\n";
    }
    io_.out << std::flush;
    printed_[{chunk.node(), chunk.rank()}] = chunk.place();
  }

  Connection& connection_;
  const LogsOptions& options_;
  Stopper& stopper_;
  Io& io_;
  v1::GetLogsRequest request_;
  Backoff backoff_{Connection::Draw()};
  std::chrono::steady_clock::time_point heard_ = std::chrono::steady_clock::now();
  bool lost_ = false;
  // Where what was printed ends, by node and rank.
  std::map<std::pair<std::string, int32_t>, std::string> printed_;
};

}  // namespace

int Logs(Connection& connection, const LogsOptions& options, Stopper& stopper, Io& io) {
  LogReading reading(connection, options, stopper, io);
  const grpc::Status status = options.follow ? reading.Follow() : reading.Read();
  if (status.ok() || stopper.stopped() || !io.out) return kSuccess;
  return Fail(connection.Explain(status), io);
}

}  // namespace phalanx::client
