// worker/device/environment.h: what CUDA reads from the environment when it starts.
#pragma once

#include <string>

namespace phalanx::device {

// Sets what the environment does not name; what it names stays. Kernels are loaded before training:
// loading one later takes a lock that a collective can hold for as long as it waits. Each stream
// has its own hardware queue, so that one which waits does not hold up another.
//
// Call it before the first thread and the first call of CUDA. Returns what holds now, as
// "NAME=VALUE NAME=VALUE", for the log.
std::string SetCudaEnvironment();

}  // namespace phalanx::device
