// worker/comm/farewell.h: what a rank says to each peer over Gloo as it leaves.
#pragma once

#include <cstddef>
#include <cstdint>
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

// Whose doing the end of a transport is. kPeer: its reason accuses one.
enum class Blame : uint8_t { kSelf, kPeer, kNobody };
// What rank `self` says where its transport ended for `reason`, OK while it is healthy. One
// failure, one name: what did not begin at this rank is passed on as it is.
std::string FarewellOf(int32_t self, const absl::Status& reason, Blame blame);

// Of kFarewellBytes bytes, all zero until they are received. Whoever receives them writes the last
// one last.
Leaving HowLeft(char* farewell);
// What the farewell of a rank that failed (Unavailable, accusing) or was stopped (Aborted) says; OK
// for others.
absl::Status Passed(char* farewell);

// Unavailable, accusing `peer`, whose connection broke as `what` of Gloo says: that begins with the
// place in Gloo's source, in brackets, which is left out.
absl::Status Gone(int32_t peer, absl::string_view what);

}  // namespace phalanx::comm
