// core/posix/waker.h: waiting on the steady clock, which nobody sets.
#pragma once

#include <chrono>

#include "absl/time/time.h"
#include "core/posix/socket.h"

namespace phalanx {

// For what is measured and waited for within this process.
using SteadyTime = std::chrono::steady_clock::time_point;
inline SteadyTime SteadyNow() { return std::chrono::steady_clock::now(); }
inline absl::Duration Since(SteadyTime start) { return absl::FromChrono(SteadyNow() - start); }

// What one thread waits on and others wake it by. Not a condition variable: those of Abseil wait
// for an instant of the wall clock, which may be set. Thread-safe.
class Waker {
 public:
  Waker();
  // The next Wait, or the one under way, returns at once.
  void Wake();
  // Until woken, or until `timeout` has passed.
  void Wait(absl::Duration timeout);

 private:
  const UniqueFd fd_;  // an eventfd: readable once woken
};

}  // namespace phalanx
