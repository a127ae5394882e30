// core/job/log_dropped.h: what a node says of a log that grew too fast, or that its disk takes no
// more of: an event whose text begins
// with the number of bytes that were dropped.
//
// Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace phalanx::job {

// The event's type.
inline constexpr char kLogDropped[] = "LogDropped";

// `rate`: bytes a second that the rank may write.
std::string LogDroppedText(int64_t bytes, int32_t rank, int64_t rate);
// The same where the node's disk takes no more of it. `error`: the errno; 0: there is no file to
// write to.
std::string LogNotWrittenText(int64_t bytes, int32_t rank, int error);
// Of such a text; 0: it is none.
int64_t BytesDropped(absl::string_view text);

}  // namespace phalanx::job
