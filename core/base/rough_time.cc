#include "core/base/rough_time.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace phalanx {
namespace {

constexpr absl::Duration kMinutesMax = absl::Minutes(100), kHoursMax = absl::Hours(48);
constexpr int kDigitsMax = 6;  // to a nanosecond

int64_t Nearest(absl::Duration delay, absl::Duration unit) {
  return absl::IDivDuration(delay + unit / 2, unit, &delay);
}

}  // namespace

Instant RoughTime(Instant now, Instant at) {
  const absl::Duration delay = at - now;
  const absl::Duration unit = delay < kMinutesMax ? absl::Minutes(1)
                              : delay < kHoursMax ? absl::Minutes(10)
                                                  : absl::Hours(1);
  return absl::UnixEpoch() + absl::Ceil(at - absl::UnixEpoch(), unit);
}

std::string RoughText(absl::Duration delay) {
  if (delay < kMinutesMax)
    return absl::StrCat(std::max<int64_t>(1, Nearest(delay, absl::Minutes(1))), " min");
  if (delay < kHoursMax) return absl::StrCat(Nearest(delay, absl::Hours(1)), " h");
  return absl::StrCat(Nearest(delay, absl::Hours(24)), " d");
}

std::string MillisecondsText(double seconds) {
  const double milliseconds = seconds * 1e3;
  int digits = 1;  // behind the point
  for (double least = 1; std::abs(milliseconds) < least && digits < kDigitsMax; least /= 10)
    ++digits;
  return absl::StrFormat("%.*f ms", milliseconds == 0 ? 1 : digits, milliseconds);
}

}  // namespace phalanx
