// worker/train/part_state.h: parameters, gradients and optimizer state of one pipeline part on one
// rank.
//
// Weights and gradients are flat buffers laid out by plan::ParametersOf. Each share of a bucket has
// one primary home (plan/reduction.h; as ZeRO-1 has it), which updates its weights, as far as it
// leads them (plan/copies.h); it and the share's mirrors keep optimizer state for it, and mirrors
// may update the weights, too (Executor::UpdateEverywhere). What does not train has neither
// optimizer state nor gradients: these are of the front of the flat buffer.
//
// Nothing here is bound to an epoch: who reduces and gathers these buffers is part_reduction.h.
//
// Not thread-safe.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/plan/parameters.h"
#include "core/plan/plan.h"
#include "core/plan/reduction.h"
#include "worker/comm/communicator.h"
#include "worker/train/message_stream.h"
#include "worker/train/run_ahead.h"
#include "worker/train/state_block.h"

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
  // Memory for all of it, zeros.
  PartState(const plan::Plan& plan, const plan::Place& place, int32_t chunk,
            const BufferOptions& options);
  // Without memory: neither flat buffers nor the blocks' tensors.
  static std::unique_ptr<PartState> Outline(const plan::Plan& plan, const plan::Place& place,
                                            int32_t chunk, const BufferOptions& options);

  // Weights and masters are the plan's initial values, which every layout has alike.
  void Initialise(const plan::Plan& plan, int32_t threads);

  const plan::Place& place() const { return place_; }
  int32_t chunk() const { return chunk_; }
  const plan::StageParameters& parameters() const { return parameters_; }
  at::Tensor& weights() { return weights_; }
  // [trained_extent]; undefined where nothing trains
  at::Tensor& gradients() { return gradients_; }
  // What the rank is the primary home of first, then mirrors by the primary's position in the data
  // group; of each home by bucket. Empty where nothing trains.
  std::vector<StateBlock>& blocks() { return blocks_; }
  bool trains() const { return parameters_.trained_extent > 0; }
  // Whether the weights are the master copy of what the rank is the primary home of.
  bool weights_are_masters() const { return options_.compute == GradientType(options_.compute); }

  // Of an outline: zeros, where there is none yet.
  void AllocateWeights();
  void AllocateGradients();
  void Allocate(StateBlock& block) const;

  // The moment at which an epoch began with all of it (TrainingState::GoOn).
  void SetBegun(const Moment& moment) {
    begun_ = moment;
    updated_.assign(parameters_.buckets.size(), moment);
  }
  Moment begun() const { return begun_; }
  // That at which all that the rank updates of a bucket's weights was updated last, with the state
  // of its own shares.
  void set_updated(int32_t bucket, Moment moment) {
    updated_.resize(std::max(updated_.size(), static_cast<size_t>(bucket) + 1));
    updated_[static_cast<size_t>(bucket)] = std::move(moment);
  }
  Moment updated(size_t bucket) const {
    return bucket < updated_.size() ? updated_[bucket] : Moment();
  }

  void ZeroGradients() {
    if (gradients_.defined()) gradients_.zero_();
  }

  // The weights of this rank's shares become what their masters say. Copies elsewhere are not
  // touched.
  void Recast();

 private:
  struct WithoutMemory {};
  PartState(WithoutMemory, const plan::Plan& plan, const plan::Place& place, int32_t chunk,
            const BufferOptions& options);
  void OutlineBlocks(const plan::Reduction& reduction);

  BufferOptions options_;
  plan::Place place_;
  int32_t chunk_;
  plan::StageParameters parameters_;
  at::Tensor weights_;
  at::Tensor gradients_;
  std::vector<StateBlock> blocks_;
  Moment begun_;
  std::vector<Moment> updated_;  // by bucket
};

}  // namespace phalanx::train
