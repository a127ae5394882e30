// worker/agent/device_memory.h: how much memory the devices of this node have.
//
// GPUs are asked through NVML, which answers without making a context on any of them. Its library
// comes with the driver and is opened only here, so the daemon runs where there is none.
//
// A device index of ours is CUDA's: it counts within CUDA_VISIBLE_DEVICES where that is set, and
// otherwise all GPUs, the fastest first unless CUDA_DEVICE_ORDER is PCI_BUS_ID. NVML counts in the
// order of the bus, so indices are the same where the GPUs are alike or that order is asked for.
// Where neither holds, which of them has how much is not known.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace phalanx::agent {

struct GpuSelection {
  int32_t devices = 0;                 // how many, from index 0
  std::optional<std::string> visible;  // CUDA_VISIBLE_DEVICES; nullopt: not set
  bool bus_order = false;              // CUDA_DEVICE_ORDER is PCI_BUS_ID
  std::string library = "libnvidia-ml.so.1";
};
// As the environment of this process has it; rank processes inherit that.
GpuSelection GpusOfEnvironment(int32_t devices);

// Bytes that programs may use of each device, without what the driver keeps for itself.
// Errors: Unavailable (no library, no driver), NotFound (fewer GPUs), FailedPrecondition (they are
// not alike and in an order that NVML does not know).
absl::StatusOr<std::vector<int64_t>> GpuMemory(const GpuSelection& selection);

}  // namespace phalanx::agent
