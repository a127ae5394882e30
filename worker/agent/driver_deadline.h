// worker/agent/driver_deadline.h: a driver that does not answer while the daemon starts.
//
// A call into a driver that is wedged may never return. The program then says so and ends with
// exit code 1, rather than stand there as no node of any cluster and answer no probe.
//
// Used by one thread; no other thread may be about to leave the process when it passes.
#pragma once

#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"

namespace phalanx::agent {

// Without persistence mode a driver begins with its GPUs when it is first asked, which takes a
// while.
inline constexpr absl::Duration kDriverAnswersWithin = absl::Minutes(2);

// While it lives, calls into the driver are under way, for `limit` at most.
class DriverDeadline {
 public:
  explicit DriverDeadline(absl::Duration limit = kDriverAnswersWithin);
  ~DriverDeadline();
  DriverDeadline(const DriverDeadline&) = delete;
  DriverDeadline& operator=(const DriverDeadline&) = delete;

 private:
  void Run(absl::Duration limit);

  Mutex mutex_;
  CondVar changed_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace phalanx::agent
