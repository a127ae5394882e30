#include "tests/gpu/comm/whole_device.h"

namespace phalanx::comm {
namespace {

constexpr int kThreads = 1024;

__global__ void DoNothing() {}

}  // namespace

cudaError_t LaunchOnTheWholeDevice(cudaStream_t stream) {
  int device = 0, processors = 0, blocks = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess)
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, DoNothing, kThreads, 0);
  if (error != cudaSuccess) return error;
  return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(DoNothing),
                                     dim3(static_cast<unsigned>(processors * blocks)),
                                     dim3(kThreads), nullptr, 0, stream);
}

}  // namespace phalanx::comm
