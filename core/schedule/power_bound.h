// core/schedule/power_bound.h: what no step of a device that is held to a power limit beats. Pure.
#pragma once

#include <optional>

#include "core/schedule/profile.h"

namespace phalanx::schedule {

// Rates, in the place of the profile's, by which the work of one device adds up to what no step
// takes less than, whatever the clock. At a clock f of work whose seconds are t(f), dynamic joules
// e(f), and t at the profile's clock, a step of SustainedCosts takes at least t(f), and at least
// e(f) / (limit - idle) - (t(f) - t): waiting is counted at the profile's clock. So it takes any
// mean of both, and the least of that over all clocks, entry by entry, adds up. Some 2 % of a step
// lie outside its passes, so the sum is to be taken with that much less. None without power, and
// where the limit slows no product.
std::optional<DeviceProfile> LeastWithinLimit(const DeviceProfile& profile);

}  // namespace phalanx::schedule
