// worker/train/step_kernels_args.h: what host and device share in the CUDA kernels of a step.
#pragma once

#include <cstdint>

#include "worker/train/commit.h"

namespace phalanx::train {

struct AdamWFactors {
  float beta1, rest1, beta2, rest2, correction1, correction2, rate, epsilon, weight_decay;
};

// Runs of a block as a launch takes them, by value: a run's elements are cut into tiles, the first
// of which has number first_tile in the launch.
struct RunTiles {
  int64_t gradient_offset, state_offset, count;
  int32_t first_tile;
  bool decay;
};
inline constexpr int32_t kRunsAtOnce = 100;  // parameters of a launch have 4 KiB
inline constexpr int64_t kTile = 2048;
struct RunTable {
  int32_t runs = 0, tiles = 0;
  RunTiles run[kRunsAtOnce];
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
