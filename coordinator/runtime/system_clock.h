// coordinator/runtime/system_clock.h: the clock of a running coordinator.
#pragma once

#include <chrono>

#include "absl/time/clock.h"
#include "core/base/time.h"

namespace phalanx::coordinator {

// Wall time at construction plus time on the steady clock since, so that a clock that is set back
// moves no deadline. Thread-safe.
class SystemClock final : public Clock {
 public:
  Instant Now() const override {
    return start_ + absl::FromChrono(std::chrono::steady_clock::now() - steady_start_);
  }

 private:
  const Instant start_ = absl::Now();
  const std::chrono::steady_clock::time_point steady_start_ = std::chrono::steady_clock::now();
};

}  // namespace phalanx::coordinator
