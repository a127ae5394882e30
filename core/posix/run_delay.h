// core/posix/run_delay.h: how long a thread could have run and others did.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace phalanx {

// Of all its life, as /proc/PID/schedstat says: nanoseconds on a processor, nanoseconds that it
// waited for one, and slices. Zero where it does not say so.
absl::Duration ParseRunDelay(absl::string_view schedstat);

// `thread`: of /proc, such as "thread-self" or the number of a process, whose first thread it then
// is. Zero where the system does not count it.
absl::Duration RunDelay(const std::string& thread);

}  // namespace phalanx
