// tests/bench/profile/slowest.h: which of several boards is to be profiled. A step is as long as
// the slowest board makes it, and boards of one kind differ by some percent.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace phalanx::bench {

struct Slowest {
  int32_t device = 0;
  double behind = 0;  // share of the fastest board's time that it takes more
};
// All `devices` of CUDA's first do products at once for so many seconds, each as its power limit
// lets it. Nothing is run where there is one. Errors: those of UseCudaDevice, AwaitDevice.
absl::StatusOr<Slowest> FindSlowest(int32_t devices, double seconds);

}  // namespace phalanx::bench
