#include "coordinator/rpc/job_calls.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/rpc/access.h"
#include "coordinator/rpc/status_translation.h"
#include "coordinator/wire/common_codec.h"
#include "coordinator/wire/job_codec.h"

namespace phalanx::coordinator {
namespace {

constexpr int kLogRanksMax = 65'536;
constexpr size_t kPlaceBytesMax = 128;

absl::Status CheckLogsRequest(const v1::GetLogsRequest& request) {
  if (request.ranks_size() > kLogRanksMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks: ", request.ranks_size(), ": at most ", kLogRanksMax, " may be named"));
  }
  if (request.tail() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tail: ", request.tail(), ": must be 0 (then all lines) or more"));
  }
  if (request.after_size() > kLogRanksMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("after: ", request.after_size(), ": at most ", kLogRanksMax, " may be named"));
  }
  for (const v1::LogPlace& after : request.after()) {
    if (after.place().size() > kPlaceBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("after.place: ", after.place().size(), " bytes: at most ", kPlaceBytesMax));
    }
  }
  return absl::OkStatus();
}

// `world`: ranks of the job; 0: not known.
absl::Status CheckRanks(const v1::GetLogsRequest& request, JobId job, int32_t world) {
  for (const int32_t rank : request.ranks()) {
    if (world == 0 || (rank >= 0 && rank < world)) continue;
    return absl::NotFoundError(
        absl::StrCat(ToString(job), " has no rank ", rank, "; its ranks are 0 to ", world - 1));
  }
  return absl::OkStatus();
}

// A server stream that writes what a source offers, one message at a time. The source calls Wake();
// Next() is asked whenever nothing is being written.
template <typename Response>
class PumpReactor : public grpc::ServerWriteReactor<Response>,
                    public OpenCall,
                    public std::enable_shared_from_this<PumpReactor<Response>> {
 public:
  // `method`: for the metrics.
  PumpReactor(OpenCalls& calls, Peer peer, absl::string_view method)
      : calls_(calls), peer_(std::move(peer)), method_(method) {}

  // Called once, right after construction; the caller then returns this reactor to gRPC.
  void Begin() {
    self_ = this->shared_from_this();
    if (!peer_.admitted.ok()) return Close(peer_.admitted);
    if (absl::Status status = calls_.Add(self_); !status.ok()) return Close(status);
    if (absl::Status status = Open(); !status.ok()) Close(status);
  }

  void Close(const absl::Status& status) override {
    MutexLock lock(&mu_);
    FinishLocked(status);
  }
  const grpc::AuthContext& peer() const override { return *peer_.who; }

  void Wake() {
    MutexLock lock(&mu_);
    PumpLocked();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    writing_ = false;
    calls_.EndWrite(std::exchange(bytes_, 0));
    if (!ok) return FinishLocked(absl::CancelledError("the caller is gone"));
    PumpLocked();
  }
  void OnCancel() override { Close(absl::CancelledError("the caller is gone")); }
  void OnDone() override {
    Release();
    calls_.Remove(this);
    self_.reset();  // last: may end this object
  }

 protected:
  // Connects to the source. Errors end the call.
  virtual absl::Status Open() = 0;
  // Fills `response` with the next message: true. Or sets `end` if there will be none.
  virtual bool Next(Response& response, std::optional<absl::Status>& end) = 0;
  // Disconnects from the source.
  virtual void Release() = 0;

 private:
  void PumpLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || finished_) return;
    response_.Clear();
    std::optional<absl::Status> end;
    if (Next(response_, end)) {
      const auto bytes = static_cast<int64_t>(response_.ByteSizeLong());
      if (absl::Status status = calls_.BeginWrite(bytes); !status.ok()) {
        return FinishLocked(status);
      }
      bytes_ = bytes;
      writing_ = true;
      this->StartWrite(&response_);
    } else if (end.has_value()) {
      FinishLocked(*end);
    }
  }
  void FinishLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (std::exchange(finished_, true)) return;
    peer_.metrics.StreamEnded(method_, status.code());
    this->Finish(ToGrpc(status));
  }

  OpenCalls& calls_;
  const Peer peer_;
  const absl::string_view method_;
  std::shared_ptr<PumpReactor> self_;  // until OnDone
  Mutex mu_;
  Response response_ ABSL_GUARDED_BY(mu_);
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of what is being written
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

class WatchReactor final : public PumpReactor<v1::WatchJobResponse> {
 public:
  WatchReactor(Board& board, OpenCalls& calls, Peer peer, std::string job)
      : PumpReactor(calls, std::move(peer), "WatchJob"), board_(board), name_(std::move(job)) {}

 private:
  absl::Status Open() override {
    const absl::StatusOr<JobViewPtr> job = board_.Find(name_);
    if (!job.ok()) return job.status();
    job_ = (*job)->id;
    subscription_ = std::make_shared<Subscription>([weak = weak_from_this()] {
      if (auto self = weak.lock()) self->Wake();
    });
    return board_.Subscribe(job_, subscription_);
  }

  bool Next(v1::WatchJobResponse& response, std::optional<absl::Status>& end) override {
    std::optional<Subscription::Update> update = subscription_->Take();
    if (!update.has_value()) {
      if (terminal_) end = absl::OkStatus();
      return false;
    }
    terminal_ = job::IsTerminal(update->job->phase);
    // The document does not change: it travels once.
    ToProto(*update->job, !std::exchange(document_sent_, true), response.mutable_job());
    for (const StepReport& step : update->steps) ToProto(step, response.add_steps());
    for (const JobEvent& event : update->events) ToProto(event, response.add_events());
    if (update->evaluation != nullptr) ToProto(*update->evaluation, response.mutable_evaluation());
    return true;
  }

  void Release() override {
    if (subscription_ != nullptr) board_.Unsubscribe(job_, subscription_.get());
  }

  Board& board_;
  const std::string name_;
  JobId job_;
  std::shared_ptr<Subscription> subscription_;
  bool terminal_ = false;
  bool document_sent_ = false;
};

class LogsReactor final : public PumpReactor<v1::GetLogsResponse> {
 public:
  LogsReactor(Board& board, Driver& driver, LogRelay& logs, OpenCalls& calls, Peer peer,
              const v1::GetLogsRequest& request)
      : PumpReactor(calls, std::move(peer), "GetLogs"),
        board_(board),
        driver_(driver),
        logs_(logs),
        request_(request) {}

 private:
  absl::Status Open() override {
    const absl::StatusOr<JobViewPtr> job = board_.Find(request_.job());
    if (!job.ok()) return job.status();
    if (absl::Status status = CheckLogsRequest(request_); !status.ok()) return status;
    const int32_t world = (*job)->request->world;
    if (absl::Status status = CheckRanks(request_, (*job)->id, world); !status.ok()) return status;
    const std::weak_ptr<PumpReactor> weak = weak_from_this();
    const bool follow = request_.follow();
    pipe_ = std::make_shared<LogPipe>(
        [weak] {
          if (auto self = weak.lock()) self->Wake();
        },
        follow ? LogPipe::Failure::kEndsAll : LogPipe::Failure::kEndsItsSource);
    LogsRequested fetch{.job = (*job)->id,
                        .ranks = {request_.ranks().begin(), request_.ranks().end()},
                        .follow = follow,
                        .tail = request_.tail(),
                        .placement = *(*job)->placement,
                        .earlier_nodes = *(*job)->earlier_nodes};
    for (const v1::LogPlace& after : request_.after()) {
      fetch.after[after.node()][after.rank()] = after.place();
    }
    driver_.FetchLogs(std::move(fetch), [weak, pipe = pipe_, logs = &logs_, follow,
                                         person = NameOf(CallerOf(peer()))](
                                            absl::StatusOr<std::vector<LogSource>> sources) {
      const std::shared_ptr<PumpReactor> self = weak.lock();
      if (self == nullptr) return;
      if (!sources.ok()) return self->Close(sources.status());
      std::vector<std::string> absent;
      for (const LogSource& source : *sources) {
        if (source.fetch_id.empty()) absent.push_back(source.node);
      }
      if (!absent.empty() && absent.size() == sources->size()) {
        absent.resize(std::min(absent.size(), kNodesNamedMax));
        return self->Close(absl::UnavailableError(absl::StrCat(
            "the nodes that keep these logs are not connected: ", absl::StrJoin(absent, ", "))));
      }
      // Nothing else may come for hours.
      if (follow) pipe->Push({}, [] {});
      for (const LogSource& source : *sources) {
        if (source.fetch_id.empty()) {
          v1::GetLogsResponse said;
          said.set_node(source.node);
          said.set_absent(true);
          pipe->Push(std::move(said), [] {});
          continue;
        }
        pipe->AddSource(source.fetch_id);
        logs->Add(source.fetch_id, {.pipe = pipe, .node = source.node, .person = person});
      }
      pipe->Seal();
    });
    return absl::OkStatus();
  }

  bool Next(v1::GetLogsResponse& response, std::optional<absl::Status>& end) override {
    std::optional<v1::GetLogsResponse> chunk = pipe_->Take(end);
    if (!chunk.has_value()) return false;
    response = *std::move(chunk);
    return true;
  }

  void Release() override {
    if (pipe_ == nullptr) return;
    pipe_->Close();
    logs_.Remove(pipe_.get());
  }

  Board& board_;
  Driver& driver_;
  LogRelay& logs_;
  const v1::GetLogsRequest request_;
  std::shared_ptr<LogPipe> pipe_;
};

}  // namespace

absl::Status OpenCalls::Add(std::shared_ptr<OpenCall> call) {
  std::shared_ptr<OpenCall> oldest;
  {
    MutexLock lock(&mu_);
    if (!closed_.ok()) return closed_;
    const std::string person = NameOf(CallerOf(call->peer()));
    const auto known = persons_.find(person);
    if (known != persons_.end() && known->second >= person_max_) {
      return absl::ResourceExhaustedError(
          absl::StrCat(person, " has ", known->second, " such calls open; at most ", person_max_));
    }
    if (calls_.size() >= calls_max_) {
      if (full_ == Full::kRefuse || calls_.empty()) {
        return absl::ResourceExhaustedError(
            absl::StrCat(calls_.size(), " such calls are open; at most ", calls_max_));
      }
      oldest = TakeLocked(calls_.begin());
    }
    if (!person.empty()) ++persons_[person];
    const OpenCall* key = call.get();
    places_.emplace(key, calls_.insert(calls_.end(), std::move(call)));
  }
  if (oldest != nullptr) {
    oldest->Close(absl::ResourceExhaustedError(
        absl::StrCat("newer calls took the place of this one; at most ", calls_max_, " are open")));
  }
  return absl::OkStatus();
}

void OpenCalls::Remove(const OpenCall* call) {
  std::shared_ptr<OpenCall> held;  // destroyed outside the lock
  MutexLock lock(&mu_);
  const auto it = places_.find(call);
  if (it == places_.end()) return;
  held = TakeLocked(it->second);
}

std::shared_ptr<OpenCall> OpenCalls::TakeLocked(Calls::iterator call) {
  std::shared_ptr<OpenCall> taken = std::move(*call);
  places_.erase(taken.get());
  calls_.erase(call);
  const auto person = persons_.find(NameOf(CallerOf(taken->peer())));
  if (person != persons_.end() && --person->second == 0) persons_.erase(person);
  return taken;
}

absl::Status OpenCalls::BeginWrite(int64_t bytes) {
  if ((bytes_ += bytes) <= bytes_max_) return absl::OkStatus();
  bytes_ -= bytes;
  return absl::ResourceExhaustedError(absl::StrCat("messages to such calls that are not read hold ",
                                                   bytes_.load(), " bytes; at most ", bytes_max_,
                                                   ": try again later"));
}

void OpenCalls::CloseAll(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    closed_ = status;
  }
  for (const auto& call : All()) call->Close(status);
}

void OpenCalls::CloseOf(const std::function<bool(const grpc::AuthContext& peer)>& such,
                        const absl::Status& status) {
  for (const auto& call : All()) {
    if (such(call->peer())) call->Close(status);
  }
}

std::vector<std::shared_ptr<OpenCall>> OpenCalls::All() const {
  MutexLock lock(&mu_);
  return {calls_.begin(), calls_.end()};
}

size_t OpenCalls::size() const {
  MutexLock lock(&mu_);
  return calls_.size();
}

grpc::ServerWriteReactor<v1::WatchJobResponse>* MakeWatchCall(Board& board, OpenCalls& calls,
                                                              Peer peer,
                                                              const v1::WatchJobRequest& request) {
  auto reactor = std::make_shared<WatchReactor>(board, calls, std::move(peer), request.job());
  reactor->Begin();
  return reactor.get();
}

grpc::ServerWriteReactor<v1::GetLogsResponse>* MakeLogsCall(Board& board, Driver& driver,
                                                            LogRelay& logs, OpenCalls& calls,
                                                            Peer peer,
                                                            const v1::GetLogsRequest& request) {
  auto reactor =
      std::make_shared<LogsReactor>(board, driver, logs, calls, std::move(peer), request);
  reactor->Begin();
  return reactor.get();
}

}  // namespace phalanx::coordinator
