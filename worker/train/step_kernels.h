// worker/train/step_kernels.h: the few computations of a step that are not layers: gradient norm,
// record, decision, AdamW.
//
// Two implementations: CPU (computed at once) and CUDA (enqueued on the current stream; nothing
// waits for the device). AdamW is one pass per element with explicit rounding, so copies of a state
// stay bit-equal whatever their offset in a buffer.
//
// Not thread-safe.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/train/commit.h"

namespace phalanx::train {

// A run of a rank's shard: elements [gradient_offset, gradient_offset + count) of the flat buffers,
// whose state stands at [state_offset, ...) of the state tensors.
struct ShardRun {
  int64_t gradient_offset = 0;
  int64_t state_offset = 0;
  int64_t count = 0;
  bool decay = false;   // weight decay applies
  bool counted = true;  // this rank counts these elements in the gradient norm
};

// Optimizer state of one flat buffer's shard.
struct ShardState {
  std::vector<ShardRun> runs;
  int64_t elements = 0;
  at::Tensor master;         // [elements], or undefined: the weights themselves are the master copy
  at::Tensor first_moment;   // [elements]
  at::Tensor second_moment;  // [elements]
};

struct AdamWStep {
  double learning_rate = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
  int64_t update = 1;  // counted from 1 over the updates applied, for the correction of the moments
};

class StepKernels {
 public:
  virtual ~StepKernels() = default;

  // accumulator[0] += sum of squares of the counted runs, in fp64.
  virtual void AddSquaredNorm(const at::Tensor& gradients, const ShardState& shard,
                              at::Tensor& accumulator) = 0;

  // Fills record `rank` of `records` ([world * sizeof(Record)] bytes on the device). `header` gives
  // the host's fields; norm, loss, tokens and corrupt samples come from `sums`, fp64 [4] on the
  // device.
  virtual void WriteRecord(at::Tensor& records, int32_t rank, const Record& header,
                           const at::Tensor& sums) = 0;

  // decision <- Decide(records); also copied to where ReadDecision finds it.
  virtual void MakeDecision(const at::Tensor& records, int32_t world,
                            const Expectation& expected) = 0;

  // The decision of step `step`, if it is there yet. Never blocks.
  virtual bool ReadDecision(int64_t step, Decision* decision) = 0;

  // Predicated on the decision of `expected_step` being kCommitted: gradients are scaled by it,
  // state and weights updated. `weights`: flat buffer of the compute type.
  virtual void AdamW(const at::Tensor& gradients, ShardState& shard, at::Tensor& weights,
                     const AdamWStep& step, int64_t expected_step) = 0;
};

std::unique_ptr<StepKernels> MakeCpuStepKernels();
#ifdef PHALANX_WITH_CUDA
std::unique_ptr<StepKernels> MakeCudaStepKernels();
#endif

}  // namespace phalanx::train
