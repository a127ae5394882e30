#include "core/base/rough_time.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace phalanx {
namespace {

constexpr absl::Duration kMinutesMax = absl::Minutes(100), kHoursMax = absl::Hours(48);

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

}  // namespace phalanx
