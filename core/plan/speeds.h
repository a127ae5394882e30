// core/plan/speeds.h: what each replica of a module can do. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/plan.h"

namespace phalanx::plan {

// What each replica of a module can do, relative to the fastest, which has kSpeedOfFastest: one
// over the longest of its stages' times, each with the largest share of units that one of its ranks
// holds. 0: absent. Empty: all alike.
inline constexpr int64_t kSpeedOfFastest = int64_t{1} << 20;
std::vector<int64_t> SpeedsOf(const Plan& plan, int32_t module, const ReplicaTable& replicas);

}  // namespace phalanx::plan
