#include "worker/device/cuda_device.h"

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>

#include "absl/strings/str_cat.h"

namespace phalanx::device {

absl::Status UseCudaDevice(int32_t index) {
  cudaError_t error = cudaSetDevice(index);
  // Creates the context now, not inside the first collective.
  if (error == cudaSuccess) error = cudaFree(nullptr);
  if (error != cudaSuccess) {
    return absl::UnavailableError(absl::StrCat("GPU ", index, ": ", cudaGetErrorString(error)));
  }
  return absl::OkStatus();
}

void* CurrentStream() { return c10::cuda::getCurrentCUDAStream().stream(); }

int64_t MemoryInUse() {
  size_t free_bytes = 0, total_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) return 0;
  return static_cast<int64_t>(total_bytes - free_bytes);
}

}  // namespace phalanx::device
