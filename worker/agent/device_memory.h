// worker/agent/device_memory.h: how much memory the devices of this node have, whether FP8, and
// their names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/agent/nvml.h"

namespace phalanx::agent {

// Bytes that programs may use of each device, without what the driver keeps for itself.
// Errors: Unavailable (no library, no driver), NotFound (fewer GPUs), FailedPrecondition (they are
// not alike and in an order that NVML does not know).
absl::StatusOr<std::vector<int64_t>> GpuMemory(const GpuSelection& selection);

// Whether all of them multiply in FP8 as ranks do: compute capability 9.0. The same errors.
absl::StatusOr<bool> GpusHaveFp8(const GpuSelection& selection);

// What the driver calls each, such as "NVIDIA H200", without control characters. The same errors.
absl::StatusOr<std::vector<std::string>> GpuNames(const GpuSelection& selection);

}  // namespace phalanx::agent
