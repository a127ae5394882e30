// worker/train/part_state.h: parameters, gradients and optimizer state of one pipeline part on one
// rank.
//
// Weights and gradients are flat buffers laid out by plan::ParametersOf. Each share of a bucket has
// one home (plan/reduction.h; as ZeRO-1 has it): it alone keeps optimizer state for it and updates
// it, as far as it leads (plan/copies.h). What does not train has neither optimizer state nor
// gradients: these are of the front of the flat buffer.
//
// Nothing here is bound to an epoch: who reduces and gathers these buffers is part_reduction.h.
//
// Not thread-safe.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/plan/parameters.h"
#include "core/plan/plan.h"
#include "core/plan/reduction.h"
#include "worker/comm/communicator.h"
#include "worker/train/run_ahead.h"
#include "worker/train/step_kernels.h"

namespace phalanx::train {

comm::DType CommDType(at::ScalarType type);
// max(fp32, compute).
at::ScalarType GradientType(at::ScalarType compute);
at::ScalarType ComputeType(job::Precision precision);

struct BufferOptions {
  at::Device device = at::kCPU;
  at::ScalarType compute = at::kFloat;
  int32_t init_threads = 1;
  double run_ahead = RunAhead::kSecondsMax;  // seconds of the device's work, at most
};

class PartState {
 public:
  // Holds initial values.
  PartState(const plan::Plan& plan, const plan::Place& place, int32_t chunk,
            const BufferOptions& options);

  const plan::Place& place() const { return place_; }
  int32_t chunk() const { return chunk_; }
  const plan::StageParameters& parameters() const { return parameters_; }
  at::Tensor& weights() { return weights_; }
  // [trained_extent]; undefined where nothing trains
  at::Tensor& gradients() { return gradients_; }
  OptimizerState& optimizer() { return optimizer_; }
  bool trains() const { return gradients_.defined(); }

  void ZeroGradients() {
    if (gradients_.defined()) gradients_.zero_();
  }

  // The weights of this rank's shares become what their masters say. Copies elsewhere are not
  // touched.
  void Recast();

 private:
  void BuildOptimizerState(const plan::Reduction& reduction, at::ScalarType compute);

  plan::Place place_;
  int32_t chunk_;
  plan::StageParameters parameters_;
  at::Tensor weights_;
  at::Tensor gradients_;
  OptimizerState optimizer_;
};

}  // namespace phalanx::train
