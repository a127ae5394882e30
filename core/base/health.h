// core/base/health.h: whether a program lives and can do its work, part by part. Pure.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/time.h"

namespace phalanx {

// What is asked after by itself. OK: all is well; else Unavailable with the reason.
struct HealthPart {
  std::string name;  // of letters and '-'
  absl::Status status;
};
using Health = std::vector<HealthPart>;

// Whether a thread that goes round and round still does. The thread stamps each round, and others
// ask how long the last one is ago. Thread-safe.
class Pulse {
 public:
  // `who`: as the reason names it, "the driver". It is given up after `silence_max`.
  Pulse(std::string who, absl::Duration silence_max, Instant now)
      : who_(std::move(who)), silence_max_(silence_max), last_(absl::ToUnixNanos(now)) {}

  void Beat(Instant now) { last_.store(absl::ToUnixNanos(now), std::memory_order_relaxed); }
  // Errors: Unavailable, "the driver has not run for 31s".
  absl::Status Alive(Instant now) const;

 private:
  const std::string who_;
  const absl::Duration silence_max_;
  std::atomic<int64_t> last_;  // nanoseconds since 1970
};

}  // namespace phalanx
