// worker/train/training_state.h: what a rank has learned: parameters, gradients and optimizer state
// of all its pipeline parts.
//
// It belongs to the rank process and outlives epochs, which borrow it. What is bound to one epoch
// (communicators, program, messages, activations) is the executor's.
//
// Not thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "core/base/ids.h"
#include "core/plan/plan.h"
#include "worker/train/part_state.h"

namespace phalanx::train {

class TrainingState {
 public:
  // Holds initial values.
  TrainingState(const plan::Plan& plan, Rank rank, const BufferOptions& options);

  const BufferOptions& options() const { return options_; }
  // By place in the order of the plan, then by chunk.
  const std::vector<std::unique_ptr<PartState>>& parts() const { return parts_; }

 private:
  const BufferOptions options_;
  std::vector<std::unique_ptr<PartState>> parts_;
};

}  // namespace phalanx::train
