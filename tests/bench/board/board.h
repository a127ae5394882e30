// tests/bench/board/board.h: what a GPU's board says of itself, by NVML. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/agent/nvml.h"

namespace phalanx::bench {

class Board {
 public:
  // Of CUDA's first devices, in its order. Errors: those of Nvml; Unavailable where one counts no
  // joules.
  static absl::StatusOr<std::vector<Board>> OpenAll(int32_t devices);
  // Of one of them.
  static absl::StatusOr<std::unique_ptr<Board>> Open(int32_t device = 0);

  double Joules() const;  // since the driver was loaded
  double ClockMhz() const;
  double TemperatureCelsius() const;
  double LimitWatts() const;
  std::string Driver() const;
  std::string Name() const;  // of the GPU, such as "NVIDIA H200"

 private:
  using Device = agent::Nvml::Device;
  explicit Board(std::shared_ptr<agent::Nvml> nvml) : nvml_(std::move(nvml)) {}

  std::shared_ptr<agent::Nvml> nvml_;  // of all boards that were opened together
  Device device_ = nullptr;
  int (*energy_)(Device, unsigned long long* millijoules) = nullptr;
  int (*clock_)(Device, int type, unsigned int* mhz) = nullptr;
  int (*temperature_)(Device, int sensor, unsigned int* celsius) = nullptr;
  int (*limit_)(Device, unsigned int* milliwatts) = nullptr;
  int (*driver_)(char* text, unsigned int size) = nullptr;
  int (*name_)(Device, char* text, unsigned int size) = nullptr;
};

}  // namespace phalanx::bench
