#include "worker/agent/device_memory.h"

#include <memory>
#include <utility>

#include "core/base/status.h"

namespace phalanx::agent {

absl::StatusOr<std::vector<int64_t>> GpuMemory(const GpuSelection& selection) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Nvml> nvml, Nvml::Open(selection.library));
  ASSIGN_OR_RETURN(const std::vector<Nvml::Device> devices, nvml->DevicesOf(selection));
  std::vector<int64_t> memory;
  for (const Nvml::Device device : devices) {
    ASSIGN_OR_RETURN(const int64_t bytes, nvml->MemoryOf(device));
    memory.push_back(bytes);
  }
  return memory;
}

absl::StatusOr<bool> GpusHaveFp8(const GpuSelection& selection) {
  constexpr int32_t kHopper = 90;  // what CUDA kernels of ranks are built for
  ASSIGN_OR_RETURN(const std::unique_ptr<Nvml> nvml, Nvml::Open(selection.library));
  ASSIGN_OR_RETURN(const std::vector<Nvml::Device> devices, nvml->DevicesOf(selection));
  for (const Nvml::Device device : devices) {
    ASSIGN_OR_RETURN(const int32_t capability, nvml->ComputeCapabilityOf(device));
    if (capability < kHopper) return false;
  }
  return true;
}

absl::StatusOr<std::vector<std::string>> GpuNames(const GpuSelection& selection) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Nvml> nvml, Nvml::Open(selection.library));
  ASSIGN_OR_RETURN(const std::vector<Nvml::Device> devices, nvml->DevicesOf(selection));
  std::vector<std::string> names;
  for (const Nvml::Device device : devices) {
    ASSIGN_OR_RETURN(std::string name, nvml->NameOf(device));
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace phalanx::agent
