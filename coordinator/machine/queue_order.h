// coordinator/machine/queue_order.h: who is first in the queue, when a job that waits can start,
// and which jobs make room for it.
//
// Pure functions over plain numbers; queue_forecast.h and coordinator_queue.cc say what they are
// of.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/base/time.h"
#include "core/job/job_spec.h"

namespace phalanx::coordinator {

// Where a job stands in the queue: larger priorities first, then the older job.
struct QueuePlace {
  int32_t priority = 0;
  JobId job;
  friend bool operator<(const QueuePlace& a, const QueuePlace& b) {
    return a.priority != b.priority ? a.priority > b.priority : a.job < b.job;
  }
};

// Jobs that ask for the same kind of device and the same labels.
using LineKey = std::pair<job::DeviceKind, std::map<std::string, std::string>>;
struct Line {
  int64_t capacity = 0;  // of all nodes that match
  std::string too_few;   // WhyTooFew (too_few.h), once somebody asked for more
  JobId first;           // the job that waits for devices of them; 0: none does
};

// Devices that are not free.
struct HeldDevices {
  int64_t count = 0;
  Instant until;  // when they are at the latest; InfiniteFuture: nobody knows
};

// When `needed` devices are free at the latest, of `free` ones and those that are `held`, in any
// order, if nobody takes one meanwhile. InfiniteFuture: nobody knows.
Instant EnoughFreeAt(Instant now, int64_t free, std::vector<HeldDevices> held, int64_t needed);

// What a job that waits asks for.
struct Demand {
  int64_t devices = 0;
  absl::Duration run = absl::InfiniteDuration();  // at most; infinite: nobody knows
};
// When the last of `queue`, which starts in its order, does at the latest. InfiniteFuture: nobody
// knows. Sorts once, and takes len(queue) * len(held + queue) moves at most.
Instant LastStartAt(Instant now, int64_t free, std::vector<HeldDevices> held,
                    absl::Span<const Demand> queue);

// A job that may be asked to leave its devices.
struct Preemptible {
  QueuePlace place;
  int64_t devices = 0;  // that its leaving frees for the job that waits
};
// Those that leave so that `missing` devices are free: the last of the queue's order first, and
// none without whom it is enough too. Empty: all of them are too few.
std::vector<JobId> WhoLeaves(int64_t missing, std::vector<Preemptible> candidates);

}  // namespace phalanx::coordinator
