// core/plan/speeds.h: what each replica of a module can do. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "core/plan/plan.h"

namespace phalanx::plan {

// What each replica of a module can do, relative to the fastest, which has kSpeedOfFastest: one
// over the longest of its stages' times, each with the largest share of units that one of its ranks
// holds, and with the pace of the slowest of its `slow` places. 0: absent. Empty: all alike.
//
// A replica that is slow is dealt something all the same, as far as there is enough: else it would
// have no work by which its device could show that it keeps up again.
inline constexpr int64_t kSpeedOfFastest = int64_t{1} << 20;
std::vector<int64_t> SpeedsOf(const Plan& plan, int32_t module, const ReplicaTable& replicas,
                              absl::Span<const SlowPlace> slow = {});

}  // namespace phalanx::plan
