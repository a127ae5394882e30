#include <algorithm>

#include "worker/train/packed_runs.cuh"

namespace phalanx::train {
namespace {

constexpr int kThreads = 256;

// The run that has a packed element.
__device__ int64_t RunOf(const DeviceRuns& runs, int64_t element) {
  int64_t low = 0, high = runs.runs;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (runs.begins[middle] <= element ? low : high) = middle;
  }
  return low;
}

// A Unit is `each` elements.
template <typename Unit, bool kPack>
__global__ void CopyRuns(const Unit* from, Unit* to, DeviceRuns runs, int64_t each) {
  const int64_t units = runs.elements / each;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < units;
       i += stride) {
    const int64_t run = RunOf(runs, i * each);
    const int64_t flat = i + (runs.offsets[run] - runs.begins[run]) / each;
    if (kPack) {
      to[i] = from[flat];
    } else {
      to[flat] = from[i];
    }
  }
}

__global__ void SumRuns(const float* taken, float* flat, DeviceRuns runs, const int64_t* sources,
                        int32_t replicas) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < runs.elements;
       i += stride) {
    const int64_t run = RunOf(runs, i);
    const int64_t in_run = i - runs.begins[run];
    float* out = flat + runs.offsets[run] + in_run;
    const float own = *out;
    float sum = 0;
    for (int32_t replica = 0; replica < replicas; ++replica) {
      const int64_t source = sources[run * replicas + replica];
      const float summand = source < 0 ? own : taken[source + in_run];
      sum = replica == 0 ? summand : sum + summand;
    }
    *out = sum;
  }
}

int BlocksFor(int64_t count) {
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  return static_cast<int>(std::min<int64_t>(blocks, 132 * 8));
}

template <typename Unit, bool kPack>
void Launch(const void* from, void* to, const DeviceRuns& runs, int64_t each, cudaStream_t stream) {
  CopyRuns<Unit, kPack><<<BlocksFor(runs.elements / each), kThreads, 0, stream>>>(
      static_cast<const Unit*>(from), static_cast<Unit*>(to), runs, each);
}

// Units as wide as elements and alignment allow, of at most 16 bytes.
template <bool kPack>
void LaunchWidest(const void* from, void* to, const DeviceRuns& runs, int64_t bytes,
                  int64_t aligned, cudaStream_t stream) {
  if (runs.elements == 0) return;
  const int64_t unit = std::min<int64_t>(16, bytes * aligned);
  const int64_t each = unit / bytes;
  if (unit == 16) return Launch<uint4, kPack>(from, to, runs, each, stream);
  if (unit == 8) return Launch<uint2, kPack>(from, to, runs, each, stream);
  if (unit == 4) return Launch<uint32_t, kPack>(from, to, runs, each, stream);
  Launch<uint16_t, kPack>(from, to, runs, each, stream);
}

}  // namespace

void LaunchPackRuns(const void* flat, void* packed, const DeviceRuns& runs, int64_t bytes,
                    int64_t aligned, cudaStream_t stream) {
  LaunchWidest<true>(flat, packed, runs, bytes, aligned, stream);
}

void LaunchUnpackRuns(const void* packed, void* flat, const DeviceRuns& runs, int64_t bytes,
                      int64_t aligned, cudaStream_t stream) {
  LaunchWidest<false>(packed, flat, runs, bytes, aligned, stream);
}

void LaunchSumRuns(const float* taken, float* flat, const DeviceRuns& runs, const int64_t* sources,
                   int32_t replicas, cudaStream_t stream) {
  if (runs.elements == 0) return;
  SumRuns<<<BlocksFor(runs.elements), kThreads, 0, stream>>>(taken, flat, runs, sources, replicas);
}

}  // namespace phalanx::train
