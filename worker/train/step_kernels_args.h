// worker/train/step_kernels_args.h: what host and device share in the CUDA kernels of a step.
#pragma once

#include <cstdint>

#include "worker/train/commit.h"

namespace phalanx::train {

struct AdamWFactors {
  float beta1, rest1, beta2, rest2, correction1, correction2, rate, epsilon, weight_decay;
};

// Two of these alternate in pinned memory: the host polls ready_step.
struct PublishedDecision {
  Decision decision;
  int64_t ready_step;
};

}  // namespace phalanx::train
