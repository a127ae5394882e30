// worker/train/learning_rate.h: the learning rate of a step, a pure function.
#pragma once

#include <cstdint>

#include "core/job/job_spec.h"

namespace phalanx::train {

// Steps count from 1. Linear warm-up from 0 over warmup_steps, then decay to minimum_learning_rate
// at the last of `steps`.
double LearningRate(const job::Optimizer& optimizer, int64_t step, int64_t steps);

}  // namespace phalanx::train
