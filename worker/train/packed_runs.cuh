// worker/train/packed_runs.cuh: launches of the CUDA kernels behind packed_runs.h, without
// LibTorch. All enqueue on `stream` and return; errors show up at the next CUDA call.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace phalanx::train {

// Run i is elements [offsets[i], ...) of a flat buffer and [begins[i], begins[i + 1]) of a packed
// one, the last up to `elements`. In device memory.
struct DeviceRuns {
  const int64_t* offsets;
  const int64_t* begins;
  int64_t runs;
  int64_t elements;
};

// `bytes` an element. `aligned`: all offsets and begins, and `elements`, are multiples of it; a
// power of two. Both buffers begin at 16-byte boundaries.
void LaunchPackRuns(const void* flat, void* packed, const DeviceRuns& runs, int64_t bytes,
                    int64_t aligned, cudaStream_t stream);
void LaunchUnpackRuns(const void* packed, void* flat, const DeviceRuns& runs, int64_t bytes,
                      int64_t aligned, cudaStream_t stream);
// `sources`: [runs, replicas], where in `taken` a summand begins; -1: in `flat` itself.
void LaunchSumRuns(const float* taken, float* flat, const DeviceRuns& runs, const int64_t* sources,
                   int32_t replicas, cudaStream_t stream);

}  // namespace phalanx::train
