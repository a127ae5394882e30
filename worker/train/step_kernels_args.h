// worker/train/step_kernels_args.h: what host and device share in the CUDA kernels of a step.
#pragma once

#include <cstdint>

#include "worker/train/commit.h"

namespace phalanx::train {

struct AdamWFactors {
  float beta1, rest1, beta2, rest2, correction1, correction2, rate, epsilon, weight_decay;
};

// Pinned memory that the host reads while the device runs. The host polls ready_step, which is
// written last.
struct PublishedDecision {
  Decision decision;
  int64_t ready_step;
};
struct CommitWords {
  int64_t stop;  // written by the host alone
  int64_t progress;
  PublishedDecision decisions[2];
};

}  // namespace phalanx::train
