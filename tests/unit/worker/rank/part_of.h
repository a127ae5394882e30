// tests/unit/worker/rank/part_of.h: one part of a step's work.
#pragma once

#include <cstddef>

#include "worker/rank/step_profile.h"

namespace phalanx::rank {

inline const StepProfile::Part& PartOf(const StepProfile& profile, WorkPart part) {
  return profile.parts[static_cast<size_t>(part)];
}

}  // namespace phalanx::rank
