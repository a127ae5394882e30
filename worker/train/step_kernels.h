// worker/train/step_kernels.h: the few computations of a step that are not layers (gradient norm,
// record, decision, AdamW), and the words in which host and device tell each other how far they
// are.
//
// Two implementations: CPU (computed at once) and CUDA (enqueued on the current stream; nothing
// waits for the device). AdamW is one pass per element with explicit rounding, so copies of a state
// stay bit-equal whatever their offset in a buffer.
//
// The words outlive epochs, as the state does that they speak of:
//   stop       the host tells the device: no step is decided any more
//   decisions  two slots, that of step s in slot s % 2
//   applied    one a *home* (a block of optimizer state, state_block.h): the last step that it has
//              applied, or left out because its decision says so
//   progress   a counter that the device advances behind what is enqueued
//
// Not thread-safe but for SetStop and stopped.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "worker/train/commit.h"
#include "worker/train/state_block.h"

namespace phalanx::train {

struct AdamWStep {
  double learning_rate = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
  int64_t update = 1;  // counted from 1 over the updates applied, for the correction of the moments
};

class StepKernels {
 public:
  virtual ~StepKernels() = default;

  // Thread-safe. While it is set, records say so and decisions are invalid.
  virtual void SetStop(bool stop) = 0;
  virtual bool stopped() const = 0;

  // accumulator[0] += sum of squares of the runs, in fp64.
  virtual void AddSquaredNorm(const at::Tensor& gradients, const StateBlock& block,
                              at::Tensor& accumulator) = 0;

  // Fills record `rank` of `records` ([world * sizeof(Record)] bytes on the device). `header` gives
  // the host's fields, and the last step that can be applied; what homes have applied and whether
  // to stop comes from the words, the numbers from `sums`, fp64 [4] on the device.
  virtual void WriteRecord(at::Tensor& records, int32_t rank, const Record& header,
                           const at::Tensor& sums) = 0;

  // The slot of expected.step <- Decide(records).
  virtual void MakeDecision(const at::Tensor& records, int32_t world,
                            const Expectation& expected) = 0;

  // The decision of step `step`, if it is there yet. Never blocks.
  virtual bool ReadDecision(int64_t step, Decision* decision) = 0;

  // For a host that has nothing enqueued: `last` is the last decision that counts (step 0: there is
  // none), and the other slot is empty.
  virtual void SetDecision(const Decision& last) = 0;

  // Predicated on the decision of `expected_step` being kCommitted: gradients are scaled by it,
  // state and weights updated. `weights`: flat buffer of the compute type; nullptr: they
  // come from elsewhere.
  virtual void AdamW(const at::Tensor& gradients, StateBlock& block, at::Tensor* weights,
                     const AdamWStep& step, int64_t expected_step) = 0;

  // Predicated on `step` being decided: the home has applied it.
  virtual void MarkApplied(int32_t home, int64_t step) = 0;
  // With nothing enqueued: there are so many homes from now on, and all have applied `step`.
  virtual void SetHomes(int32_t homes, int64_t step) = 0;
  // With nothing enqueued: its state is that of `step`, from elsewhere.
  virtual void SetApplied(int32_t home, int64_t step) = 0;
  virtual int64_t applied(int32_t home) const = 0;

  // What the device itself says: OK, or its failure, of the kind DeviceFailed. Never blocks.
  virtual absl::Status Check() = 0;

  // progress() becomes `count` when the device comes by.
  virtual void MarkProgress(int64_t count) = 0;
  virtual int64_t progress() const = 0;
};

std::unique_ptr<StepKernels> MakeCpuStepKernels(int32_t homes);
#ifdef PHALANX_WITH_CUDA
std::unique_ptr<StepKernels> MakeCudaStepKernels(int32_t homes);
#endif

}  // namespace phalanx::train
