// core/base/stall_watch.h: notices that its owner did not run.
//
// A process that was stopped, or a machine that was held up, has heard from nobody meanwhile, and
// that says nothing about them: deadlines are moved by the time in which their judge did not run.
// A monotonic clock counts a stop of the process (and not one of the whole machine, which so needs
// no excuse); the owner sees it as a gap between two looks. Pure.
#pragma once

#include <utility>

#include "core/base/time.h"

namespace phalanx {

// Not thread-safe.
class StallWatch {
 public:
  // The owner looks at least so often while it runs.
  static constexpr absl::Duration kTick = absl::Milliseconds(250);

  explicit StallWatch(Instant now) : last_(now) {}

  // The time since the last look in which the owner did not run; zero where it came in time.
  absl::Duration Look(Instant now) {
    const absl::Duration gap = now - std::exchange(last_, now);
    return gap > 2 * kTick ? gap - kTick : absl::ZeroDuration();
  }

 private:
  Instant last_;
};

// What a stall moves a deadline by: its own length, and after a long one the time that it takes to
// read what has come in meanwhile.
inline absl::Duration ExcuseFor(absl::Duration stall) {
  constexpr absl::Duration kCatchUp = absl::Seconds(1);
  return stall >= kCatchUp ? stall + kCatchUp : stall;
}

}  // namespace phalanx
