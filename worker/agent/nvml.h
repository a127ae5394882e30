// worker/agent/nvml.h: NVIDIA's management library, as far as this daemon asks it.
//
// It comes with the driver and is opened only here, so the daemon runs where there is none. Asking
// it makes no context on any GPU.
//
// A device index of ours is CUDA's: it counts within CUDA_VISIBLE_DEVICES where that is set, and
// otherwise all GPUs, the fastest first unless CUDA_DEVICE_ORDER is PCI_BUS_ID. NVML counts in the
// order of the bus, so indices are the same where the GPUs are alike or that order is asked for.
// Where neither holds, which of them is which is not known.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace phalanx::agent {

struct GpuSelection {
  int32_t devices = 0;                 // how many, from index 0
  std::optional<std::string> visible;  // CUDA_VISIBLE_DEVICES; nullopt: not set
  bool bus_order = false;              // CUDA_DEVICE_ORDER is PCI_BUS_ID
  std::string library = "libnvidia-ml.so.1";

  // Names of `visible`; nullopt: not set.
  std::optional<std::vector<std::string>> VisibleNames() const;
};
// As the environment of this process has it; rank processes inherit that.
GpuSelection GpusOfEnvironment(int32_t devices);

// Thread-safe, as the library is.
class Nvml {
 public:
  using Device = struct OpaqueDevice*;
  static constexpr int kSuccess = 0, kTimeout = 10, kGpuIsLost = 15;

  // Errors: Unavailable: no library, no driver.
  static absl::StatusOr<std::unique_ptr<Nvml>> Open(const std::string& library);
  ~Nvml();

  // The selected devices, in our order. Errors: NotFound (fewer GPUs), FailedPrecondition (they are
  // not alike and in an order that NVML does not know), Unavailable.
  absl::StatusOr<std::vector<Device>> DevicesOf(const GpuSelection& selection) const;
  // Bytes that programs may use, without what the driver keeps for itself.
  absl::StatusOr<int64_t> MemoryOf(Device device) const;
  // Of that, bytes that are in use.
  absl::StatusOr<int64_t> UsedMemoryOf(Device device) const;
  // Of CUDA: major and minor version, 90 for 9.0. Errors: Unavailable, also of a driver that does
  // not know.
  absl::StatusOr<int32_t> ComputeCapabilityOf(Device device) const;
  // "NVIDIA H200", without control characters. Errors: Unavailable.
  absl::StatusOr<std::string> NameOf(Device device) const;
  // Degrees Celsius. Errors: Unavailable, also of a driver that does not know.
  absl::StatusOr<int32_t> TemperatureOf(Device device) const;
  // The GPU does not answer any more.
  bool IsLost(Device device) const;

  // False: this driver has no function of the name.
  template <typename Function>
  bool Find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(Symbol(name));
    return function != nullptr;
  }
  // What the library has returned.
  absl::Status StatusOf(int result, absl::StatusCode code, absl::string_view what) const;

 private:
  struct MemoryInfo {
    unsigned long long total, free, used;
  };
  struct MemoryInfo2 {
    unsigned int version;
    unsigned long long total, reserved, free, used;
  };
  struct Close {
    void operator()(void* library) const;
  };

  void* Symbol(const char* name) const;
  // `name`: an index on the bus, or a UUID ("GPU-...", "MIG-...").
  absl::StatusOr<Device> DeviceNamed(const std::string& name) const;
  // Whether all GPUs of the node have as much memory.
  absl::StatusOr<bool> Alike() const;

  std::unique_ptr<void, Close> library_;
  bool initialised_ = false;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  const char* (*error_string_)(int) = nullptr;
  int (*count_)(unsigned int*) = nullptr;
  int (*by_index_)(unsigned int, Device*) = nullptr;
  int (*by_uuid_)(const char*, Device*) = nullptr;
  int (*memory_)(Device, MemoryInfo*) = nullptr;
  int (*memory2_)(Device, MemoryInfo2*) = nullptr;
  int (*capability_)(Device, int* major, int* minor) = nullptr;
  int (*temperature_)(Device, int sensor, unsigned int*) = nullptr;
  int (*name_)(Device, char* name, unsigned int size) = nullptr;
};

}  // namespace phalanx::agent
