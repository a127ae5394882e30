// core/job/devices.h: how many devices a job gets.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/job/job_spec.h"

namespace phalanx::job {

// All at once: those of its ranks, those that idle beyond them, and spares.
inline int32_t DevicesOf(const JobSpec& spec) {
  return std::max(spec.resources.devices, spec.World()) + spec.resources.spares;
}

}  // namespace phalanx::job
