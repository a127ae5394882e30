// coordinator/runtime/board.h: what the coordinator has told, for everybody to read.
//
// The driver thread writes what the machine publishes, which is stored by then; calls read from
// here and never wait for the driver. Jobs that have ended lie in the store and are read from there
// when they are asked for. A watcher gets a Subscription (subscription.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
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
#include "coordinator/runtime/subscription.h"
#include "coordinator/store/backend.h"
#include "core/base/mutex.h"

namespace phalanx::coordinator {

// Jobs whose curves the board keeps until the store has them, those with the largest numbers.
inline constexpr size_t kCurvesMax = 1024;
// Points of a job's curve that go to the store with each StepReached.
inline constexpr size_t kStoredPointsMax = 128;
// Events that the board keeps of one job that has not ended; the oldest are dropped. (The store
// keeps all, and shows them once the job has ended.)
inline constexpr size_t kEventsMax = 4096;
inline constexpr size_t kEventBytesMax = 1 << 20;
// Of all those jobs together; past it the oldest of the job with the most bytes are dropped.
inline constexpr size_t kAllEventBytesMax = 256 << 20;

// Training sets of whose samples the board knows what they are like.
inline constexpr size_t kDataShapesMax = 1024;

// What nodes of GPUs say of products in FP8 (job::kFp8Label).
struct Fp8Nodes {
  size_t gpu_nodes = 0;  // all that the coordinator knows
  size_t without = 0;    // of them, those that say that theirs have none
  // Of these the first few, each with its first device where that is known: "a: NVIDIA A100".
  std::vector<std::string> names;
};
inline constexpr size_t kFp8NamesMax = 4;

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
  void Publish(const PublishDataShape& action) ABSL_LOCKS_EXCLUDED(mu_);
  void Publish(const RetractNode& action) ABSL_LOCKS_EXCLUDED(mu_);

  // What the store has of the job's curve, by step; before anything of the job is published.
  void RestoreCurve(JobId job, const std::vector<CurvePoint>& points) ABSL_LOCKS_EXCLUDED(mu_);
  // Adds a step that is about to be stored, and perhaps not published yet, to the job's curve.
  // Returns what is to be stored of that, at most kStoredPointsMax points.
  std::vector<CurvePoint> CurveToStore(JobId job, const StepReport& step) ABSL_LOCKS_EXCLUDED(mu_);

  // The job has an entry in the store, which answers for it from now on.
  void Forget(JobId job) ABSL_LOCKS_EXCLUDED(mu_);

  // "job-7", "7", or a name (the newest job with it). A job that has ended may be without its
  // document, which is large. Errors: NotFound; those of EndedJobs.
  absl::StatusOr<JobViewPtr> Find(const std::string& job) const ABSL_LOCKS_EXCLUDED(mu_);
  // Of a job so named, also where its entry is damaged. Errors: as Find.
  absl::StatusOr<JobId> IdOf(const std::string& job) const ABSL_LOCKS_EXCLUDED(mu_);
  // Errors: DataLoss where what the store has of a job that has ended lies on a damaged page: to
  // delete it there would fail the commit, and all others that wait for it.
  absl::Status CheckPlaceOf(JobId job) const ABSL_LOCKS_EXCLUDED(mu_);
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
  // By name, at most `count`, of names behind `after`.
  std::vector<NodeView> Nodes(size_t count = SIZE_MAX, const NodeName& after = "") const
      ABSL_LOCKS_EXCLUDED(mu_);
  // nullopt: there is none of that name.
  std::optional<NodeView> FindNode(const NodeName& name) const ABSL_LOCKS_EXCLUDED(mu_);
  // Costs the same however many nodes there are.
  Fp8Nodes Fp8() const ABSL_LOCKS_EXCLUDED(mu_);
  // Of a training set that a job of this coordinator's life has had, the last kDataShapesMax of
  // them; nullopt: not known.
  std::optional<job::DataShape> DataShapeOf(const std::string& key) const ABSL_LOCKS_EXCLUDED(mu_);
  // Of the steps that this coordinator was told of, and before them what the store had when it
  // started; of a job that has an entry what that has. Empty where neither is kept (kCurvesMax) or
  // can be read.
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
    std::vector<int64_t> device_used_memory;   // at that one
  };

  // At most `count`, from the entry on.
  std::vector<NodeView> NodesFrom(std::map<NodeName, NodeEntry>::const_iterator entry,
                                  size_t count) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Before a view of the node is replaced or goes.
  void UncountFp8Locked(const NodeEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds it and keeps all events within their bound.
  void AddLocked(JobId job, Entry& entry, const JobEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
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
  std::set<JobId> with_slow_devices_ ABSL_GUARDED_BY(mu_);
  std::map<JobId, Curve> curves_ ABSL_GUARDED_BY(mu_);
  std::set<std::pair<size_t, JobId>> event_bytes_ ABSL_GUARDED_BY(mu_);  // of jobs with events
  size_t all_event_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, JobId> newest_ ABSL_GUARDED_BY(mu_);  // by name
  std::map<job::JobPhase, int64_t> phases_ ABSL_GUARDED_BY(mu_);
  std::map<NodeName, NodeEntry> nodes_ ABSL_GUARDED_BY(mu_);
  size_t gpu_nodes_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<NodeName> without_fp8_ ABSL_GUARDED_BY(mu_);  // of them
  std::map<std::string, job::DataShape> data_shapes_ ABSL_GUARDED_BY(mu_);
  std::deque<std::string> data_keys_ ABSL_GUARDED_BY(mu_);  // of them, the oldest first
};

}  // namespace phalanx::coordinator
