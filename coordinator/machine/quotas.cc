#include "coordinator/machine/quotas.h"

#include <algorithm>
#include <cmath>

namespace phalanx::coordinator {
namespace {

// ln 2: device time that goes on for ever counts as half_life / ln 2 of it.
constexpr double kLn2 = 0.69314718055994530942;

// Of what counts now, what counts when so much time has gone by.
double Left(absl::Duration time, absl::Duration half_life) {
  return std::exp2(-absl::FDivDuration(time, half_life));
}

// Seconds that count at the end of a time.
double Counted(absl::Duration time, absl::Duration half_life) {
  return absl::ToDoubleSeconds(half_life) / kLn2 * (1 - Left(time, half_life));
}

}  // namespace

double DeviceTime::At(Instant now, absl::Duration half_life) const {
  if (half_life <= absl::ZeroDuration() || as_of_ == absl::InfinitePast()) return 0;
  const absl::Duration time = std::max(now - as_of_, absl::ZeroDuration());
  return used_ * Left(time, half_life) + static_cast<double>(devices_) * Counted(time, half_life);
}

void DeviceTime::Have(Instant now, int64_t devices, absl::Duration half_life) {
  used_ = At(now, half_life);
  as_of_ = now;
  devices_ = devices;
}

void DeviceTime::Restore(Instant at, double device_seconds) {
  as_of_ = restored_at_ = at;
  used_ = device_seconds;
}

void DeviceTime::Add(Instant since, Instant now, int64_t devices, absl::Duration half_life) {
  if (half_life <= absl::ZeroDuration() || since >= now) return;
  Have(now, devices_, half_life);
  used_ += static_cast<double>(devices) * Counted(now - since, half_life);
}

}  // namespace phalanx::coordinator
