#include "core/plan/safe_again.h"

#include <algorithm>

namespace phalanx::plan {

int64_t MirrorSteps(absl::Duration step) {
  if (step * kMirrorStepsMax <= kMirrorsWithin) return kMirrorStepsMax;
  return std::max<int64_t>(1, kMirrorsWithin / step);
}

}  // namespace phalanx::plan
