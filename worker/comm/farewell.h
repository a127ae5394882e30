// worker/comm/farewell.h: what a rank says to each peer over Gloo as it leaves.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/base/ids.h"

namespace phalanx::comm {

// kStopped: it, or another whose word it passes on, was told to stop, which is nobody's fault.
enum class Leaving : char { kNotYet = 0, kHealthy = 1, kFailed = 2, kStopped = 3 };

// A farewell: text, filled up with zeros, the rank that it accuses, and in the last byte how the
// rank left.
inline constexpr size_t kFarewellBytes = 256;

// A text that is too long is cut.
std::string FarewellOf(Leaving how, absl::string_view text, Rank accused);

// Of kFarewellBytes bytes, all zero until they are received. Whoever receives them writes the last
// one last.
Leaving HowLeft(char* farewell);
// What the farewell of a rank that failed (Unavailable, accusing) or was stopped (Aborted) says; OK
// for others.
absl::Status Passed(char* farewell);

}  // namespace phalanx::comm
