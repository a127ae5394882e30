#include "worker/model/vocabulary.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "core/base/status.h"
#include "worker/model/kernels.h"
#include "worker/model/layer.h"

namespace phalanx::model {
VocabularyRows RowsOf(const plan::TensorUnits& units, const job::Architecture& architecture) {
  const int64_t first = units.vocabulary_blocks.first * architecture.block;
  const int64_t end =
      std::min(units.vocabulary_blocks.end() * architecture.block, architecture.vocabulary);
  return {first, end - first};
}

absl::Status Embedding::Forward(const TokenRows& tokens, const at::Tensor& items,
                                const at::Tensor& item_positions, EmbeddingState* state,
                                at::Tensor* output) const {
  const bool any = items.defined() && items.size(0) > 0;
  // Every rank has all items: one of them adds them to the sum.
  *output = EmbedRows(table_.weight, rows_.first, tokens,
                      any && group_.rank() == 0 ? items : at::Tensor(), item_positions);
  if (state != nullptr) *state = {tokens, any ? item_positions : at::Tensor()};
  return group_.Sum(output);
}

absl::Status Embedding::Backward(const at::Tensor& output_gradient, EmbeddingState* state,
                                 WeightWork* work, at::Tensor* items_gradient) const {
  EmbeddingState s = std::exchange(*state, {});
  Transfer transfer;
  at::Tensor gradient;
  RETURN_IF_ERROR(group_.BeginWhole(output_gradient, s.tokens.source.size(0), &transfer));
  work->RunSome(WeightWork::kAll);
  RETURN_IF_ERROR(Await(&transfer, &gradient));
  gradient = gradient.contiguous();
  if (s.item_positions.defined()) *items_gradient = TakeRows(gradient, s.item_positions, {});
  work->Rows(table_, rows_.first, s.tokens, std::move(gradient));
  return absl::OkStatus();
}

Head::Head(TensorGroup group, const Parameter& table, VocabularyRows rows)
    : group_(group), table_(NarrowRows(table, 0, rows.count)), rows_(rows) {}

absl::Status Head::Loss(const at::Tensor& logits, const at::Tensor& labels,
                        const at::Tensor& weights, bool gradient, at::Tensor* loss_sum) const {
  if (group_.width() == 1) {
    *loss_sum = WholeCrossEntropy(logits, labels, weights, gradient);
    return absl::OkStatus();
  }
  at::Tensor gathered;
  RETURN_IF_ERROR(
      group_.AllGather(SoftmaxStatistics(logits, labels, weights, rows_.first), &gathered));
  *loss_sum = CrossEntropy(logits, gathered, labels, weights, rows_.first, gradient);
  return absl::OkStatus();
}

absl::Status Head::Forward(const at::Tensor& normed, const at::Tensor& labels,
                           const at::Tensor& weights, HeadState* state,
                           at::Tensor* loss_sum) const {
  at::Tensor logits = Linear(normed, table_);
  RETURN_IF_ERROR(Loss(logits, labels, weights, state != nullptr, loss_sum));
  if (state == nullptr) return absl::OkStatus();
  state->logits_gradient = std::move(logits);
  if (table_.gradient.defined()) state->normed = normed;
  return absl::OkStatus();
}

absl::Status Head::Backward(HeadState* state, WeightWork* work, at::Tensor* normed_gradient) const {
  HeadState s = std::exchange(*state, {});
  Transfer transfer;
  RETURN_IF_ERROR(group_.BeginSum(LinearInputGradient(s.logits_gradient, table_), &transfer));
  work->Matrix(table_, std::move(s.logits_gradient), std::move(s.normed));
  work->RunSome(WeightWork::kAll);
  return Await(&transfer, normed_gradient);
}

absl::Status Head::Evaluate(const at::Tensor& normed, const at::Tensor& labels,
                            const at::Tensor& weights, at::Tensor* loss_sum,
                            at::Tensor* predicted) const {
  const at::Tensor logits = Linear(normed, table_);
  // Two numbers a row and rank: its largest logit and the token it belongs to, in fp64, which holds
  // any token exactly. Of equal logits the lowest token wins, as it would without ranks.
  const auto [largest, token] = logits.max(1);
  const at::Tensor best =
      at::stack({largest.to(at::kDouble), (token + rows_.first).to(at::kDouble)}, 1);
  at::Tensor gathered;
  RETURN_IF_ERROR(group_.AllGather(best, &gathered));
  const at::Tensor rank = gathered.select(2, 0).argmax(0, /*keepdim=*/true);
  *predicted = gathered.select(2, 1).gather(0, rank).squeeze(0).to(at::kLong);
  if (!labels.defined()) return absl::OkStatus();
  return Loss(logits, labels, weights, /*gradient=*/false, loss_sum);
}

}  // namespace phalanx::model
