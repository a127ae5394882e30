// worker/train/step_kernels.cuh: launches of the CUDA kernels behind step_kernels.h, without LibTorch.
//
// All enqueue on `stream` and return; errors show up at the next CUDA call.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/train/commit.h"
#include "worker/train/step_kernels_args.h"

namespace phalanx::train {

inline constexpr int32_t kNormBlocks = 512;

// partials[kNormBlocks] <- sums of squares of parts of values[count].
void LaunchSquaredNormPartials(const float* values, int64_t count, double* partials, cudaStream_t stream);
// accumulator[0] += the sum of partials[count], in a fixed order.
void LaunchSumPartials(const double* partials, int64_t count, double* accumulator, cudaStream_t stream);
void LaunchWriteRecord(Record* record, const Record& header, const double* sums, cudaStream_t stream);
// `published` is host memory that the device can write; its `ready_step` is written last.
void LaunchMakeDecision(const Record* records, int32_t world, const Expectation& expected, Decision* decision,
                        PublishedDecision* published, cudaStream_t stream);
// `weight_bf16` or `weight_fp32`, the other null. With fp32 weights `master` is the weights themselves.
void LaunchAdamW(const float* gradient, float* master, float* first, float* second, void* weight_bf16, int64_t count,
                 const AdamWFactors& factors, const Decision* decision, int64_t expected_step, cudaStream_t stream);

}  // namespace phalanx::train
