// tests/support/wall_clock.h: a wall clock that a test sets, for all libraries of its program. The
// steady clock is the system's. Not with sanitizers, which have a clock_gettime of their own.
#pragma once

#include "absl/time/time.h"

namespace phalanx::support {

// Forward or back, in whole seconds, from what it shows now.
void SetWallClockBy(absl::Duration duration);
// From now on forward by so much more each time that somebody looks at it.
void SetWallClockAtEachLook(absl::Duration duration);
void ResetWallClock();

}  // namespace phalanx::support
