// tests/gpu/comm/whole_device.h: a kernel that needs all of the device at once.
#pragma once

#include <cuda_runtime_api.h>

namespace phalanx::comm {

// Enqueues a kernel that does nothing, in as many blocks as the device holds at a time; it starts
// when there is room for all of them.
cudaError_t LaunchOnTheWholeDevice(cudaStream_t stream);

}  // namespace phalanx::comm
