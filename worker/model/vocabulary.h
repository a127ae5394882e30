// worker/model/vocabulary.h: the two ends of a decoder that know tokens: embedding and head.
//
// Both are split by blocks of vocabulary rows. The embedding looks up the rows that are here and
// sums over the tensor ranks; the head multiplies with the rows that are here and exchanges three
// numbers a token row (kernels.h) instead of logits. Padding rows of the last block take part in
// neither.
#pragma once

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "core/plan/units.h"
#include "worker/model/tensor_group.h"
#include "worker/model/token_rows.h"
#include "worker/model/weight_work.h"

namespace phalanx::model {

// Vocabulary rows of a rank, without padding: [first, first + count).
struct VocabularyRows {
  int64_t first = 0, count = 0;
};
VocabularyRows RowsOf(const plan::TensorUnits& units, const job::Architecture& architecture);

struct EmbeddingState {
  TokenRows tokens;
  at::Tensor item_positions;  // undefined: no items
};

// Immutable but for the gradient it adds to.
class Embedding {
 public:
  Embedding(TensorGroup group, Parameter table, VocabularyRows rows)
      : group_(group), table_(std::move(table)), rows_(rows) {}
  // `tokens` know of the `item_positions` [R]: the sum of the `items` [R, hidden] of one of them
  // stands there in place of a token's row. Both may be undefined. `state` may be nullptr.
  // `output`: the rows of this rank.
  absl::Status Forward(const TokenRows& tokens, const at::Tensor& items,
                       const at::Tensor& item_positions, EmbeddingState* state,
                       at::Tensor* output) const;
  // `items_gradient`: undefined without any.
  absl::Status Backward(const at::Tensor& output_gradient, EmbeddingState* state, WeightWork* work,
                        at::Tensor* items_gradient) const;

 private:
  TensorGroup group_;
  Parameter table_;
  VocabularyRows rows_;
};

struct HeadState {
  at::Tensor normed;  // not where the head is frozen
  at::Tensor logits_gradient;
};

// The logits of normed rows and their loss. Immutable but for the gradient it adds to.
class Head {
 public:
  Head(TensorGroup group, const Parameter& table, VocabularyRows rows);
  // Sum of weighted losses, the same on every rank; the gradient of the logits is made at once,
  // since nothing but the weights stands between it and the loss. `state` may be nullptr.
  absl::Status Forward(const at::Tensor& normed, const at::Tensor& labels,
                       const at::Tensor& weights, HeadState* state, at::Tensor* loss_sum) const;
  // The gradient of `normed`.
  absl::Status Backward(HeadState* state, WeightWork* work, at::Tensor* normed_gradient) const;
  // The most probable token of each row, [rows] int64, and the loss where labels are given.
  absl::Status Evaluate(const at::Tensor& normed, const at::Tensor& labels,
                        const at::Tensor& weights, at::Tensor* loss_sum,
                        at::Tensor* predicted) const;

 private:
  // With `gradient`, `logits` become their gradient.
  absl::Status Loss(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& weights,
                    bool gradient, at::Tensor* loss_sum) const;

  TensorGroup group_;
  Parameter table_;  // without padding rows
  VocabularyRows rows_;
};

}  // namespace phalanx::model
