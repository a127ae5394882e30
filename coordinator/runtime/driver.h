// coordinator/runtime/driver.h: the one thread that feeds the machine and carries out its actions.
//
// Events wait in a bounded inbox. Actions become journal records, messages on sessions, views on
// the board and answers to callers. Callbacks run on the driver's thread and must not block.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/machine/coordinator.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/runtime/board.h"
#include "coordinator/runtime/counting.h"
#include "coordinator/runtime/work_pool.h"
#include "coordinator/store/journal.h"
#include "core/base/health.h"
#include "core/base/mutex.h"
#include "core/base/stall_watch.h"
#include "core/base/time.h"
#include "core/posix/waker.h"

namespace phalanx::coordinator {

// Where the driver sends what is for workers. Calls come from the driver's thread and must not
// block.
class SessionSink {
 public:
  virtual ~SessionSink() = default;
  virtual void Welcome(SessionId session) = 0;
  virtual void Send(SessionId session, uint64_t command_number, const Command& command) = 0;
  virtual void Close(SessionId session, const absl::Status& status) = 0;
  virtual void EndLogs(const std::string& fetch_id, const std::string& reason) = 0;
};

// PlanJobOf (planning.h), or a test's own. Thread-safe.
using PlanFunction = std::function<absl::StatusOr<PlanSummary>(const ComputePlan& order)>;

struct DriverOptions {
  CoordinatorOptions machine;
  PlanFunction plan;  // runs on threads of its own
  JournalOptions journal;
  // Requests that may wait, and the bytes of their documents; the next is refused. (A session has
  // one message in the inbox at a time.)
  size_t requests_max = 16'384;
  int64_t request_bytes_max = 256 << 20;
  // A commit that takes longer is a failure of the store, as far as callers are concerned.
  absl::Duration commit_time_max = absl::Seconds(10);
  // A driver that has not come round for so long is given up (Driver::alive).
  absl::Duration silence_max = absl::Seconds(30);
  // Decisions, one line each, with nothing in them that a terminal would obey.
  std::function<void(const std::string& line)> log = [](const std::string&) {};
  // The store has failed (nothing is accepted or told until it works again), or (OK) works again.
  std::function<void(const absl::Status& status)> on_store = [](const absl::Status&) {};
};

using JobCallback = std::function<void(absl::StatusOr<JobViewPtr>)>;
using DeleteCallback = std::function<void(absl::Status)>;
using ReasonsCallback = std::function<void(absl::StatusOr<std::vector<std::string>>)>;
using QueueCallback = std::function<void(absl::StatusOr<std::map<JobId, QueueSpot>>)>;
using InjectCallback = std::function<void(absl::StatusOr<Injected>)>;
using ReachCallback = std::function<void(absl::StatusOr<std::string>)>;
using NodeCallback = std::function<void(absl::StatusOr<MarkedNode>)>;
using LogsCallback = std::function<void(absl::StatusOr<std::vector<LogSource>>)>;

// Thread-safe.
class Driver {
 public:
  // Loads and replays the store, publishes what it says, and starts the thread. `clock`, `board`,
  // `metrics` and `sink` outlive the driver. Errors: as Backend::Load and DecodeRecord.
  static absl::StatusOr<std::unique_ptr<Driver>> Start(DriverOptions options, const Clock& clock,
                                                       std::unique_ptr<Backend> backend,
                                                       Board& board, Metrics& metrics,
                                                       SessionSink& sink);
  // Answers everybody who waits with Unavailable, commits what was appended, and ends.
  ~Driver();

  // Each calls back exactly once. Errors beside the machine's own: ResourceExhausted if too many
  // requests wait, Unavailable if the driver stops or the store fails, but for Explain, AskQueue
  // and FetchLogs, which change nothing. A job that was submitted or cancelled while the store
  // failed may still be so when it works again.
  // `refusal`: the answer, unless the submit repeats one that was accepted. `any_priority`: no
  // quota bounds the job's.
  void Submit(JobRequestPtr request, std::string request_id, JobCallback callback,
              absl::Status refusal = absl::OkStatus(), bool any_priority = false);
  // What the submit of that id became, where `request` repeats it (RequestAsSubmitted will do).
  // Errors: those of Submit for what is known of `request`; NotFound if nobody used the id and
  // nothing speaks against a job.
  void FindSubmit(JobRequestPtr request, std::string request_id, JobCallback callback,
                  bool any_priority = false);
  // `checkpoint`: it ends with one, if it can, after the answer. `by`: who asks; empty: not known.
  void Cancel(JobId job, bool checkpoint, std::string by, JobCallback callback);
  // Suspends it, or resumes it. Errors: those of JobService.SuspendJob and ResumeJob.
  void SetSuspended(JobId job, bool suspended, std::string by, JobCallback callback);
  // Errors: FailedPrecondition if it has not ended; NotFound.
  void Delete(JobId job, DeleteCallback callback);
  void Explain(JobId job, ReasonsCallback callback);
  // Where those of the jobs stand that wait for devices; of a list, the first 32.
  void AskQueue(std::vector<JobId> jobs, QueueCallback callback);
  // Called back once the rank's node has taken the fault on. Errors: those of
  // JobService.InjectFault.
  void Inject(JobId job, job::InjectedFault fault, InjectCallback callback);
  // Called back with why it does not, empty: it does. Errors: those of JobService.TryConnection.
  void Reach(ReachRequested request, ReachCallback callback);
  // Errors: those of JobService.CordonNode and DrainNode.
  void MarkNode(NodeMarkRequested request, NodeCallback callback);
  // Errors: those of JobService.ReserveNode.
  void ReserveNode(ReserveRequested request, NodeCallback callback);
  // The sources are known before any worker is asked.
  void FetchLogs(LogsRequested request, LogsCallback callback);

  // An event of a session; `done` is called once the machine has seen it.
  void Post(Event event, std::function<void()> done = nullptr) ABSL_LOCKS_EXCLUDED(mu_);
  // The same of one that does not wake the driver, because nothing hangs on when it is seen: with
  // the next event that does, before any deadline is judged, and within StallWatch::kTick.
  void PostUnhurried(Event event, std::function<void()> done) ABSL_LOCKS_EXCLUDED(mu_);

  // Answers what waits, and whatever comes later, with Unavailable and ends the thread; events are
  // ignored from then on. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  size_t inbox_size() const ABSL_LOCKS_EXCLUDED(mu_);
  // OK: requests are accepted. Else why not.
  absl::Status accepting() const ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the thread still runs, or was told to end. Waits for nobody. Errors: Unavailable.
  absl::Status alive() const;

 private:
  using Callback = std::variant<JobCallback, DeleteCallback, ReasonsCallback, QueueCallback,
                                InjectCallback, ReachCallback, NodeCallback, LogsCallback>;
  struct Waiting {
    Callback callback;
    int64_t bytes = 0;
    bool needs_store = true;  // to be answered
  };
  enum class Needs : uint8_t { kStore, kNothing };
  struct Entry {
    Event event;
    std::function<void()> done;
  };

  Driver(DriverOptions options, const Clock& clock, Board& board, Metrics& metrics,
         SessionSink& sink);
  void WakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run();
  // The time. Where this thread did not run for a while the machine hears of that first.
  Instant Look();
  void OnCommit(const CommitReport& report);
  absl::Status AcceptingLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // On a planner's thread. Errors: Cancelled if the order was dropped; those of the planner.
  absl::StatusOr<PlanSummary> PlanFor(const ComputePlan& order) ABSL_LOCKS_EXCLUDED(mu_);
  // Answers what the machine has let go of. False: it is for the machine.
  bool AnswerFromStore(const Event& event);
  bool AnswerRepetition(const SubmitRequested& event);
  void Carry(std::vector<Action> actions);
  void Carry(Action& action);
  // The record that this one takes the place of; 0: none.
  uint64_t Supersedes(const StoreRecord& action);
  // Registers the callback and posts the event that `make` builds from its token, or refuses. What
  // needs no store is answered while that fails, too.
  template <typename Make>
  void Request(Callback callback, int64_t bytes, Make make, Needs needs = Needs::kStore);
  template <typename C, typename T>
  void Answer(Token token, T result);
  void RefuseAll(const absl::Status& status);
  void RefuseThoseThatNeedTheStore(const absl::Status& status);

  // Constant after construction.
  const DriverOptions options_;
  const Clock& clock_;
  Board& board_;
  Metrics& metrics_;
  SessionSink& sink_;

  // Owned by the driver thread (by Start before it runs).
  Coordinator machine_;
  std::shared_ptr<EndedJobs> ended_;
  StallWatch watch_;
  Counting counting_;
  std::map<JobId, uint64_t> step_records_;        // the last StepReached of each job
  std::map<NodeName, uint64_t> mark_records_;     // the last NodeMarked of each node
  std::map<std::string, uint64_t> time_records_;  // the last DeviceTimeUsed of each owner

  Waker waker_;  // of thread_
  Pulse pulse_;  // of thread_
  std::atomic<bool> ended_on_request_ = false;

  mutable Mutex mu_;
  std::vector<Entry> inbox_ ABSL_GUARDED_BY(mu_);
  bool woken_ ABSL_GUARDED_BY(mu_) = false;  // since the inbox was emptied
  std::map<Token, Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  int64_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t last_token_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<uint64_t> plans_wanted_ ABSL_GUARDED_BY(mu_);  // ordered, not begun and not dropped
  absl::Status store_failure_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  // Their threads post; their destructors join. Written by Start and Stop alone.
  std::unique_ptr<Journal> journal_;
  std::unique_ptr<WorkPool> planners_;
  std::jthread thread_;
};

}  // namespace phalanx::coordinator
