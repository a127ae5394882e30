// Compiled with -fmad=false: copies of optimizer state must stay bit-equal, so every product and
// sum is rounded for itself.
#include <cuda_bf16.h>

#include "worker/train/step_kernels.cuh"

namespace phalanx::train {
namespace {

constexpr int kThreads = 256;

__device__ double BlockSum(double value) {
  __shared__ double sums[kThreads];
  sums[threadIdx.x] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  return sums[0];
}

// The run that a tile is of.
__device__ int32_t RunOf(const RunTable& table, int32_t tile) {
  int32_t low = 0, high = table.runs;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    (table.run[middle].first_tile <= tile ? low : high) = middle;
  }
  return low;
}

// Elements [begin, end) of a run: those of a tile.
struct TileRange {
  int64_t begin, end;
};
__device__ TileRange RangeOf(const RunTiles& run, int32_t tile) {
  const int64_t begin = (tile - run.first_tile) * kTile;
  return {begin, min(run.count, begin + kTile)};
}

__device__ bool IsAligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

__device__ double Square(float value) {
  const double wide = value;
  return wide * wide;
}

__global__ void __launch_bounds__(kThreads)
    SquaredNormPartials(const float* gradients, const __grid_constant__ RunTable table,
                        double* partials) {
  double sum = 0;
  for (int32_t tile = blockIdx.x; tile < table.tiles; tile += gridDim.x) {
    const RunTiles& run = table.run[RunOf(table, tile)];
    const TileRange range = RangeOf(run, tile);
    const float* const values = gradients + run.gradient_offset + range.begin;
    const auto count = static_cast<int32_t>(range.end - range.begin);
    const int32_t wide = IsAligned(values) ? count / 4 : 0;
#pragma unroll
    for (int32_t turn = 0; turn < kTile / 4 / kThreads; ++turn) {
      const int32_t i = turn * kThreads + static_cast<int32_t>(threadIdx.x);
      if (i >= wide) continue;
      const float4 four = reinterpret_cast<const float4*>(values)[i];
      sum += (Square(four.x) + Square(four.y)) + (Square(four.z) + Square(four.w));
    }
    for (int32_t i = 4 * wide + static_cast<int32_t>(threadIdx.x); i < count; i += kThreads)
      sum += Square(values[i]);
  }
  sum = BlockSum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void SumPartials(const double* partials, int64_t count, double* accumulator) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += partials[i];
  sum = BlockSum(sum);
  if (threadIdx.x == 0) accumulator[0] += sum;
}

__global__ void WriteRecordKernel(Record* out, Record header, const double* sums,
                                  const int64_t* applied, int32_t homes, const CommitWords* words) {
  for (int32_t home = 0; home < homes; ++home) {
    if (applied[home] < header.applied) header.applied = applied[home];
  }
  header.stop = *const_cast<const volatile int64_t*>(&words->stop) != 0 ? 1 : 0;
  *out = CompleteRecord(header, sums);
}

__global__ void MakeDecisionKernel(const Record* records, int32_t world, Expectation expected,
                                   Decision* decisions, CommitWords* words) {
  const bool stop = *const_cast<const volatile int64_t*>(&words->stop) != 0;
  Decision& decision = decisions[expected.step % 2];
  PublishedDecision& published = words->decisions[expected.step % 2];
  decision = Decide(records, world, expected, stop);
  published.decision = decision;
  __threadfence_system();
  *const_cast<volatile int64_t*>(&published.ready_step) = expected.step;
}

__global__ void MarkAppliedKernel(int64_t* applied, int64_t step, const Decision* decision) {
  if (decision->step != step || !IsDecided(decision->verdict)) return;
  *const_cast<volatile int64_t*>(applied) = step;
}

__global__ void MarkProgressKernel(CommitWords* words, int64_t count) {
  *const_cast<volatile int64_t*>(&words->progress) = count;
}

// One element: its new master weight; moments are updated in place.
__device__ float Updated(const AdamWFactors& f, float scale, float decay, float gradient,
                         float master, float* first, float* second) {
  const float g = gradient * scale;
  const float m = f.beta1 * *first + f.rest1 * g;
  const float v = f.beta2 * *second + f.rest2 * (g * g);
  *first = m;
  *second = v;
  const float direction = (m * f.correction1) / (sqrtf(v * f.correction2) + f.epsilon);
  return master - f.rate * (direction + decay * master);
}

// A block takes a tile: 16 bytes at a time where all of a run's buffers stand at such, else by
// elements. Which of the two does not matter to the bits.
__global__ void __launch_bounds__(kThreads)
    AdamWKernel(const AdamWBuffers b, const __grid_constant__ RunTable table, const AdamWFactors f,
                const Decision* decision, int64_t expected_step) {
  if (decision->step != expected_step || decision->verdict != Verdict::kCommitted) return;
  const float scale = static_cast<float>(decision->gradient_scale);
  const RunTiles& run = table.run[RunOf(table, static_cast<int32_t>(blockIdx.x))];
  const TileRange range = RangeOf(run, static_cast<int32_t>(blockIdx.x));
  const auto count = static_cast<int32_t>(range.end - range.begin);
  const float decay = run.decay ? f.weight_decay : 0.0f;
  const int64_t in_gradients = run.gradient_offset + range.begin;
  const int64_t in_state = run.state_offset + range.begin;
  const float* const gradient = b.gradients + in_gradients;
  float* const master = b.master == nullptr ? b.weights_fp32 + in_gradients : b.master + in_state;
  float* const first = b.first + in_state;
  float* const second = b.second + in_state;
  __nv_bfloat16* const weight = b.weights_bf16 == nullptr ? nullptr : b.weights_bf16 + in_gradients;
  float* const weight_fp32 =  // of a mirror, which has a master beside it
      b.master == nullptr || b.weights_fp32 == nullptr ? nullptr : b.weights_fp32 + in_gradients;
  const bool aligned = IsAligned(gradient) && IsAligned(master) && IsAligned(first) &&
                       IsAligned(second) && IsAligned(weight_fp32) &&
                       reinterpret_cast<uintptr_t>(weight) % 8 == 0;
  const int32_t wide = aligned ? count / 4 : 0;
  // All loads before the first store.
  constexpr int32_t kTurns = kTile / 4 / kThreads;
  float4 g[kTurns], w[kTurns], m[kTurns], v[kTurns];
#pragma unroll
  for (int32_t turn = 0; turn < kTurns; ++turn) {
    const int32_t i = turn * kThreads + static_cast<int32_t>(threadIdx.x);
    if (i >= wide) continue;
    g[turn] = reinterpret_cast<const float4*>(gradient)[i];
    w[turn] = reinterpret_cast<const float4*>(master)[i];
    m[turn] = reinterpret_cast<const float4*>(first)[i];
    v[turn] = reinterpret_cast<const float4*>(second)[i];
  }
#pragma unroll
  for (int32_t turn = 0; turn < kTurns; ++turn) {
    const int32_t i = turn * kThreads + static_cast<int32_t>(threadIdx.x);
    if (i >= wide) continue;
    float4 &to = w[turn], &m4 = m[turn], &v4 = v[turn];
    to.x = Updated(f, scale, decay, g[turn].x, to.x, &m4.x, &v4.x);
    to.y = Updated(f, scale, decay, g[turn].y, to.y, &m4.y, &v4.y);
    to.z = Updated(f, scale, decay, g[turn].z, to.z, &m4.z, &v4.z);
    to.w = Updated(f, scale, decay, g[turn].w, to.w, &m4.w, &v4.w);
    reinterpret_cast<float4*>(first)[i] = m4;
    reinterpret_cast<float4*>(second)[i] = v4;
    reinterpret_cast<float4*>(master)[i] = to;
    if (weight_fp32 != nullptr) reinterpret_cast<float4*>(weight_fp32)[i] = to;
    if (weight != nullptr) {
      const __nv_bfloat162 low = __floats2bfloat162_rn(to.x, to.y);
      const __nv_bfloat162 high = __floats2bfloat162_rn(to.z, to.w);
      reinterpret_cast<uint2*>(weight)[i] = make_uint2(reinterpret_cast<const uint32_t&>(low),
                                                       reinterpret_cast<const uint32_t&>(high));
    }
  }
  for (int32_t i = 4 * wide + static_cast<int32_t>(threadIdx.x); i < count; i += kThreads) {
    const float updated = Updated(f, scale, decay, gradient[i], master[i], first + i, second + i);
    master[i] = updated;
    if (weight_fp32 != nullptr) weight_fp32[i] = updated;
    if (weight != nullptr) weight[i] = __float2bfloat16_rn(updated);
  }
}

}  // namespace

void LaunchSquaredNormPartials(const float* gradients, const RunTable& runs, double* partials,
                               cudaStream_t stream) {
  SquaredNormPartials<<<kNormBlocks, kThreads, 0, stream>>>(gradients, runs, partials);
}

void LaunchSumPartials(const double* partials, int64_t count, double* accumulator,
                       cudaStream_t stream) {
  SumPartials<<<1, kThreads, 0, stream>>>(partials, count, accumulator);
}

void LaunchWriteRecord(Record* record, const Record& header, const double* sums,
                       const int64_t* applied, int32_t homes, const CommitWords* words,
                       cudaStream_t stream) {
  WriteRecordKernel<<<1, 1, 0, stream>>>(record, header, sums, applied, homes, words);
}

void LaunchMakeDecision(const Record* records, int32_t world, const Expectation& expected,
                        Decision* decisions, CommitWords* words, cudaStream_t stream) {
  MakeDecisionKernel<<<1, 1, 0, stream>>>(records, world, expected, decisions, words);
}

void LaunchMarkApplied(int64_t* applied, int64_t step, const Decision* decision,
                       cudaStream_t stream) {
  MarkAppliedKernel<<<1, 1, 0, stream>>>(applied, step, decision);
}

void LaunchMarkProgress(CommitWords* words, int64_t count, cudaStream_t stream) {
  MarkProgressKernel<<<1, 1, 0, stream>>>(words, count);
}

void LaunchAdamW(const AdamWBuffers& buffers, const RunTable& runs, const AdamWFactors& factors,
                 const Decision* decision, int64_t expected_step, cudaStream_t stream) {
  if (runs.tiles == 0) return;
  AdamWKernel<<<runs.tiles, kThreads, 0, stream>>>(buffers, runs, factors, decision, expected_step);
}

}  // namespace phalanx::train
