// tests/unit/worker/channel/patience.h: how long a test of a channel waits for what is to come.
#pragma once

#include "absl/time/time.h"

namespace phalanx::channel {

inline constexpr absl::Duration kPatience = absl::Seconds(20);

}  // namespace phalanx::channel
