// worker/comm/isolation.h: a rank that is cut off from the ranks of other nodes, on demand.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace phalanx::comm {

// Whether the process is cut off. Thread-safe.
class Isolation {
 public:
  // From now on, for good without a duration.
  void Begin(std::optional<absl::Duration> duration) {
    until_.store(duration.has_value() ? Now() + absl::ToInt64Nanoseconds(*duration) : INT64_MAX,
                 std::memory_order_relaxed);
  }
  bool active() const {
    const int64_t until = until_.load(std::memory_order_relaxed);
    return until != 0 && Now() < until;
  }

 private:
  static int64_t Now() {
    using std::chrono::steady_clock;
    return std::chrono::nanoseconds(steady_clock::now().time_since_epoch()).count();
  }
  std::atomic<int64_t> until_ = 0;  // nanoseconds of the steady clock; 0: never was
};

}  // namespace phalanx::comm
