// worker/model/unwritten.h: gradients that hold nothing yet, of which the first product is written
// instead of added.
//
// A step's gradients begin as zeros. What a product will write need not be cleared for that: it is
// marked here, and the first work on it (weight_work.h) writes it, or clears it where it can but
// add. Nobody else may read what is marked; ClearUnwritten() comes first. Marks are of a thread,
// and keep the memory that they are about.
#pragma once

#include <ATen/core/Tensor.h>

namespace phalanx::model {

// `gradient` is contiguous and overlaps nothing that is marked.
void MarkUnwritten(const at::Tensor& gradient);

// Before something is added to `gradient`; with `may_write`, whether it is to be written whole
// instead. Clears all else that is marked and overlaps it, and takes the marks away.
bool TakeUnwritten(const at::Tensor& gradient, bool may_write);

// Clears what is marked within `buffer`, which is contiguous, or of everything, and takes those
// marks away.
void ClearUnwritten(const at::Tensor& buffer);
void ClearUnwritten();

// Takes all marks away: what they are about is thrown away.
void ForgetUnwritten();

}  // namespace phalanx::model
