// core/plan/safe_again.h: how long mirrors wait for their state behind a change of layout.
//
// Primary homes have theirs before the first step; mirrors get what they lack at the ends of the
// first steps, as many buckets behind each. The job is safe again once every share of its optimizer
// state has all its homes.
//
// Pure.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace phalanx::plan {

// Elements, of all ranks. So many or fewer mirrors get with the primaries: it takes milliseconds.
inline constexpr int64_t kMirrorsAtOnceMax = int64_t{1} << 20;
inline constexpr int64_t kMirrorStepsMax = 4;
inline constexpr absl::Duration kMirrorsWithin = absl::Seconds(10);

// At the ends of how many steps, which take `step` each, mirrors get what they lack: as many as end
// within kMirrorsWithin, from 1 to kMirrorStepsMax.
int64_t MirrorSteps(absl::Duration step);

}  // namespace phalanx::plan
