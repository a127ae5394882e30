// tests/sim/scale/field.h: how often devices fail in the field, and for how long.
//
// After the published failures of a 54-day run on 16,384 devices: 419 of them, 78 % of hardware,
// back after 3 or after 5 days, the others of software, back after 3 hours.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "core/base/prng.h"

namespace phalanx::scale {

inline constexpr double kPublishedFailuresADeviceDay = 419.0 / (16'384 * 54);

struct Outage {
  int32_t device = 0;  // of the cluster
  bool hardware = false;
  absl::Duration lasts;
};

// Not thread-safe.
class Field {
 public:
  // Such that a share `failed` of the devices is out on average: the published mixture, more or
  // less often.
  Field(double failed, int32_t devices, uint64_t seed);

  double failures_a_device_day() const { return rate_; }
  // What is out at some instant, each for the rest of its time.
  std::vector<Outage> Now();
  // Until the next failure; `device` may be out already, then nothing happens.
  absl::Duration UntilNext();
  Outage Next();

 private:
  absl::Duration HardwareOutage(double five_days);

  const double failed_;
  const int32_t devices_;
  double rate_ = 0;
  Prng prng_;
};

}  // namespace phalanx::scale
