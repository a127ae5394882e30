#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <optional>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "worker/model/kernels.h"
#include "worker/model/make_stage.h"
#include "worker/model/slots.h"
#include "worker/model/torch_boundary.h"
#include "worker/model/vocabulary.h"

namespace phalanx::model {
namespace {

struct LanguageState {
  SequenceShape shape;
  EmbeddingState embedding;
  std::vector<LayerState> layers;
  HeadState head;
  WeightWork work;
};

class LanguageStage final : public Stage {
 public:
  explicit LanguageStage(const StageParts& parts);

  absl::StatusOr<StageOutput> Forward(int32_t slot, const StageInput& input) override;
  absl::StatusOr<StageOutput> Evaluate(const StageInput& input) override;
  absl::StatusOr<StageOutput> BackwardInput(
      int32_t slot, const std::vector<at::Tensor>& output_gradient) override;
  absl::Status BackwardWeight(int32_t slot) override;

 private:
  // Embedding, or the stage before, and the layers. `state` may be nullptr.
  absl::Status RunLayers(const StageInput& input, LanguageState* state, SequenceShape* shape,
                         at::Tensor* hidden) const;
  absl::Status Run(const StageInput& input, LanguageState* state, StageOutput* output) const;
  absl::Status RunBackward(const std::vector<at::Tensor>& output_gradient, LanguageState* state,
                           StageOutput* output) const;
  at::Tensor ByRow(const at::Tensor& tensor) const {
    return tensor.reshape({-1, context_.architecture.hidden_size});
  }
  at::Tensor BySequence(const at::Tensor& rows, const SequenceShape& shape) const {
    return rows.view({shape.batch, shape.length, -1});
  }
  at::Tensor WeightsOf(const StageInput& input) const {
    return input.label_weights.reshape({-1}).to(SumType(compute_));
  }
  // A scalar 0: the loss of a microbatch without samples.
  at::Tensor NoLoss() const { return at::zeros({}, context_.cos.options()); }

  const at::ScalarType compute_;
  LayerContext context_;
  std::optional<Embedding> embedding_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::optional<Head> head_;
  Slots<LanguageState> slots_;
};

LanguageStage::LanguageStage(const StageParts& parts) : compute_(parts.options.compute) {
  const job::Architecture& architecture = parts.module.architecture;
  const bool frozen = parts.module.frozen;
  const int64_t head_size = plan::HeadSize(architecture);
  context_.architecture = architecture;
  context_.group = parts.group;
  context_.heads = MakeHeadMap(parts.shard, architecture.heads / plan::KvHeads(architecture),
                               head_size, parts.options.device);
  // In fp64 until the last: angles of late positions need more digits than fp32 has.
  const at::TensorOptions fp64 = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor exponents = at::arange(0, head_size, 2, fp64) / head_size;
  const at::Tensor angles = at::outer(at::arange(architecture.context, fp64),
                                      at::pow(architecture.rope_theta, exponents.neg()));
  const at::TensorOptions sums =
      at::TensorOptions().dtype(SumType(compute_)).device(parts.options.device);
  context_.cos = at::cos(angles).to(sums);
  context_.sin = at::sin(angles).to(sums);

  const VocabularyRows rows = RowsOf(parts.shard, architecture);
  if (parts.table.Has("embedding"))
    embedding_.emplace(parts.group, parts.table.Matrix("embedding", frozen), rows);
  for (int32_t layer = parts.first_layer; layer < parts.end_layer; ++layer) {
    layers_.push_back(MakeDecoderLayer(context_, parts.table, layer, frozen));
  }
  if (parts.table.Has("final_norm")) {
    // A tied head is the embedding itself where both are here, else a copy under the head's name.
    const char* role = parts.table.Has("head") ? "head" : "embedding";
    head_.emplace(parts.group, parts.table.Vector("final_norm", frozen),
                  parts.table.Matrix(role, frozen), rows, architecture.norm_epsilon);
  }
}

absl::Status LanguageStage::RunLayers(const StageInput& input, LanguageState* state,
                                      SequenceShape* shape, at::Tensor* hidden) const {
  const at::Tensor& shaped = embedding_.has_value() ? input.tokens : input.hidden;
  if (!shaped.defined() || shaped.numel() == 0)
    return absl::OkStatus();  // a microbatch without samples
  *shape = {shaped.size(0), shaped.size(1)};
  if (shape->length > context_.architecture.context) {
    return absl::InternalError(absl::StrCat("a sequence of ", shape->length,
                                            " positions; the context has ",
                                            context_.architecture.context));
  }
  if (embedding_.has_value()) {
    RETURN_IF_ERROR(embedding_->Forward(input.tokens.reshape({-1}), input.rows, input.row_positions,
                                        state == nullptr ? nullptr : &state->embedding, hidden));
  } else {
    *hidden = ByRow(input.hidden);
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    at::Tensor output;
    RETURN_IF_ERROR(layers_[i]->Forward(*hidden, *shape,
                                        state == nullptr ? nullptr : &state->layers[i], &output));
    *hidden = std::move(output);
  }
  return absl::OkStatus();
}

absl::Status LanguageStage::Run(const StageInput& input, LanguageState* state,
                                StageOutput* output) const {
  at::Tensor hidden;
  state->layers.resize(layers_.size());
  RETURN_IF_ERROR(RunLayers(input, state, &state->shape, &hidden));
  if (!hidden.defined()) {
    if (head_.has_value()) {
      output->loss_sum = NoLoss();
    } else {
      output->hidden.emplace_back();
    }
    return absl::OkStatus();
  }
  if (head_.has_value()) {
    return head_->Forward(hidden, input.labels.reshape({-1}), WeightsOf(input), &state->head,
                          &output->loss_sum);
  }
  output->hidden.push_back(BySequence(hidden, state->shape));
  return absl::OkStatus();
}

absl::StatusOr<StageOutput> LanguageStage::Forward(int32_t slot, const StageInput& input) {
  StageOutput output;
  RETURN_IF_ERROR(CallTorch("forward of the language module", [&]() -> absl::Status {
    const at::AutoDispatchBelowADInplaceOrView guard;
    LanguageState* state = nullptr;
    RETURN_IF_ERROR(slots_.Open(slot, &state));
    return Run(input, state, &output);
  }));
  return output;
}

absl::StatusOr<StageOutput> LanguageStage::Evaluate(const StageInput& input) {
  StageOutput output;
  RETURN_IF_ERROR(CallTorch("evaluation of the language module", [&]() -> absl::Status {
    const at::AutoDispatchBelowADInplaceOrView guard;
    SequenceShape shape;
    at::Tensor hidden;
    RETURN_IF_ERROR(RunLayers(input, nullptr, &shape, &hidden));
    if (!head_.has_value()) {
      output.hidden.push_back(hidden.defined() ? BySequence(hidden, shape) : hidden);
      return absl::OkStatus();
    }
    if (!hidden.defined()) {
      output.loss_sum = NoLoss();
      return absl::OkStatus();
    }
    const bool scored = input.labels.defined();
    RETURN_IF_ERROR(head_->Evaluate(hidden, scored ? input.labels.reshape({-1}) : at::Tensor(),
                                    scored ? WeightsOf(input) : at::Tensor(), &output.loss_sum,
                                    &output.predicted));
    output.predicted = output.predicted.view({shape.batch, shape.length});
    return absl::OkStatus();
  }));
  return output;
}

absl::Status LanguageStage::RunBackward(const std::vector<at::Tensor>& output_gradient,
                                        LanguageState* state, StageOutput* output) const {
  output->hidden.emplace_back();
  if (state->shape.rows() == 0) return absl::OkStatus();
  at::Tensor gradient;
  if (head_.has_value()) {
    RETURN_IF_ERROR(head_->Backward(&state->head, &state->work, &gradient));
  } else {
    gradient = ByRow(output_gradient.at(0));
  }
  for (size_t i = layers_.size(); i-- > 0;) {
    at::Tensor input_gradient;
    RETURN_IF_ERROR(layers_[i]->BackwardInput(gradient, state->shape, &state->layers[i],
                                              &state->work, &input_gradient));
    gradient = std::move(input_gradient);
  }
  if (embedding_.has_value()) {
    output->rows = embedding_->Backward(gradient, &state->embedding, &state->work);
  } else {
    output->hidden[0] = BySequence(gradient, state->shape);
  }
  return absl::OkStatus();
}

absl::StatusOr<StageOutput> LanguageStage::BackwardInput(
    int32_t slot, const std::vector<at::Tensor>& output_gradient) {
  StageOutput output;
  RETURN_IF_ERROR(CallTorch("backward of the language module", [&]() -> absl::Status {
    const at::AutoDispatchBelowADInplaceOrView guard;
    LanguageState* state = nullptr;
    RETURN_IF_ERROR(slots_.Advance(slot, Slots<LanguageState>::Pass::kForward, &state));
    return RunBackward(output_gradient, state, &output);
  }));
  return output;
}

absl::Status LanguageStage::BackwardWeight(int32_t slot) {
  return CallTorch("weight gradients of the language module", [&]() -> absl::Status {
    const at::AutoDispatchBelowADInplaceOrView guard;
    LanguageState* state = nullptr;
    RETURN_IF_ERROR(slots_.Advance(slot, Slots<LanguageState>::Pass::kBackwardInput, &state));
    state->work.Run();
    slots_.Close(slot);
    return absl::OkStatus();
  });
}

}  // namespace

std::unique_ptr<Stage> MakeLanguageStage(const StageParts& parts) {
  return std::make_unique<LanguageStage>(parts);
}

}  // namespace phalanx::model
