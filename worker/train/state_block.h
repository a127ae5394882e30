// worker/train/state_block.h: optimizer state of one bucket of a pipeline part on one rank, by the
// home of whose shares it is.
//
// Of each bucket a rank keeps one block of what it is the primary home of, and one of each primary
// whose shares it mirrors (core/plan/reduction.h). Both get the same gradients, to the bit, and run
// the same update, so they stay equal. No element changes its bucket under another layout with the
// same stages, so state moves a bucket at a time.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/base/ids.h"
#include "core/plan/units.h"

namespace phalanx::train {

// Elements [gradient_offset, gradient_offset + count) of the flat buffers, whose state stands at
// [state_offset, ...) of the block's tensors.
struct StateRun {
  int64_t gradient_offset = 0;
  int64_t state_offset = 0;
  int64_t count = 0;
  bool decay = false;  // weight decay applies
};

struct StateBlock {
  Rank primary;          // whose shares they are
  bool mirrors = false;  // somebody else's
  int32_t bucket = 0;
  int32_t home = 0;  // blocks of one part and primary are one home: its number in the process
  std::vector<StateRun> runs;
  int64_t elements = 0;
  // [elements]. Undefined: the weights themselves are the master copy. A mirror has one always, for
  // its weights come from the primary, or are made from it (Executor::UpdateEverywhere).
  at::Tensor master;
  at::Tensor first_moment, second_moment;  // [elements]
  // Of a mirror: elements of these tensors whose state has not come yet (mirror_fill.h); ascending,
  // without neighbours.
  std::vector<plan::UnitRange> lacking;
};

}  // namespace phalanx::train
