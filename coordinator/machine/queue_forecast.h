// coordinator/machine/queue_forecast.h: when jobs free their devices, and when those that wait for
// them start.
//
// Each is told twice: by when at the latest, as time limits go, and about when, if all train on as
// they did last. The first is what reservations count with (coordinator_queue.cc); the second is
// for people alone.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/machine/actions.h"
#include "coordinator/machine/coordinator_options.h"
#include "coordinator/machine/live_job.h"
#include "coordinator/machine/node_table.h"
#include "coordinator/machine/queue_order.h"

namespace phalanx::coordinator {

// Not thread-safe. What it is made of outlives it, and does not change while it is asked.
class QueueForecast {
 public:
  // `jobs`: among them all that have devices of `nodes`.
  QueueForecast(const CoordinatorOptions& options, const std::map<JobId, LiveJob>& jobs,
                const NodeTable& nodes, Instant now)
      : options_(options), jobs_(jobs), nodes_(nodes), now_(now) {}

  // When the job's devices are free at the latest, were it to start now where it does not run.
  // InfiniteFuture: nobody knows.
  Instant EndsBy(const LiveJob& job) const;
  // A guess of that, not later: the steps that are left take as long as its newest ones.
  // InfiniteFuture: nobody knows.
  Instant EndsAbout(const LiveJob& job) const;
  // When as many devices as `request` asks for are free at the latest, of nodes that it matches, if
  // nobody takes one meanwhile. InfiniteFuture: nobody knows.
  Instant EnoughFreeBy(const JobRequest& request) const;

  // Of `queue`, in whose order jobs start, those before `job` that wait for nodes that it matches
  // too.
  std::vector<const LiveJob*> AheadOf(const LiveJob& job, absl::Span<const JobId> queue) const;
  // Of `job`, which waits behind `ahead`, from 1; 0: it does not wait for its turn, but for its
  // owner's quota or for more nodes.
  static int64_t NumberOf(const LiveJob& job, absl::Span<const LiveJob* const> ahead);
  // Of `job`, which waits behind `ahead`. When it starts is not told where that is no later than
  // now: it waits for what is not reckoned with here.
  QueueSpot SpotOf(const LiveJob& job, absl::Span<const LiveJob* const> ahead) const;

 private:
  // Devices of nodes that a job matches: those that are free, and how many others each job has.
  struct MatchingDevices {
    int64_t free = 0;
    std::map<JobId, int64_t> held;
  };
  // EndsBy or EndsAbout.
  using EndOf = Instant (QueueForecast::*)(const LiveJob& job) const;

  MatchingDevices DevicesFor(const JobRequest& request) const;
  std::vector<HeldDevices> HeldUntil(const MatchingDevices& devices, EndOf end_of) const;
  // nullopt: nobody knows.
  std::optional<Instant> StartOf(const LiveJob& job, absl::Span<const LiveJob* const> ahead,
                                 const MatchingDevices& devices, EndOf end_of) const;

  const CoordinatorOptions& options_;
  const std::map<JobId, LiveJob>& jobs_;
  const NodeTable& nodes_;
  const Instant now_;
};

}  // namespace phalanx::coordinator
