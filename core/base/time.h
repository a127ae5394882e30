// core/base/time.h: instants, and the clock that only runtime code may hold.
//
// Pure code takes `Instant now` as an argument; what it returns may name a later Instant (a
// deadline). Only the shells around it own a Clock.
#pragma once

#include "absl/time/time.h"

namespace phalanx {

using Instant = absl::Time;

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Wall time that never goes backwards within one process.
  virtual Instant Now() const = 0;
};

}  // namespace phalanx
