// coordinator/runtime/board.h: what the coordinator has told, for everybody to read.
//
// The driver thread writes what the machine publishes, which is stored by then; calls read from
// here and never wait for the driver. Jobs that have ended lie in the store and are read from there
// when they are asked for. A watcher gets a Subscription, which gathers updates while
// its stream is busy.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "coordinator/machine/actions.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/runtime/curve.h"
#include "coordinator/store/backend.h"
#include "core/base/mutex.h"

namespace phalanx::coordinator {

// Steps and events since the last take that a subscription keeps; the oldest are dropped.
inline constexpr size_t kPendingStepsMax = 256;
inline constexpr size_t kPendingEventsMax = 1024;
inline constexpr size_t kPendingEventBytesMax = 256 << 10;
// Of all subscriptions together; past it each that gets more keeps one step and one event.
inline constexpr int64_t kPendingBytesMax = 64 << 20;
// Jobs whose curves the board keeps, those with the largest numbers.
inline constexpr size_t kCurvesMax = 1024;
// Events that the board keeps of one job that has not ended; the oldest are dropped. (The store
// keeps all, and shows them once the job has ended.)
inline constexpr size_t kEventsMax = 4096;
inline constexpr size_t kEventBytesMax = 1 << 20;
// Of all those jobs together; past it the oldest of the job with the most bytes are dropped.
inline constexpr size_t kAllEventBytesMax = 256 << 20;

// The newest events, bounded in number and bytes. Not thread-safe.
class EventWindow {
 public:
  EventWindow(size_t events_max, size_t bytes_max)
      : events_max_(events_max), bytes_max_(bytes_max) {}
  void Add(JobEvent event);
  std::vector<JobEvent> After(int64_t number) const;
  std::vector<JobEvent> TakeAll();
  // All but the newest.
  void Shrink();
  // False: only the newest is left, which stays.
  bool ShedOldest();
  bool empty() const { return events_.empty(); }
  size_t bytes() const { return bytes_; }

 private:
  void DropOldest();

  size_t events_max_, bytes_max_;
  std::deque<JobEvent> events_;
  size_t bytes_ = 0;
};

// Changes of one job since the last take. Thread-safe.
class Subscription {
 public:
  struct Update {
    JobViewPtr job;  // never null in what Take returns
    std::vector<StepReport> steps;
    std::vector<JobEvent> events;
    std::shared_ptr<const EvaluationReport> evaluation;
  };

  // `wake` is called, on any thread, when there may be something to take.
  explicit Subscription(std::function<void()> wake) : wake_(std::move(wake)) {}
  ~Subscription();

  // The next update, at most one phase further; nothing if nothing has changed.
  std::optional<Update> Take() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class Board;
  void Add(JobViewPtr job) ABSL_LOCKS_EXCLUDED(mu_);
  void Add(const StepReport& step) ABSL_LOCKS_EXCLUDED(mu_);
  void Add(const JobEvent& event) ABSL_LOCKS_EXCLUDED(mu_);
  void Add(std::shared_ptr<const EvaluationReport> evaluation) ABSL_LOCKS_EXCLUDED(mu_);
  // Counts what it keeps from here on in `total`, bytes of all subscriptions of a board.
  void CountIn(std::shared_ptr<std::atomic<int64_t>> total) ABSL_LOCKS_EXCLUDED(mu_);
  void CountLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // After something was added.
  void FitLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::function<void()> wake_;
  Mutex mu_;
  std::deque<JobViewPtr> jobs_ ABSL_GUARDED_BY(mu_);  // one a phase
  std::deque<StepReport> steps_ ABSL_GUARDED_BY(mu_);
  EventWindow events_ ABSL_GUARDED_BY(mu_){kPendingEventsMax, kPendingEventBytesMax};
  std::shared_ptr<const EvaluationReport> evaluation_ ABSL_GUARDED_BY(mu_);
  JobViewPtr last_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<std::atomic<int64_t>> total_ ABSL_GUARDED_BY(mu_);  // null: of no board yet
  int64_t counted_ ABSL_GUARDED_BY(mu_) = 0;                          // in it, of this one
};

// Thread-safe.
class Board {
 public:
  explicit Board(size_t event_bytes_max = kAllEventBytesMax) : event_bytes_max_(event_bytes_max) {}

  // Where jobs that have ended are read from; called once, before anything else.
  void Connect(std::shared_ptr<EndedJobs> ended) ABSL_LOCKS_EXCLUDED(mu_);

  void Publish(const PublishJob& action) ABSL_LOCKS_EXCLUDED(mu_);
  void Publish(const PublishStep& action) ABSL_LOCKS_EXCLUDED(mu_);
  void Publish(PublishEvent action) ABSL_LOCKS_EXCLUDED(mu_);
  void Publish(const PublishEvaluation& action) ABSL_LOCKS_EXCLUDED(mu_);
  void Publish(const PublishIncident& action) ABSL_LOCKS_EXCLUDED(mu_);
  void Publish(const PublishNode& action) ABSL_LOCKS_EXCLUDED(mu_);
  void Publish(const PublishHeartbeat& action) ABSL_LOCKS_EXCLUDED(mu_);
  void Publish(const RetractNode& action) ABSL_LOCKS_EXCLUDED(mu_);

  // The job has an entry in the store, which answers for it from now on.
  void Forget(JobId job) ABSL_LOCKS_EXCLUDED(mu_);

  // "job-7", "7", or a name (the newest job with it). A job that has ended may be without its
  // document, which is large. Errors: NotFound; those of EndedJobs.
  absl::StatusOr<JobViewPtr> Find(const std::string& job) const ABSL_LOCKS_EXCLUDED(mu_);
  // Of a job so named, also where its entry is damaged. Errors: as Find.
  absl::StatusOr<JobId> IdOf(const std::string& job) const ABSL_LOCKS_EXCLUDED(mu_);
  // As Find, with the document. Errors: the same.
  absl::StatusOr<JobViewPtr> FindWhole(const std::string& job) const ABSL_LOCKS_EXCLUDED(mu_);
  // At most `count` jobs with ids below `before`, newest first, perhaps without their documents.
  // One whose entry is damaged has its name, its phase and, as its reason, what is wrong with it.
  absl::StatusOr<std::vector<JobViewPtr>> List(JobId before, size_t count) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // The same of jobs that the store does not answer for: all that have not ended, and those that
  // just did.
  std::vector<JobViewPtr> ListLive(JobId before, size_t count) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::vector<JobEvent>> Events(JobId job, int64_t after_number) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Oldest first, at most kIncidentsMax.
  absl::StatusOr<std::vector<IncidentPtr>> Incidents(JobId job) const ABSL_LOCKS_EXCLUDED(mu_);
  // By name, at most `count`.
  std::vector<NodeView> Nodes(size_t count = SIZE_MAX) const ABSL_LOCKS_EXCLUDED(mu_);
  // Of the steps that this coordinator was told of; empty for a job whose curve is not kept any
  // more (kCurvesMax).
  std::vector<CurvePoint> CurveOf(JobId job) const ABSL_LOCKS_EXCLUDED(mu_);
  // Null: the job has not evaluated itself.
  absl::StatusOr<std::shared_ptr<const EvaluationReport>> Evaluation(JobId job) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // The subscription starts with the job as it is now, and its evaluation if there is one.
  // Errors: as FindWhole.
  absl::Status Subscribe(JobId job, std::shared_ptr<Subscription> subscription)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Unsubscribe(JobId job, const Subscription* subscription) ABSL_LOCKS_EXCLUDED(mu_);
  // Bytes of steps and events that subscriptions keep.
  int64_t pending_bytes() const { return *pending_bytes_; }

  // Jobs of this owner that are in the queue.
  int64_t CountQueued(const std::string& owner) const ABSL_LOCKS_EXCLUDED(mu_);

  // Jobs, nodes, devices and what waits for watchers; the rest of `gauges` is left alone.
  void Count(Gauges& gauges) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    JobViewPtr job;
    EventWindow events{kEventsMax, kEventBytesMax};
    std::shared_ptr<const EvaluationReport> evaluation;
    std::vector<IncidentPtr> incidents;
    std::vector<std::shared_ptr<Subscription>> subscriptions;
  };
  struct NodeEntry {
    std::shared_ptr<const NodeView> view;
    Instant last_heartbeat = absl::InfinitePast();
    std::vector<int32_t> device_temperatures;  // at that one
  };

  // Adds it and keeps all events within their bound.
  void AddLocked(JobId job, Entry& entry, const JobEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A view begins to be shown, or (-1) is shown no more.
  void CountLocked(const JobView& job, int64_t change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The events of `job` hold `now` bytes and held `before`.
  void CountEventsLocked(JobId job, size_t before, size_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  JobViewPtr FindLive(const std::string& job) const ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<EndedJobs> ended() const ABSL_LOCKS_EXCLUDED(mu_);

  const size_t event_bytes_max_;
  // Shared, for subscriptions may outlive the board.
  const std::shared_ptr<std::atomic<int64_t>> pending_bytes_ =
      std::make_shared<std::atomic<int64_t>>(0);
  mutable Mutex mu_;
  std::shared_ptr<EndedJobs> ended_ ABSL_GUARDED_BY(mu_);
  std::map<JobId, Entry> jobs_ ABSL_GUARDED_BY(mu_);
  std::map<JobId, Curve> curves_ ABSL_GUARDED_BY(mu_);  // also of jobs that have ended
  std::set<std::pair<size_t, JobId>> event_bytes_ ABSL_GUARDED_BY(mu_);  // of jobs with events
  size_t all_event_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, JobId> newest_ ABSL_GUARDED_BY(mu_);  // by name
  std::map<job::JobPhase, int64_t> phases_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, int64_t> queued_ ABSL_GUARDED_BY(mu_);  // by owner; above 0
  std::map<NodeName, NodeEntry> nodes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace phalanx::coordinator
