#include <ATen/ATen.h>

#include <optional>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "worker/model/kernels.h"
#include "worker/model/make_stage.h"
#include "worker/model/outgoing.h"
#include "worker/model/patches.h"
#include "worker/model/slotted_stage.h"
#include "worker/model/sounds.h"

namespace phalanx::model {
namespace {

struct EncoderState {
  SequenceShape shape;
  PatchState patches;
  SoundState sounds;
  std::vector<LayerState> layers;
  at::Tensor norm_input;
  LayerNormed norm;
  OutgoingState outgoing;
  WeightWork work;
};

// A part of a vision or audio module. An encoder takes nothing from other modules, so a frozen one
// has no backward pass but that of its projectors.
class EncoderStage final : public SlottedStage<EncoderState> {
 public:
  explicit EncoderStage(const StageParts& parts);

 private:
  absl::Status Run(const StageInput& input, bool evaluate, EncoderState* state,
                   StageOutput* output) const override;
  absl::Status RunBackward(const std::vector<at::Tensor>& output_gradient, EncoderState* state,
                           StageOutput* output) const override;

  // What goes into the layers, or of it what this rank has: [items * rows, hidden].
  at::Tensor RunFirst(const StageInput& input, EncoderState* state) const;
  // What leaves the module, RowsOfItem rows an item, from the last layer's rows: those that are
  // features, normed where the family does so.
  at::Tensor Features(const at::Tensor& hidden, const SequenceShape& shape,
                      EncoderState* state) const;
  at::Tensor FeaturesBackward(const at::Tensor& gradient, EncoderState* state) const;

  bool ReadsImages() const { return job::TraitsOf(context_.architecture).images(); }
  int64_t width() const { return context_.architecture.hidden_size; }
  // Rows of one item in the layers, and of them those at the front that are no features.
  int64_t rows() const { return EncoderRows(context_.architecture); }
  int64_t extra() const { return job::ExtraRowsOfItem(context_.architecture); }

  const bool first_, last_;
  const bool layers_back_;  // whether the layers have a backward pass
  const LayerContext context_;
  std::optional<PatchEmbedding> patches_;
  std::optional<SoundEmbedding> sounds_;
  LayerStack layers_;
  Parameter final_norm_, final_norm_bias_;  // last part, where the family has them
  Outgoing outgoing_;
};

EncoderStage::EncoderStage(const StageParts& parts)
    : SlottedStage(parts.module.name, parts.trains, parts.options),
      first_(parts.first),
      last_(parts.last),
      layers_back_(parts.LayersBack()),
      context_(ContextOf(parts)),
      layers_(parts.options.pace, parts.options.layer_begins) {
  if (first_ && ReadsImages()) patches_.emplace(context_, parts.table);
  if (first_ && !ReadsImages()) sounds_.emplace(context_, parts.table);
  for (int32_t layer = parts.layers.first; layer < parts.layers.first + parts.layers.count;
       ++layer) {
    layers_.Add(MakeEncoderLayer(context_, parts.table, layer));
  }
  if (!last_) return;
  if (parts.table.Has(plan::MatrixRole::kFinalNorm)) {
    final_norm_ = parts.table.Vector(plan::MatrixRole::kFinalNorm);
    final_norm_bias_ = parts.table.Vector(plan::MatrixRole::kFinalNormBias);
  }
  outgoing_ = OutgoingOf(parts);
}

at::Tensor EncoderStage::RunFirst(const StageInput& input, EncoderState* state) const {
  if (patches_.has_value()) {
    return patches_->Forward(input.pixels, state == nullptr ? nullptr : &state->patches);
  }
  if (sounds_.has_value()) {
    return sounds_->Forward(input.sounds, state == nullptr ? nullptr : &state->sounds);
  }
  return input.hidden;
}

at::Tensor EncoderStage::Features(const at::Tensor& hidden, const SequenceShape& shape,
                                  EncoderState* state) const {
  at::Tensor features = hidden;
  if (extra() > 0) {
    // The class token has served the other rows; it is no feature.
    features = hidden.view({shape.batch, shape.length, width()})
                   .narrow(1, extra(), shape.length - extra())
                   .reshape({-1, width()});
  }
  if (!final_norm_.weight.defined()) return features;
  LayerNormed norm = LayerNorm(features, final_norm_.weight, final_norm_bias_.weight,
                               context_.architecture.norm_epsilon);
  at::Tensor normed = std::exchange(norm.y, {});
  if (state != nullptr) {
    state->norm_input = std::move(features);
    state->norm = std::move(norm);
  }
  return normed;
}

at::Tensor EncoderStage::FeaturesBackward(const at::Tensor& gradient, EncoderState* state) const {
  at::Tensor features = gradient;
  if (final_norm_.weight.defined()) {
    NormGradient norm = LayerNormBackward(gradient, std::exchange(state->norm_input, {}),
                                          std::exchange(state->norm, {}), final_norm_.weight,
                                          final_norm_bias_.weight, {});
    state->work.Sum(final_norm_, std::move(norm.weight));
    state->work.Sum(final_norm_bias_, std::move(norm.bias));
    features = std::move(norm.x);
  }
  if (extra() == 0) return features;
  const SequenceShape& shape = state->shape;
  const at::Tensor all = at::empty({shape.batch, shape.length, width()}, features.options());
  all.narrow(1, 0, extra()).zero_();
  all.narrow(1, extra(), shape.length - extra()).copy_(features.view({shape.batch, -1, width()}));
  return all.view({-1, width()});
}

absl::Status EncoderStage::Run(const StageInput& input, bool /*evaluate*/, EncoderState* state,
                               StageOutput* output) const {
  output->hidden.resize(last_ ? outgoing_.size() : 1);
  const SequenceShape shape = {input.batch, rows()};
  if (shape.rows() == 0) return absl::OkStatus();
  EncoderState* const back = layers_back_ ? state : nullptr;
  LayerRows layers = RunFirst(input, back);
  if (first_ && layers.rows.size(0) != shape.rows()) {
    return absl::InternalError(absl::StrCat(shape.batch, " items gave ", layers.rows.size(0),
                                            " rows, not ", shape.length, " each"));
  }
  if (first_) layers.rows = context_.group.Mine(layers.rows);
  RETURN_IF_ERROR(layers_.Forward(shape, back == nullptr ? nullptr : &back->layers, &layers));
  layers.Add();  // class tokens are no features, and what travels is the sum
  at::Tensor hidden = std::move(layers.rows);
  if (state != nullptr) state->shape = shape;
  if (last_) {
    RETURN_IF_ERROR(context_.group.Whole(hidden, shape.rows(), &hidden));
    return outgoing_.Forward(Features(hidden, shape, back), layers_back_,
                             state == nullptr ? nullptr : &state->outgoing, &output->hidden);
  }
  output->hidden[0] = hidden;
  return absl::OkStatus();
}

absl::Status EncoderStage::RunBackward(const std::vector<at::Tensor>& output_gradient,
                                       EncoderState* state, StageOutput* output) const {
  output->hidden.emplace_back();
  if (state->shape.rows() == 0) return absl::OkStatus();
  at::Tensor gradient;
  if (last_) {
    RETURN_IF_ERROR(outgoing_.Backward(output_gradient, layers_back_, &state->outgoing,
                                       &state->work, &gradient));
    if (gradient.defined()) gradient = context_.group.Mine(FeaturesBackward(gradient, state));
  } else if (output_gradient.at(0).defined()) {
    gradient = output_gradient.at(0);
  }
  if (!gradient.defined()) return absl::OkStatus();  // nobody used the features, or all is frozen
  RETURN_IF_ERROR(layers_.BackwardInput(state->shape, &state->layers, &state->work, &gradient));
  if (!first_) {
    output->hidden[0] = gradient;
    return absl::OkStatus();
  }
  Transfer transfer;
  RETURN_IF_ERROR(context_.group.BeginWhole(gradient, state->shape.rows(), &transfer));
  state->work.RunSome(WeightWork::kAll);
  RETURN_IF_ERROR(Await(&transfer, &gradient));
  if (patches_.has_value()) patches_->Backward(gradient, &state->patches, &state->work);
  if (sounds_.has_value()) sounds_->Backward(gradient, &state->sounds, &state->work);
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Stage> MakeEncoderStage(const StageParts& parts) {
  return std::make_unique<EncoderStage>(parts);
}

}  // namespace phalanx::model
