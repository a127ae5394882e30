#include "core/base/health.h"

#include "absl/strings/str_cat.h"

namespace phalanx {

absl::Status Pulse::Alive(Instant now) const {
  const absl::Duration silence = now - absl::FromUnixNanos(last_.load(std::memory_order_relaxed));
  if (silence <= silence_max_) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      who_, " has not run for ", absl::FormatDuration(absl::Trunc(silence, absl::Seconds(1)))));
}

}  // namespace phalanx
