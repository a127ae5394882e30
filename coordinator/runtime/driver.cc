#include "coordinator/runtime/driver.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "coordinator/machine/ended_job.h"
#include "coordinator/machine/incident.h"
#include "coordinator/runtime/planning.h"
#include "coordinator/wire/ended_codec.h"
#include "coordinator/wire/record_codec.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"

namespace phalanx::coordinator {
namespace {

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

// One plan may take seconds; another job need not wait for it.
constexpr int32_t kPlannerThreads = 2;

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
      counting_(metrics, options_.machine.heartbeat_interval),
      pulse_("the driver", options_.silence_max, clock.Now()) {}

absl::StatusOr<std::unique_ptr<Driver>> Driver::Start(DriverOptions options, const Clock& clock,
                                                      std::unique_ptr<Backend> backend,
                                                      Board& board, Metrics& metrics,
                                                      SessionSink& sink) {
  std::unique_ptr<Driver> driver(new Driver(std::move(options), clock, board, metrics, sink));
  driver->ended_ = backend->ended_jobs();
  board.Connect(driver->ended_);
  std::vector<JournalRecord> records;
  ASSIGN_OR_RETURN(
      const StoreMarks marks, backend->Load([&](const StoredRecord& stored) -> absl::Status {
        absl::StatusOr<JournalRecord> record = DecodeRecord(stored.bytes, stored.number);
        if (!record.ok()) {
          return Annotate(record.status(), absl::StrCat("the store: record ", stored.number, " of ",
                                                        ToString(stored.job)));
        }
        if (auto* reached = std::get_if<StepReached>(&record->body)) {
          driver->step_records_[stored.job] = stored.number;
          board.RestoreCurve(stored.job, std::exchange(reached->curve, {}));
        } else if (const auto* marked = std::get_if<NodeMarked>(&record->body)) {
          driver->mark_records_[marked->node] = stored.number;
        } else if (const auto* used = std::get_if<DeviceTimeUsed>(&record->body)) {
          driver->time_records_[used->owner] = stored.number;
        }
        records.push_back(*std::move(record));
        return absl::OkStatus();
      }));
  driver->journal_ = std::make_unique<Journal>(
      std::move(backend), driver->options_.journal, clock,
      [self = driver.get()](const CommitReport& report) { self->OnCommit(report); });
  // Beside those that the machine orders one by one there is one for each job that starts anew.
  const size_t plans_max = driver->options_.machine.plans_max +
                           static_cast<size_t>(driver->options_.machine.live_jobs_max);
  driver->planners_ = std::make_unique<WorkPool>("planner", WorkPool::Priority::kBehind,
                                                 kPlannerThreads, plans_max);
  FillLayouts(records);
  std::vector<Action> actions = driver->machine_.Recover(clock.Now(), records, marks);
  records = {};
  driver->counting_.set_recovering(true);
  driver->Carry(std::move(actions));
  driver->counting_.set_recovering(false);
  driver->pulse_.Beat(clock.Now());
  driver->thread_ = std::jthread([self = driver.get()] { self->Run(); });
  return driver;
}

Driver::~Driver() { Stop(); }

void Driver::Stop() {
  ended_on_request_ = true;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    waker_.Wake();
  }
  if (thread_.joinable()) thread_.join();
  std::unique_ptr<Journal> journal;  // ended outside the lock: its thread posts
  {
    MutexLock lock(&mu_);
    journal = std::move(journal_);
  }
  journal.reset();
  RefuseAll(absl::UnavailableError("the coordinator is stopping"));
  // Last: a plan under way may take seconds, and whoever follows waits for the store.
  if (planners_ != nullptr) planners_->Stop();
}

size_t Driver::inbox_size() const {
  MutexLock lock(&mu_);
  return inbox_.size();
}

absl::Status Driver::accepting() const {
  MutexLock lock(&mu_);
  return AcceptingLocked();
}

absl::Status Driver::alive() const {
  return ended_on_request_ ? absl::OkStatus() : pulse_.Alive(clock_.Now());
}

absl::Status Driver::AcceptingLocked() const {
  if (stopping_) return absl::UnavailableError("the coordinator is stopping");
  if (!store_failure_.ok()) return store_failure_;
  const absl::Duration committing = journal_->committing_for();
  if (committing > options_.commit_time_max) {
    return absl::UnavailableError(
        absl::StrCat("the store has not answered for ",
                     absl::FormatDuration(absl::Trunc(committing, absl::Seconds(1)))));
  }
  return absl::OkStatus();
}

void Driver::Post(Event event, std::function<void()> done) {
  MutexLock lock(&mu_);
  if (stopping_) return;
  inbox_.push_back({std::move(event), std::move(done)});
  WakeLocked();
}

void Driver::PostUnhurried(Event event, std::function<void()> done) {
  MutexLock lock(&mu_);
  if (!stopping_) inbox_.push_back({std::move(event), std::move(done)});
}

void Driver::WakeLocked() {
  if (!std::exchange(woken_, true)) waker_.Wake();
}

template <typename Make>
void Driver::Request(Callback callback, int64_t bytes, Make make, Needs needs) {
  absl::Status refusal;
  {
    MutexLock lock(&mu_);
    const bool refuses = stopping_ || needs == Needs::kStore;
    if (refuses) refusal = AcceptingLocked();
    if (refusal.ok() && (waiting_.size() >= options_.requests_max ||
                         waiting_bytes_ + bytes > options_.request_bytes_max)) {
      refusal = absl::ResourceExhaustedError(
          absl::StrCat(waiting_.size(), " requests with ", waiting_bytes_,
                       " bytes of documents are waiting; try again later"));
    }
    if (refusal.ok()) {
      const Token token{++last_token_};
      waiting_.emplace(token, Waiting{std::move(callback), bytes, needs == Needs::kStore});
      waiting_bytes_ += bytes;
      inbox_.push_back({make(token), nullptr});
      WakeLocked();
      return;
    }
  }
  std::visit([&refusal](auto& call) { call(refusal); }, callback);
}

void Driver::Submit(JobRequestPtr request, std::string request_id, JobCallback callback,
                    absl::Status refusal, bool any_priority) {
  const int64_t bytes = RequestBytes(*request);
  Request(std::move(callback), bytes, [&](Token token) {
    return Event(SubmitRequested{.token = token,
                                 .request = std::move(request),
                                 .request_id = std::move(request_id),
                                 .refusal = std::move(refusal),
                                 .any_priority = any_priority});
  });
}
void Driver::FindSubmit(JobRequestPtr request, std::string request_id, JobCallback callback,
                        bool any_priority) {
  const int64_t bytes = RequestBytes(*request);
  Request(std::move(callback), bytes, [&](Token token) {
    return Event(SubmitRequested{
        .token = token,
        .request = std::move(request),
        .request_id = std::move(request_id),
        .refusal = absl::NotFoundError("no job was submitted under this request id"),
        .asks_only = true,
        .any_priority = any_priority});
  });
}
void Driver::Cancel(JobId job, bool checkpoint, std::string by, JobCallback callback) {
  Request(std::move(callback), 0, [&](Token token) {
    return Event(CancelRequested{token, job, checkpoint, std::move(by)});
  });
}
void Driver::SetSuspended(JobId job, bool suspended, std::string by, JobCallback callback) {
  Request(std::move(callback), 0, [&](Token token) {
    return Event(SuspensionRequested{token, job, suspended, std::move(by)});
  });
}
void Driver::Delete(JobId job, DeleteCallback callback) {
  Request(std::move(callback), 0, [&](Token token) { return Event(DeleteRequested{token, job}); });
}
void Driver::Explain(JobId job, ReasonsCallback callback) {
  const absl::Status accepting = this->accepting();
  Request(
      std::move(callback), 0,
      [&](Token token) {
        return Event(ExplainRequested{token, job, std::string(accepting.message())});
      },
      accepting.ok() ? Needs::kStore : Needs::kNothing);
}
void Driver::AskQueue(std::vector<JobId> jobs, QueueCallback callback) {
  Request(
      std::move(callback), 0,
      [&](Token token) {
        return Event(QueueRequested{token, std::move(jobs)});
      },
      Needs::kNothing);
}
void Driver::Inject(JobId job, job::InjectedFault fault, InjectCallback callback) {
  Request(std::move(callback), 0, [&](Token token) {
    return Event(InjectRequested{token, job, fault});
  });
}
void Driver::Reach(ReachRequested request, ReachCallback callback) {
  Request(std::move(callback), 0, [&](Token token) {
    request.token = token;
    return Event(std::move(request));
  });
}
void Driver::MarkNode(NodeMarkRequested request, NodeCallback callback) {
  Request(std::move(callback), 0, [&](Token token) {
    request.token = token;
    return Event(std::move(request));
  });
}
void Driver::ReserveNode(ReserveRequested request, NodeCallback callback) {
  Request(std::move(callback), 0, [&](Token token) {
    request.token = token;
    return Event(std::move(request));
  });
}
void Driver::FetchLogs(LogsRequested request, LogsCallback callback) {
  Request(
      std::move(callback), 0,
      [&](Token token) {
        request.token = token;
        return Event(std::move(request));
      },
      Needs::kNothing);
}

template <typename C, typename T>
void Driver::Answer(Token token, T result) {
  Callback callback;
  {
    MutexLock lock(&mu_);
    const auto it = waiting_.find(token);
    if (it == waiting_.end()) return;
    callback = std::move(it->second.callback);
    waiting_bytes_ -= it->second.bytes;
    waiting_.erase(it);
  }
  if (C* call = std::get_if<C>(&callback)) (*call)(std::move(result));
}

void Driver::RefuseAll(const absl::Status& status) {
  std::map<Token, Waiting> waiting;
  {
    MutexLock lock(&mu_);
    waiting = std::exchange(waiting_, {});
    waiting_bytes_ = 0;
  }
  for (auto& [token, call] : waiting) {
    std::visit([&status](auto& callback) { callback(status); }, call.callback);
  }
}

void Driver::RefuseThoseThatNeedTheStore(const absl::Status& status) {
  std::vector<Waiting> refused;
  {
    MutexLock lock(&mu_);
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      if (!it->second.needs_store) {
        ++it;
        continue;
      }
      waiting_bytes_ -= it->second.bytes;
      refused.push_back(std::move(it->second));
      it = waiting_.erase(it);
    }
  }
  for (Waiting& call : refused) {
    std::visit([&status](auto& callback) { callback(status); }, call.callback);
  }
}

void Driver::OnCommit(const CommitReport& report) {
  metrics_.Commit(report.status.ok(), report.records, report.duration);
  if (report.status.ok()) metrics_.StoreBytes(report.bytes);
  // What was asked before is with the journal, which stores it as soon as it can.
  const auto failing = [&report](absl::string_view before) {
    return absl::UnavailableError(absl::StrCat(
        absl::IsResourceExhausted(report.status) ? "the store is full" : "the store fails",
        ", nothing is accepted until it works again", before, ": ", report.status.message()));
  };
  const absl::Status failure = report.status.ok() ? absl::OkStatus() : failing("");
  bool changed = false;
  {
    MutexLock lock(&mu_);
    changed = store_failure_.ok() != failure.ok();
    store_failure_ = failure;
  }
  if (changed) options_.on_store(report.status);
  if (!failure.ok())
    return RefuseThoseThatNeedTheStore(failing(", when this may be done all the same"));
  for (const std::string& complaint : report.complaints) options_.log(LineText(complaint));
  if (report.records != 0) Post(RecordStored{report.last});
  for (JobId job : report.archived) Post(JobArchived{job});
  for (const auto& [job, status] : report.not_archived) Post(ArchiveFailed{job, status});
  for (uint64_t tag : report.deleted) Answer<DeleteCallback>(Token{tag}, absl::OkStatus());
}

absl::StatusOr<PlanSummary> Driver::PlanFor(const ComputePlan& order) {
  {
    MutexLock lock(&mu_);
    if (plans_wanted_.erase(order.number) == 0) return absl::CancelledError("nobody wants it");
  }
  return options_.plan(order);
}

bool Driver::AnswerFromStore(const Event& event) {
  if (const auto* submit = std::get_if<SubmitRequested>(&event)) return AnswerRepetition(*submit);
  const auto* cancel = std::get_if<CancelRequested>(&event);
  const auto* explain = std::get_if<ExplainRequested>(&event);
  if (cancel == nullptr && explain == nullptr) return false;
  const JobId id = cancel != nullptr ? cancel->job : explain->job;
  if (machine_.jobs().contains(id)) return false;
  // A cancelled job is answered with its document.
  const absl::StatusOr<JobViewPtr> job =
      cancel != nullptr ? board_.FindWhole(ToString(id)) : board_.Find(ToString(id));
  if (absl::IsNotFound(job.status())) return false;
  if (cancel != nullptr) {
    Answer<JobCallback>(cancel->token, job.ok() ? CancelEnded(*job) : job);
  } else if (job.ok()) {
    Answer<ReasonsCallback>(explain->token,
                            absl::StatusOr<std::vector<std::string>>(ExplainEnded(**job)));
  } else {
    Answer<ReasonsCallback>(explain->token, absl::StatusOr<std::vector<std::string>>(job.status()));
  }
  return true;
}

// A request id is either of a job that the machine has or in the store: a job leaves the machine
// after its entry is there, on this thread.
bool Driver::AnswerRepetition(const SubmitRequested& event) {
  if (event.request_id.empty() || machine_.KnowsRequest(event.request_id)) return false;
  const absl::StatusOr<StoredRequest> known = ended_->Request(event.request_id, clock_.Now());
  if (absl::IsNotFound(known.status())) return false;
  const auto answer = [&]() -> absl::StatusOr<JobViewPtr> {
    if (!known.ok()) return known.status();
    // Releases before knew a job that the planner laid out by what it chose.
    if (known->document_digest != DigestOf(*event.request) &&
        known->document_digest != DigestOf(event.request->document, event.request->lost)) {
      return RequestIdReused(event.request_id, known->job);
    }
    absl::StatusOr<JobViewPtr> job = board_.Find(ToString(known->job));
    if (!absl::IsNotFound(job.status())) return job;
    return absl::FailedPreconditionError(
        absl::StrCat("request_id: \"", event.request_id, "\" became ", ToString(known->job),
                     ", which was deleted; choose a new id to run it again"));
  };
  Answer<JobCallback>(event.token, answer());
  return true;
}

Instant Driver::Look() {
  const Instant now = clock_.Now();
  pulse_.Beat(now);
  const absl::Duration stall = watch_.Look(now);
  if (stall > absl::ZeroDuration()) Carry(machine_.Step(now, Stalled{stall}));
  return now;
}

void Driver::Run() {
  pthread_setname_np(pthread_self(), "driver");
  while (true) {
    waker_.Wait(std::min(machine_.NextDeadline() - Look(), StallWatch::kTick));
    // Nobody is judged by the time that working off the batch takes: what comes in meanwhile is
    // read first. And a flood puts nothing off: what came in before this look is enough.
    const Instant read_until = Look();
    std::vector<Entry> batch;
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
      batch = std::exchange(inbox_, {});
      woken_ = false;
    }
    for (Entry& entry : batch) {
      if (!AnswerFromStore(entry.event)) Carry(machine_.Step(Look(), entry.event));
      if (const auto* archived = std::get_if<JobArchived>(&entry.event)) {
        board_.Forget(archived->job);
        step_records_.erase(archived->job);
        counting_.Forget(archived->job);
      }
      if (entry.done) entry.done();
    }
    const Instant now = Look();
    if (read_until >= machine_.NextDeadline()) {
      Carry(machine_.Step(now, DeadlineReached{read_until}));
    }
  }
}

void Driver::Carry(std::vector<Action> actions) {
  for (Action& action : actions) Carry(action);
}

void Driver::Carry(Action& action) {
  std::visit(Overloaded{
                 [&](StoreRecord& a) {
                   if (auto* reached = std::get_if<StepReached>(&a.record.body))
                     reached->curve = board_.CurveToStore(a.record.job, reached->step);
                   journal_->Append({.number = a.record_number,
                                     .job = a.record.job,
                                     .bytes = EncodeRecord(a.record, a.record_number),
                                     .supersedes = Supersedes(a)});
                 },
                 [&](ComputePlan& a) {
                   {
                     MutexLock lock(&mu_);
                     plans_wanted_.insert(a.number);
                   }
                   planners_->Add([this, order = std::move(a)](const absl::Status& go) {
                     Post(PlanComputed{order.number, go.ok() ? PlanFor(order) : go});
                   });
                 },
                 [&](DropPlan& a) {
                   MutexLock lock(&mu_);
                   plans_wanted_.erase(a.number);
                 },
                 [&](ArchiveJob& a) { journal_->Archive(a.job); },
                 [&](DeleteEndedJob& a) {
                   if (absl::Status found = ended_->Find(a.job).status(); !found.ok()) {
                     if (absl::IsNotFound(found)) {
                       found = absl::NotFoundError(absl::StrCat("there is no ", ToString(a.job)));
                     }
                     return Answer<DeleteCallback>(a.token, std::move(found));
                   }
                   journal_->Delete(a.job, a.token.value);
                 },
                 [&](RefuseDelete& a) { Answer<DeleteCallback>(a.token, std::move(a.status)); },
                 [&](SendWelcome& a) { sink_.Welcome(a.session); },
                 [&](SendCommand& a) { sink_.Send(a.session, a.command_number, a.command); },
                 [&](CloseSession& a) { sink_.Close(a.session, a.status); },
                 [&](EndLogs& a) { sink_.EndLogs(a.fetch_id, a.reason); },
                 [&](PublishJob& a) {
                   counting_.Job(*a.job, clock_.Now());
                   board_.Publish(a);
                 },
                 [&](PublishStep& a) {
                   counting_.Step(a.job, a.step, clock_.Now());
                   board_.Publish(a);
                 },
                 [&](PublishIncident& a) {
                   counting_.Incident(a.job, *a.incident);
                   board_.Publish(a);
                 },
                 [&](PublishHeartbeat& a) {
                   counting_.Heartbeat(a);
                   board_.Publish(a);
                 },
                 [&](PublishNode& a) {
                   counting_.Node(*a.node);
                   board_.Publish(a);
                 },
                 [&](RetractNode& a) {
                   counting_.Forget(a.node);
                   board_.Publish(a);
                 },
                 [&](AnswerJob& a) { Answer<JobCallback>(a.token, std::move(a.job)); },
                 [&](AnswerExplain& a) { Answer<ReasonsCallback>(a.token, std::move(a.reasons)); },
                 [&](AnswerQueue& a) { Answer<QueueCallback>(a.token, std::move(a.spots)); },
                 [&](AnswerInject& a) { Answer<InjectCallback>(a.token, std::move(a.injected)); },
                 [&](AnswerReach& a) { Answer<ReachCallback>(a.token, std::move(a.fault)); },
                 [&](AnswerNode& a) { Answer<NodeCallback>(a.token, std::move(a.node)); },
                 [&](AnswerLogs& a) { Answer<LogsCallback>(a.token, std::move(a.sources)); },
                 [&](LogLine& a) { options_.log(LineText(a.text)); },
                 [&](auto& a) { board_.Publish(a); },
             },
             action);
}

uint64_t Driver::Supersedes(const StoreRecord& action) {
  if (std::holds_alternative<StepReached>(action.record.body))
    return std::exchange(step_records_[action.record.job], action.record_number);
  if (const auto* marked = std::get_if<NodeMarked>(&action.record.body))
    return std::exchange(mark_records_[marked->node], action.record_number);
  if (const auto* used = std::get_if<DeviceTimeUsed>(&action.record.body))
    return std::exchange(time_records_[used->owner], action.record_number);
  return 0;
}

}  // namespace phalanx::coordinator
