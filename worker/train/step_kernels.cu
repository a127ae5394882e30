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

__global__ void SquaredNormPartials(const float* values, int64_t count, double* partials) {
  double sum = 0;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += stride) {
    const double value = values[i];
    sum += value * value;
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

__global__ void AdamWKernel(const float* gradient, float* master, float* first, float* second,
                            __nv_bfloat16* weight, int64_t count, AdamWFactors f,
                            const Decision* decision, int64_t expected_step) {
  if (decision->step != expected_step || decision->verdict != Verdict::kCommitted) return;
  const float scale = static_cast<float>(decision->gradient_scale);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += stride) {
    const float g = gradient[i] * scale;
    const float m = f.beta1 * first[i] + f.rest1 * g;
    const float v = f.beta2 * second[i] + f.rest2 * (g * g);
    first[i] = m;
    second[i] = v;
    const float direction = (m * f.correction1) / (sqrtf(v * f.correction2) + f.epsilon);
    const float updated = master[i] - f.rate * (direction + f.weight_decay * master[i]);
    master[i] = updated;
    if (weight != nullptr) weight[i] = __float2bfloat16_rn(updated);
  }
}

int BlocksFor(int64_t count) {
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  return static_cast<int>(blocks < 132 * 16 ? blocks : 132 * 16);
}

}  // namespace

void LaunchSquaredNormPartials(const float* values, int64_t count, double* partials,
                               cudaStream_t stream) {
  SquaredNormPartials<<<kNormBlocks, kThreads, 0, stream>>>(values, count, partials);
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

void LaunchAdamW(const float* gradient, float* master, float* first, float* second,
                 void* weight_bf16, int64_t count, const AdamWFactors& factors,
                 const Decision* decision, int64_t expected_step, cudaStream_t stream) {
  if (count == 0) return;
  AdamWKernel<<<BlocksFor(count), kThreads, 0, stream>>>(gradient, master, first, second,
                                                         static_cast<__nv_bfloat16*>(weight_bf16),
                                                         count, factors, decision, expected_step);
}

}  // namespace phalanx::train
