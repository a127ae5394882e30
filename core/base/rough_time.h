// core/base/rough_time.h: times that are guessed, told no more precisely than guesses are. Pure.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "core/base/time.h"

namespace phalanx {

// `at`, a finite time after `now`, rounded up on the clock (UTC): to the next minute where it is
// less than 100 minutes away, to the next ten minutes where less than two days, else to the next
// hour.
Instant RoughTime(Instant now, Instant at);

// "12 min", "3 h", "5 d": of less than 100 minutes the nearest minute, and at least one; of less
// than two days the nearest hour; else the nearest day.
std::string RoughText(absl::Duration delay);

// "615.6 ms"; of less than a millisecond two digits that say something: "0.042 ms".
std::string MillisecondsText(double seconds);

}  // namespace phalanx
