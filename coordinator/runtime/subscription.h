// coordinator/runtime/subscription.h: what a watcher of one job has not been told yet.
//
// Gathered while the watcher's stream is busy, and bounded: of views the newest of each phase, of
// steps and events the newest ones. So a watcher whose stream is slow is told less, not later.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "coordinator/machine/actions.h"
#include "core/base/mutex.h"

namespace phalanx::coordinator {

// Steps and events since the last take that a subscription keeps; the oldest are dropped.
inline constexpr size_t kPendingStepsMax = 256;
inline constexpr size_t kPendingEventsMax = 1024;
inline constexpr size_t kPendingEventBytesMax = 256 << 10;
// Of all subscriptions together; past it each that gets more keeps one step and one event.
inline constexpr int64_t kPendingBytesMax = 64 << 20;

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

}  // namespace phalanx::coordinator
