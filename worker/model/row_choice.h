// worker/model/row_choice.h: some rows of a microbatch: those that are held to labels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace phalanx::model {

// Of `all` rows of a microbatch, R are chosen; by default all of them. On the device of what they
// are chosen from. Immutable.
struct RowChoice {
  // [R] int64, ascending, R at least 1. Any may stand there again, right behind itself, to fill up
  // to a size that kernels like: what such a row becomes has no effect, so it is held to nothing.
  at::Tensor rows;
  at::Tensor place;   // [all] int64: where in `rows` each row stands first; 0 if it does not
  at::Tensor chosen;  // [all] bool

  bool all() const { return !rows.defined(); }
  // R.
  int64_t CountOf(int64_t all_rows) const { return all() ? all_rows : rows.size(0); }

  // The chosen of all rows: [R, features]. All of them: what is given.
  at::Tensor Take(const at::Tensor& from) const;
  // The same where only the rows [first, first + part.size(0)) of all are here: zeros for others.
  // `part` is not empty, and not all rows are chosen.
  at::Tensor TakeFromPart(const at::Tensor& part, int64_t first) const;
  // What Take has taken, back in its place, with zeros for rows that are not chosen.
  at::Tensor PutBack(const at::Tensor& taken) const;
};

}  // namespace phalanx::model
