// worker/train/step_kernels.cuh: launches of the CUDA kernels behind step_kernels.h, without
// LibTorch.
//
// All enqueue on `stream` and return; errors show up at the next CUDA call.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "worker/train/commit.h"
#include "worker/train/step_kernels_args.h"

namespace phalanx::train {

inline constexpr int32_t kNormBlocks = 1056;

// partials[kNormBlocks] <- sums of squares of parts of the gradients of the runs.
void LaunchSquaredNormPartials(const float* gradients, const RunTable& runs, double* partials,
                               cudaStream_t stream);
// accumulator[0] += the sum of partials[count], in a fixed order.
void LaunchSumPartials(const double* partials, int64_t count, double* accumulator,
                       cudaStream_t stream);
// `applied`: [homes], written by MarkApplied.
void LaunchWriteRecord(Record* record, const Record& header, const double* sums,
                       const int64_t* applied, int32_t homes, const CommitWords* words,
                       cudaStream_t stream);
// Writes the step's slot of `decisions` [2] and of the words.
void LaunchMakeDecision(const Record* records, int32_t world, const Expectation& expected,
                        Decision* decisions, CommitWords* words, cudaStream_t stream);
// *applied = step, if `decision` is that step's and decided.
void LaunchMarkApplied(int64_t* applied, int64_t step, const Decision* decision,
                       cudaStream_t stream);
void LaunchMarkProgress(CommitWords* words, int64_t count, cudaStream_t stream);
// Every run with the elements of all buffers that it names. `master` null: the weights themselves,
// fp32, are the master copy. `weights_bf16` null: there are none, or they are fp32.
struct AdamWBuffers {
  const float* gradients;
  float* weights_fp32;
  __nv_bfloat16* weights_bf16;
  float* master;
  float* first;
  float* second;
};
void LaunchAdamW(const AdamWBuffers& buffers, const RunTable& runs, const AdamWFactors& factors,
                 const Decision* decision, int64_t expected_step, cudaStream_t stream);

}  // namespace phalanx::train
