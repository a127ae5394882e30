#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <optional>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "worker/model/make_stage.h"
#include "worker/model/patches.h"
#include "worker/model/projector.h"
#include "worker/model/slots.h"
#include "worker/model/torch_boundary.h"

namespace phalanx::model {
namespace {

struct VisionState {
  SequenceShape shape;
  PatchState patches;
  std::vector<LayerState> layers;
  std::vector<ProjectorState> projectors;
  WeightWork work;
};

class VisionStage final : public Stage {
 public:
  explicit VisionStage(const StageParts& parts);

  absl::StatusOr<StageOutput> Forward(int32_t slot, const StageInput& input) override;
  absl::StatusOr<StageOutput> Evaluate(const StageInput& input) override;
  absl::StatusOr<StageOutput> BackwardInput(
      int32_t slot, const std::vector<at::Tensor>& output_gradient) override;
  absl::Status BackwardWeight(int32_t slot) override;

 private:
  // `keep`: whether `state` is to hold what the backward passes need.
  absl::Status Run(const StageInput& input, bool keep, VisionState* state,
                   StageOutput* output) const;
  absl::Status RunBackward(const std::vector<at::Tensor>& output_gradient, VisionState* state,
                           StageOutput* output) const;
  // The gradient of the last layer's rows from those of all edges.
  absl::Status BackwardEdges(const std::vector<at::Tensor>& output_gradient, VisionState* state,
                             at::Tensor* gradient) const;

  LayerContext context_;
  std::optional<PatchEmbedding> patches_;
  std::vector<std::unique_ptr<Layer>> layers_;
  bool last_ = false;
  // One an outgoing edge; empty: the features go out as they are.
  std::vector<std::optional<Projector>> edges_;
  Slots<VisionState> slots_;
};

VisionStage::VisionStage(const StageParts& parts) {
  const job::Architecture& architecture = parts.module.architecture;
  const bool frozen = parts.module.frozen;
  const int64_t head_size = plan::HeadSize(architecture);
  context_.architecture = architecture;
  context_.group = parts.group;
  context_.heads = MakeHeadMap(parts.shard, 1, head_size, parts.options.device);
  if (parts.table.Has("patch")) patches_.emplace(context_, parts.table, frozen);
  for (int32_t layer = parts.first_layer; layer < parts.end_layer; ++layer) {
    layers_.push_back(MakeEncoderLayer(context_, parts.table, layer, frozen));
  }
  last_ = parts.end_layer == architecture.layers;
  for (const OutgoingEdge& edge : parts.edges) {
    edges_.emplace_back();
    if (edge.projector) edges_.back().emplace(parts.group, parts.table, edge.index, edge.frozen);
  }
}

absl::Status VisionStage::Run(const StageInput& input, bool keep, VisionState* state,
                              StageOutput* output) const {
  const at::Tensor& given = patches_.has_value() ? input.pixels : input.hidden;
  output->hidden.resize(last_ ? edges_.size() : 1);
  if (!given.defined() || given.numel() == 0)
    return absl::OkStatus();  // no items in this microbatch
  const int64_t rows = EncoderRows(context_.architecture),
                width = context_.architecture.hidden_size;
  const SequenceShape shape = {given.size(0), rows};
  state->shape = shape;
  state->layers.resize(layers_.size());
  at::Tensor hidden = patches_.has_value()
                          ? patches_->Forward(given, keep ? &state->patches : nullptr)
                          : given.reshape({shape.rows(), width});
  for (size_t i = 0; i < layers_.size(); ++i) {
    at::Tensor next;
    RETURN_IF_ERROR(layers_[i]->Forward(hidden, shape, keep ? &state->layers[i] : nullptr, &next));
    hidden = std::move(next);
  }
  hidden = hidden.view({shape.batch, rows, width});
  if (!last_) {
    output->hidden[0] = std::move(hidden);
    return absl::OkStatus();
  }
  // The class token has served the other rows; it is no feature.
  const at::Tensor features = hidden.narrow(1, 1, rows - 1).reshape({-1, width});
  state->projectors.resize(edges_.size());
  for (size_t i = 0; i < edges_.size(); ++i) {
    if (edges_[i].has_value()) {
      RETURN_IF_ERROR(
          edges_[i]->Forward(features, keep ? &state->projectors[i] : nullptr, &output->hidden[i]));
    } else {
      output->hidden[i] = features;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<StageOutput> VisionStage::Forward(int32_t slot, const StageInput& input) {
  StageOutput output;
  RETURN_IF_ERROR(CallTorch("forward of a vision module", [&]() -> absl::Status {
    const at::AutoDispatchBelowADInplaceOrView guard;
    VisionState* state = nullptr;
    RETURN_IF_ERROR(slots_.Open(slot, &state));
    return Run(input, /*keep=*/true, state, &output);
  }));
  return output;
}

absl::StatusOr<StageOutput> VisionStage::Evaluate(const StageInput& input) {
  StageOutput output;
  RETURN_IF_ERROR(CallTorch("evaluation of a vision module", [&]() -> absl::Status {
    const at::AutoDispatchBelowADInplaceOrView guard;
    VisionState scratch;
    return Run(input, /*keep=*/false, &scratch, &output);
  }));
  return output;
}

absl::Status VisionStage::BackwardEdges(const std::vector<at::Tensor>& output_gradient,
                                        VisionState* state, at::Tensor* gradient) const {
  const int64_t rows = state->shape.length, width = context_.architecture.hidden_size;
  at::Tensor sum;
  for (size_t i = 0; i < edges_.size(); ++i) {
    at::Tensor part = output_gradient.at(i);
    if (!part.defined()) continue;  // nobody at the far end used these features
    if (edges_[i].has_value()) {
      at::Tensor through;
      RETURN_IF_ERROR(
          edges_[i]->BackwardInput(part, &state->projectors[i], &state->work, &through));
      part = std::move(through);
    }
    sum = sum.defined() ? sum.add(part) : part;
  }
  if (!sum.defined()) return absl::OkStatus();
  *gradient = at::zeros({state->shape.batch, rows, width}, sum.options());
  gradient->narrow(1, 1, rows - 1).copy_(sum.view({state->shape.batch, rows - 1, width}));
  *gradient = gradient->view({-1, width});
  return absl::OkStatus();
}

absl::Status VisionStage::RunBackward(const std::vector<at::Tensor>& output_gradient,
                                      VisionState* state, StageOutput* output) const {
  output->hidden.emplace_back();
  if (state->shape.rows() == 0) return absl::OkStatus();
  at::Tensor gradient;
  if (last_) {
    RETURN_IF_ERROR(BackwardEdges(output_gradient, state, &gradient));
    if (!gradient.defined()) return absl::OkStatus();
  } else {
    gradient = output_gradient.at(0).reshape({-1, context_.architecture.hidden_size});
  }
  for (size_t i = layers_.size(); i-- > 0;) {
    at::Tensor input_gradient;
    RETURN_IF_ERROR(layers_[i]->BackwardInput(gradient, state->shape, &state->layers[i],
                                              &state->work, &input_gradient));
    gradient = std::move(input_gradient);
  }
  if (patches_.has_value()) {
    patches_->Backward(gradient, &state->patches, &state->work);
  } else {
    output->hidden[0] = gradient.view({state->shape.batch, state->shape.length, -1});
  }
  return absl::OkStatus();
}

absl::StatusOr<StageOutput> VisionStage::BackwardInput(
    int32_t slot, const std::vector<at::Tensor>& output_gradient) {
  StageOutput output;
  RETURN_IF_ERROR(CallTorch("backward of a vision module", [&]() -> absl::Status {
    const at::AutoDispatchBelowADInplaceOrView guard;
    VisionState* state = nullptr;
    RETURN_IF_ERROR(slots_.Advance(slot, Slots<VisionState>::Pass::kForward, &state));
    return RunBackward(output_gradient, state, &output);
  }));
  return output;
}

absl::Status VisionStage::BackwardWeight(int32_t slot) {
  return CallTorch("weight gradients of a vision module", [&]() -> absl::Status {
    const at::AutoDispatchBelowADInplaceOrView guard;
    VisionState* state = nullptr;
    RETURN_IF_ERROR(slots_.Advance(slot, Slots<VisionState>::Pass::kBackwardInput, &state));
    state->work.Run();
    slots_.Close(slot);
    return absl::OkStatus();
  });
}

}  // namespace

std::unique_ptr<Stage> MakeVisionStage(const StageParts& parts) {
  return std::make_unique<VisionStage>(parts);
}

}  // namespace phalanx::model
