#include "worker/model/patches.h"

#include <ATen/ATen.h>

#include <utility>

namespace phalanx::model {
namespace {

// [items * patches, 3 * patch * patch], features in the order of the convolution's weight.
at::Tensor UnfoldPatches(const at::Tensor& pixels, int64_t patch) {
  const int64_t items = pixels.size(0), side = pixels.size(2) / patch;
  return pixels.reshape({items, 3, side, patch, side, patch})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({items * side * side, 3 * patch * patch});
}

}  // namespace

int64_t EncoderRows(const job::Architecture& architecture) {
  return job::RowsOfItem(architecture) + job::ExtraRowsOfItem(architecture);
}

PatchEmbedding::PatchEmbedding(const LayerContext& context, const ParameterTable& table)
    : context_(context),
      class_token_(table.Has(plan::MatrixRole::kClass)),
      pre_norm_(table.Has(plan::MatrixRole::kPreNorm)),
      patch_(table.Matrix(plan::MatrixRole::kPatch)),
      position_(table.Matrix(plan::MatrixRole::kPosition)) {
  if (table.Has(plan::MatrixRole::kPatchBias))
    patch_bias_ = table.Vector(plan::MatrixRole::kPatchBias);
  if (class_token_) class_ = table.Vector(plan::MatrixRole::kClass);
  if (!pre_norm_) return;
  norm_ = table.Vector(plan::MatrixRole::kPreNorm);
  norm_bias_ = table.Vector(plan::MatrixRole::kPreNormBias);
}

at::Tensor PatchEmbedding::Forward(const at::Tensor& pixels, PatchState* state) const {
  const int64_t items = pixels.size(0), rows = EncoderRows(context_.architecture);
  const int64_t hidden = context_.architecture.hidden_size;
  at::Tensor patches = UnfoldPatches(pixels, context_.architecture.patch_size);
  at::Tensor embedded =
      patch_bias_.weight.defined() ? Linear(patches, patch_, patch_bias_) : Linear(patches, patch_);
  if (class_token_) {
    const at::Tensor rows_of_patches = embedded.view({items, rows - 1, hidden});
    embedded = at::empty({items, rows, hidden}, patches.options());
    embedded.select(1, 0).copy_(class_.weight.expand({items, hidden}));
    embedded.narrow(1, 1, rows - 1).copy_(rows_of_patches);
  }
  embedded = embedded.view({items, rows, hidden}).add_(position_.weight);
  embedded = embedded.view({items * rows, hidden});
  at::Tensor output = embedded;
  LayerNormed norm;
  if (pre_norm_) {
    norm = LayerNorm(embedded, norm_.weight, norm_bias_.weight, context_.architecture.norm_epsilon);
    output = std::exchange(norm.y, {});
  } else {
    embedded.reset();  // only a norm's backward pass reads it
  }
  if (state != nullptr) *state = {std::move(patches), std::move(embedded), std::move(norm)};
  return output;
}

void PatchEmbedding::Backward(const at::Tensor& output_gradient, PatchState* state,
                              WeightWork* work) const {
  PatchState s = std::exchange(*state, {});
  const int64_t rows = EncoderRows(context_.architecture),
                hidden = context_.architecture.hidden_size;
  at::Tensor gradient = output_gradient;
  if (pre_norm_) {
    NormGradient norm =
        LayerNormBackward(output_gradient, s.embedded, s.norm, norm_.weight, norm_bias_.weight, {});
    work->Sum(norm_, std::move(norm.weight));
    work->Sum(norm_bias_, std::move(norm.bias));
    gradient = std::move(norm.x);
  }
  gradient = gradient.view({-1, rows, hidden});
  work->Bias(position_, gradient);
  if (class_token_) {
    work->Bias(class_, gradient.select(1, 0));
    gradient = gradient.narrow(1, 1, rows - 1);
  }
  gradient = gradient.reshape({-1, hidden});
  if (patch_bias_.weight.defined()) work->Bias(patch_bias_, gradient);
  work->Matrix(patch_, gradient, std::move(s.patches));
}

}  // namespace phalanx::model
