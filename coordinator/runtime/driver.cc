#include "coordinator/runtime/driver.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/wire/record_codec.h"
#include "core/base/status.h"

namespace phalanx::coordinator {
namespace {

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

}  // namespace

Driver::Driver(DriverOptions options, const Clock& clock, Board& board, Metrics& metrics,
               SessionSink& sink)
    : options_(std::move(options)),
      clock_(clock),
      board_(board),
      metrics_(metrics),
      sink_(sink),
      machine_(options_.machine),
      watch_(clock.Now()),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

absl::StatusOr<std::unique_ptr<Driver>> Driver::Start(DriverOptions options, const Clock& clock,
                                                      std::unique_ptr<Backend> backend,
                                                      Board& board, Metrics& metrics,
                                                      SessionSink& sink) {
  std::vector<Record> records;
  {
    ASSIGN_OR_RETURN(const std::vector<StoredRecord> stored, backend->Load());
    records.reserve(stored.size());
    for (const StoredRecord& record : stored) {
      absl::StatusOr<Record> decoded = DecodeRecord(record.bytes);
      if (!decoded.ok()) {
        return Annotate(decoded.status(), absl::StrCat("journal record ", record.number));
      }
      records.push_back(*std::move(decoded));
    }
  }
  std::unique_ptr<Driver> driver(new Driver(std::move(options), clock, board, metrics, sink));
  driver->journal_ = std::make_unique<Journal>(
      std::move(backend),
      [self = driver.get()](const CommitReport& report) { self->OnCommit(report); });
  std::vector<Action> actions = driver->machine_.Recover(clock.Now(), records);
  records = {};
  driver->Carry(std::move(actions));
  driver->thread_ = std::jthread([self = driver.get()] { self->Run(); });
  return driver;
}

Driver::~Driver() {
  Stop();
  close(wake_);
}

void Driver::Wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then it is readable anyway.
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
}

void Driver::Wait(absl::Duration timeout) {
  const timespec time = absl::ToTimespec(std::max(timeout, absl::ZeroDuration()));
  pollfd ready{wake_, POLLIN, 0};
  if (ppoll(&ready, 1, &time, nullptr) <= 0) return;
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t bytes = read(wake_, &count, sizeof(count));
}

void Driver::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    if (refusal_.ok()) refusal_ = absl::UnavailableError("the coordinator is stopping");
    Wake();
  }
  if (thread_.joinable()) thread_.join();
  journal_.reset();
  RefuseAll(absl::UnavailableError("the coordinator is stopping"));
}

size_t Driver::inbox_size() const {
  MutexLock lock(&mu_);
  return inbox_.size();
}

void Driver::Post(Event event, std::function<void()> done) {
  MutexLock lock(&mu_);
  if (stopping_) return;
  inbox_.push_back({std::move(event), std::move(done)});
  if (inbox_.size() == 1) Wake();
}

template <typename Make>
void Driver::Request(Callback callback, Make make) {
  absl::Status refusal;
  {
    MutexLock lock(&mu_);
    refusal = refusal_;
    if (refusal.ok() && waiting_.size() >= options_.requests_max) {
      refusal = absl::ResourceExhaustedError(
          absl::StrCat(waiting_.size(), " requests are waiting; try again later"));
    }
    if (refusal.ok()) {
      const Token token{++last_token_};
      waiting_.emplace(token, std::move(callback));
      inbox_.push_back({make(token), nullptr});
      if (inbox_.size() == 1) Wake();
      return;
    }
  }
  std::visit([&refusal](auto& call) { call(refusal); }, callback);
}

void Driver::Submit(JobRequestPtr request, std::string request_id, JobCallback callback) {
  Request(std::move(callback), [&](Token token) {
    return Event(SubmitRequested{token, std::move(request), std::move(request_id)});
  });
}
void Driver::Cancel(JobId job, JobCallback callback) {
  Request(std::move(callback), [&](Token token) { return Event(CancelRequested{token, job}); });
}
void Driver::Explain(JobId job, ReasonsCallback callback) {
  Request(std::move(callback), [&](Token token) { return Event(ExplainRequested{token, job}); });
}
void Driver::FetchLogs(LogsRequested request, LogsCallback callback) {
  Request(std::move(callback), [&](Token token) {
    request.token = token;
    return Event(std::move(request));
  });
}

template <typename C, typename T>
void Driver::Answer(Token token, T result) {
  Callback callback;
  {
    MutexLock lock(&mu_);
    const auto it = waiting_.find(token);
    if (it == waiting_.end()) return;
    callback = std::move(it->second);
    waiting_.erase(it);
  }
  if (C* call = std::get_if<C>(&callback)) (*call)(std::move(result));
}

void Driver::RefuseAll(const absl::Status& status) {
  std::map<Token, Callback> waiting;
  {
    MutexLock lock(&mu_);
    waiting = std::exchange(waiting_, {});
  }
  for (auto& [token, callback] : waiting) {
    std::visit([&status](auto& call) { call(status); }, callback);
  }
}

void Driver::OnCommit(const CommitReport& report) {
  metrics_.Commit(report.status.ok(), report.records, report.duration);
  if (report.status.ok()) return Post(RecordStored{report.last});
  const absl::Status refusal =
      absl::UnavailableError(absl::StrCat("the store has failed: ", report.status.message()));
  {
    MutexLock lock(&mu_);
    refusal_ = refusal;
  }
  options_.on_store_failed(report.status);
  RefuseAll(refusal);
}

Instant Driver::Look() {
  const Instant now = clock_.Now();
  const absl::Duration stall = watch_.Look(now);
  if (stall > absl::ZeroDuration()) Carry(machine_.Step(now, Stalled{stall}));
  return now;
}

void Driver::Run() {
  pthread_setname_np(pthread_self(), "driver");
  while (true) {
    Wait(std::min(machine_.NextDeadline() - Look(), StallWatch::kTick));
    std::vector<Entry> batch;
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
      batch = std::exchange(inbox_, {});
    }
    for (Entry& entry : batch) {
      Carry(machine_.Step(Look(), entry.event));
      if (entry.done) entry.done();
    }
    const Instant now = Look();
    if (now >= machine_.NextDeadline()) Carry(machine_.Step(now, DeadlineReached{}));
  }
}

void Driver::Carry(std::vector<Action> actions) {
  for (Action& action : actions) Carry(action);
}

void Driver::Carry(Action& action) {
  std::visit(Overloaded{
                 [&](StoreRecord& a) {
                   journal_->Append({.number = a.record_number, .bytes = EncodeRecord(a.record)});
                 },
                 [&](SendWelcome& a) { sink_.Welcome(a.session); },
                 [&](SendCommand& a) { sink_.Send(a.session, a.command_number, a.command); },
                 [&](CloseSession& a) { sink_.Close(a.session, a.status); },
                 [&](EndLogs& a) { sink_.EndLogs(a.fetch_id, a.reason); },
                 [&](PublishJob& a) {
                   CountPhase(*a.job);
                   board_.Publish(a);
                 },
                 [&](PublishStep& a) {
                   metrics_.Step();
                   board_.Publish(a);
                 },
                 [&](PublishHeartbeat& a) {
                   metrics_.Heartbeat();
                   board_.Publish(a);
                 },
                 [&](AnswerJob& a) { Answer<JobCallback>(a.token, std::move(a.job)); },
                 [&](AnswerExplain& a) { Answer<ReasonsCallback>(a.token, std::move(a.reasons)); },
                 [&](AnswerLogs& a) { Answer<LogsCallback>(a.token, std::move(a.sources)); },
                 [&](LogLine& a) { options_.log(a.text); },
                 [&](auto& a) { board_.Publish(a); },
             },
             action);
}

void Driver::CountPhase(const JobView& job) {
  const auto [it, added] = counted_phases_.emplace(job.id, job.phase);
  if (added && job.phase != job::JobPhase::kQueued) {
    // Recovered: counted by the coordinator that saw it happen.
    if (job::IsTerminal(job.phase)) counted_phases_.erase(it);
    return;
  }
  if (it->second == job.phase) return;
  it->second = job.phase;
  if (job.phase == job::JobPhase::kStarting) {
    metrics_.JobStarted(job.started.value_or(job.submitted) - job.submitted);
  } else if (job.phase == job::JobPhase::kRunning && job.started.has_value()) {
    metrics_.JobRunning(clock_.Now() - *job.started);
  } else if (job::IsTerminal(job.phase)) {
    metrics_.JobEnded(job.phase, job.failure.has_value() ? job.failure->cause : "");
    counted_phases_.erase(it);
  }
}

}  // namespace phalanx::coordinator
