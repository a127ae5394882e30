// worker/model/token_rows.h: which rows of a microbatch are those of text, and which those of
// items.
//
// The host knows it with the batch and says it there. So an embedding writes every row once, from
// where it comes, adds the gradients of rows of text alone, and the device neither clears nor sorts
// anything for that.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace phalanx::model {

// On the device of the embedding. Immutable.
struct TokenRows {
  // [rows] int64: the token of a row, 0 or more; where rows of items stand, -1 - i, if i is the
  // first of them.
  at::Tensor source;
  // [rows of items] int64: the next one that stands at the same position, or -1. Undefined: each
  // stands alone.
  at::Tensor next;
  // [N] int32, ascending: the tokens of rows of text. [N] int64: which rows these are, ascending
  // among equal tokens. Padding is no text.
  at::Tensor tokens, order;

  bool defined() const { return source.defined(); }
};

// The same as lists, `next` empty where it is undefined there.
struct TokenLists {
  std::vector<int64_t> source, next;
  std::vector<int32_t> tokens;
  std::vector<int64_t> order;
};
// `tokens` of each row, kPadding where no token stands: such a row is embedded as token 0. Of rows
// at `positions` [rows of items], what `tokens` says is of no use. A position is a row.
inline constexpr int64_t kPadding = -1;
TokenLists ListTokens(absl::Span<const int64_t> tokens, absl::Span<const int64_t> positions);

// Of int64 tensors on the CPU, `tokens` of any shape, `positions` undefined where there are none;
// on `device`.
TokenRows MakeTokenRows(const at::Tensor& tokens, const at::Tensor& positions = {},
                        at::Device device = at::kCPU);

}  // namespace phalanx::model
