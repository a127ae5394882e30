#include "tests/sim/scale/field.h"

#include <cmath>

namespace phalanx::scale {
namespace {

constexpr double kHardware = 0.78;
constexpr double kShortDays = 3, kLongDays = 5, kSoftwareDays = 3.0 / 24;
constexpr double kHardwareDays = (kShortDays + kLongDays) / 2;
constexpr double kMeanDays = kHardware * kHardwareDays + (1 - kHardware) * kSoftwareDays;

absl::Duration Days(double days) { return absl::Hours(24) * days; }

}  // namespace

// What is out does not fail.
Field::Field(double failed, int32_t devices, uint64_t seed)
    : failed_(failed), devices_(devices), rate_(failed / (1 - failed) / kMeanDays), prng_(seed) {}

absl::Duration Field::HardwareOutage(double five_days) {
  return Days(prng_.Uniform() < five_days ? kLongDays : kShortDays);
}

// Long outages are met more often than short ones.
std::vector<Outage> Field::Now() {
  std::vector<Outage> outages;
  for (int32_t device = 0; device < devices_; ++device) {
    if (prng_.Uniform() >= failed_) continue;
    Outage& outage = outages.emplace_back(Outage{.device = device});
    outage.hardware = prng_.Uniform() < kHardware * kHardwareDays / kMeanDays;
    outage.lasts = outage.hardware ? HardwareOutage(kLongDays / (kShortDays + kLongDays))
                                   : Days(kSoftwareDays);
    outage.lasts *= prng_.Uniform();
  }
  return outages;
}

absl::Duration Field::UntilNext() {
  return Days(-std::log(1 - prng_.Uniform()) / (rate_ * devices_));
}

Outage Field::Next() {
  Outage outage{.device = static_cast<int32_t>(prng_.Below(static_cast<uint64_t>(devices_)))};
  outage.hardware = prng_.Uniform() < kHardware;
  outage.lasts = outage.hardware ? HardwareOutage(0.5) : Days(kSoftwareDays);
  return outage;
}

}  // namespace phalanx::scale
