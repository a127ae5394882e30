#include <ATen/ATen.h>

#include <optional>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "worker/model/kernels.h"
#include "worker/model/make_stage.h"
#include "worker/model/outgoing.h"
#include "worker/model/prediction.h"
#include "worker/model/slotted_stage.h"
#include "worker/model/vocabulary.h"

namespace phalanx::model {
namespace {

struct DecoderState {
  SequenceShape shape;
  // First part.
  EmbeddingState embedding;
  at::Tensor row_positions;  // of a regressor
  std::vector<LayerState> layers;
  // Last part.
  at::Tensor norm_input, norm_rstd;
  RowChoice labelled;  // of the rows that left the layers
  HeadState head;
  PredictionState prediction;
  at::Tensor output_positions;
  OutgoingState outgoing;
  WeightWork work;
};

// A part of the language module or of a regressor.
class DecoderStage final : public SlottedStage<DecoderState> {
 public:
  explicit DecoderStage(const StageParts& parts);

  void NewWeights() override { ++context_.weights_version; }

 private:
  absl::Status Run(const StageInput& input, bool evaluate, DecoderState* state,
                   StageOutput* output) const override;
  absl::Status RunBackward(const std::vector<at::Tensor>& output_gradient, DecoderState* state,
                           StageOutput* output) const override;

  absl::Status CheckLength(int64_t length) const;
  // What goes into the layers on this rank: embedded tokens, incoming rows or the stage before.
  absl::Status RunFirst(const StageInput& input, const SequenceShape& shape, DecoderState* state,
                        at::Tensor* hidden) const;
  // The final norm, the loss, and what leaves along the edges, from the rows that left the layers,
  // of which `labelled` are held to labels.
  absl::Status RunLast(const StageInput& input, const RowChoice& labelled, LayerRows hidden,
                       bool evaluate, DecoderState* state, StageOutput* output) const;
  // `normed`: the rows that are held to labels.
  absl::Status RunHead(const StageInput& input, const at::Tensor& normed, bool evaluate,
                       HeadState* state, StageOutput* output) const;
  // The gradient of the last layer's output on this rank, from the loss and the edges.
  absl::Status BackwardLast(const std::vector<at::Tensor>& output_gradient, DecoderState* state,
                            at::Tensor* gradient) const;
  absl::Status BackwardFirst(const at::Tensor& gradient, DecoderState* state,
                             StageOutput* output) const;

  // Whether nothing but the head reads what leaves the layers.
  bool LabelledAloneLeave() const {
    return head_.has_value() && outgoing_.size() == 0 && !layers_.empty();
  }
  // A scalar 0: the loss of a microbatch without samples.
  at::Tensor NoLoss() const { return at::zeros({}, context_.cos.options()); }

  const bool first_, last_, has_loss_;
  const bool layers_back_;  // whether the layers have a backward pass
  const at::ScalarType compute_;
  LayerContext context_;
  std::optional<Embedding> embedding_;  // not in a regressor
  LayerStack layers_;
  // Last part.
  Parameter final_norm_;
  std::optional<Head> head_;
  std::optional<Prediction> prediction_;
  Outgoing outgoing_;
};

// [context, head_size / 2], in fp64 until the last: angles of late positions need more digits than
// fp32 has.
at::Tensor Angles(const job::Architecture& architecture, int64_t head_size) {
  const at::TensorOptions fp64 = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor exponents = at::arange(0, head_size, 2, fp64) / head_size;
  return at::outer(at::arange(architecture.context, fp64),
                   at::pow(architecture.rope_theta, exponents.neg()));
}

DecoderStage::DecoderStage(const StageParts& parts)
    : SlottedStage(parts.module.name, parts.trains, parts.options),
      first_(parts.first),
      last_(parts.last),
      has_loss_(parts.last && parts.has_loss),
      layers_back_(parts.LayersBack()),
      compute_(parts.options.compute),
      context_(ContextOf(parts)),
      layers_(parts.options.pace, parts.options.layer_begins) {
  const job::Architecture& architecture = context_.architecture;
  const at::Tensor angles = Angles(architecture, context_.heads.head_size);
  const at::TensorOptions sums =
      at::TensorOptions().dtype(SumType(compute_)).device(parts.options.device);
  context_.cos = at::cos(angles).to(sums);
  context_.sin = at::sin(angles).to(sums);

  const VocabularyRows rows = RowsOf(parts.units, architecture);
  if (parts.table.Has(plan::MatrixRole::kEmbedding) && first_) {
    embedding_.emplace(context_.group, parts.table.Matrix(plan::MatrixRole::kEmbedding), rows);
  }
  for (int32_t layer = parts.layers.first; layer < parts.layers.first + parts.layers.count;
       ++layer) {
    layers_.Add(MakeDecoderLayer(context_, parts.table, layer));
  }
  if (!last_) return;
  final_norm_ = parts.table.Vector(plan::MatrixRole::kFinalNorm);
  if (has_loss_ && job::TraitsOf(architecture).predicts()) {
    prediction_.emplace(parts.table.Matrix(plan::MatrixRole::kPredict), parts.module.loss_weight);
  } else if (has_loss_) {
    // A tied head is the embedding itself where both are here, else a copy under the head's name.
    const plan::MatrixRole role = parts.table.Has(plan::MatrixRole::kHead)
                                      ? plan::MatrixRole::kHead
                                      : plan::MatrixRole::kEmbedding;
    head_.emplace(parts.group, parts.table.Matrix(role), rows);
  }
  outgoing_ = OutgoingOf(parts);
}

absl::Status DecoderStage::CheckLength(int64_t length) const {
  if (length <= context_.architecture.context) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("a sequence of ", length, " positions; the context has ",
                                          context_.architecture.context));
}

absl::Status DecoderStage::RunFirst(const StageInput& input, const SequenceShape& shape,
                                    DecoderState* state, at::Tensor* hidden) const {
  if (!first_) {
    *hidden = input.hidden;
    return absl::OkStatus();
  }
  if (embedding_.has_value()) {
    return embedding_->Forward(input.tokens, input.rows, input.row_positions,
                               state == nullptr ? nullptr : &state->embedding, hidden);
  }
  const at::Tensor rows = at::zeros({shape.rows(), context_.architecture.hidden_size},
                                    context_.cos.options().dtype(compute_));
  *hidden = context_.group.Mine(rows);
  if (!input.rows.defined() || input.rows.size(0) == 0) return absl::OkStatus();
  ScatterRows(rows, input.row_positions, input.rows);
  if (state != nullptr) state->row_positions = input.row_positions;
  return absl::OkStatus();
}

absl::Status DecoderStage::RunHead(const StageInput& input, const at::Tensor& normed, bool evaluate,
                                   HeadState* state, StageOutput* output) const {
  const bool scored = input.labels.defined();
  const at::Tensor labels = scored ? input.labels.reshape({-1}) : at::Tensor();
  const at::Tensor weights =
      scored ? input.label_weights.reshape({-1}).to(SumType(compute_)) : at::Tensor();
  if (!evaluate) return head_->Forward(normed, labels, weights, state, &output->loss_sum);
  return head_->Evaluate(normed, labels, weights, &output->loss_sum, &output->predicted);
}

absl::Status DecoderStage::RunLast(const StageInput& input, const RowChoice& labelled,
                                   LayerRows hidden, bool evaluate, DecoderState* state,
                                   StageOutput* output) const {
  RmsNormed normed = RmsNormOf(final_norm_.weight, context_.architecture.norm_epsilon, &hidden);
  DecoderState* const back = layers_back_ ? state : nullptr;
  if (head_.has_value()) {
    if (back != nullptr) back->labelled = labelled;
    RETURN_IF_ERROR(RunHead(input, labelled.Take(normed.y), evaluate,
                            back == nullptr ? nullptr : &back->head, output));
  }
  if (prediction_.has_value() && (input.targets.defined() || !evaluate)) {
    const bool scored = input.targets.defined() && input.targets.size(0) > 0;
    PredictionState* const kept = back == nullptr ? nullptr : &back->prediction;
    output->loss_sum = scored
                           ? prediction_->Forward(normed.y, input.targets, input.target_positions,
                                                  input.target_weights, kept)
                           : NoLoss();
  }
  if (input.output_positions.defined() && outgoing_.size() > 0) {
    const at::Tensor features = normed.y.index_select(0, input.output_positions);
    if (back != nullptr) back->output_positions = input.output_positions;
    RETURN_IF_ERROR(outgoing_.Forward(
        features, layers_back_, state == nullptr ? nullptr : &state->outgoing, &output->hidden));
  }
  if (back == nullptr) return absl::OkStatus();
  back->norm_input = std::move(hidden.rows);
  back->norm_rstd = std::move(normed.rstd);
  return absl::OkStatus();
}

absl::Status DecoderStage::Run(const StageInput& input, bool evaluate, DecoderState* state,
                               StageOutput* output) const {
  output->hidden.resize(last_ ? outgoing_.size() : 1);
  SequenceShape shape = {input.batch, input.length};
  if (LabelledAloneLeave()) shape.leaving = input.labelled;
  RETURN_IF_ERROR(CheckLength(shape.length));
  if (shape.rows() == 0) {
    if (has_loss_) output->loss_sum = NoLoss();
    return absl::OkStatus();
  }
  DecoderState* const back = layers_back_ ? state : nullptr;
  LayerRows hidden;
  RETURN_IF_ERROR(RunFirst(input, shape, back, &hidden.rows));
  RETURN_IF_ERROR(layers_.Forward(shape, back == nullptr ? nullptr : &back->layers, &hidden));
  if (state != nullptr) state->shape = shape;
  // What travels is the sum.
  if (!last_ || context_.group.slices()) hidden.Add();
  if (!last_) {
    output->hidden[0] = std::move(hidden.rows);
    return absl::OkStatus();
  }
  if (context_.group.slices()) {
    const at::Tensor mine = std::move(hidden.rows);
    RETURN_IF_ERROR(context_.group.Whole(mine, shape.leaving_rows(), &hidden.rows));
  }
  return RunLast(input, LabelledAloneLeave() ? RowChoice() : input.labelled, std::move(hidden),
                 evaluate, state, output);
}

absl::Status DecoderStage::BackwardLast(const std::vector<at::Tensor>& output_gradient,
                                        DecoderState* state, at::Tensor* gradient) const {
  at::Tensor features, normed;
  RETURN_IF_ERROR(
      outgoing_.Backward(output_gradient, layers_back_, &state->outgoing, &state->work, &features));
  if (!layers_back_) return absl::OkStatus();
  if (head_.has_value()) {
    RETURN_IF_ERROR(head_->Backward(&state->head, &state->work, &normed));
    normed = state->labelled.PutBack(normed);
  } else {
    normed = at::zeros_like(state->norm_input);
  }
  if (prediction_.has_value()) prediction_->Backward(&state->prediction, &state->work, normed);
  if (features.defined()) ScatterRows(normed, state->output_positions, features);
  NormGradient norm = RmsNormBackward(normed, std::exchange(state->norm_input, {}),
                                      state->norm_rstd, final_norm_.weight, {});
  state->work.Sum(final_norm_, std::move(norm.weight));
  *gradient = context_.group.Mine(norm.x);
  return absl::OkStatus();
}

absl::Status DecoderStage::BackwardFirst(const at::Tensor& gradient, DecoderState* state,
                                         StageOutput* output) const {
  at::Tensor rows;
  if (embedding_.has_value()) {
    RETURN_IF_ERROR(embedding_->Backward(gradient, &state->embedding, &state->work, &rows));
    if (trains_.inputs) output->rows = std::move(rows);
  } else if (trains_.inputs && state->row_positions.defined()) {
    RETURN_IF_ERROR(context_.group.Whole(gradient, state->shape.rows(), &rows));
    output->rows = rows.index_select(0, state->row_positions);
  }
  return absl::OkStatus();
}

absl::Status DecoderStage::RunBackward(const std::vector<at::Tensor>& output_gradient,
                                       DecoderState* state, StageOutput* output) const {
  output->hidden.emplace_back();
  if (state->shape.rows() == 0) return absl::OkStatus();
  at::Tensor gradient;
  if (last_) {
    RETURN_IF_ERROR(BackwardLast(output_gradient, state, &gradient));
  } else {
    gradient = output_gradient.at(0);
  }
  if (!layers_back_) return absl::OkStatus();
  RETURN_IF_ERROR(layers_.BackwardInput(state->shape, &state->layers, &state->work, &gradient));
  if (first_) return BackwardFirst(gradient, state, output);
  if (trains_.inputs) output->hidden[0] = gradient;
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Stage> MakeDecoderStage(const StageParts& parts) {
  return std::make_unique<DecoderStage>(parts);
}

}  // namespace phalanx::model
