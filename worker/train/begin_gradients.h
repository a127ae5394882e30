// worker/train/begin_gradients.h: the gradients of a step before its first backward pass.
#pragma once

#include "worker/train/part_state.h"

namespace phalanx::train {

// As if all were zeros; but matrices are only marked (worker/model/unwritten.h): they are nearly
// all of the memory, and most are written by a product. Whoever reads gradients clears what is left
// of the marks first.
void BeginGradients(PartState& part);

}  // namespace phalanx::train
