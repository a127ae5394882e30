#include "worker/model/patches.h"

#include <ATen/ATen.h>

#include <utility>

namespace phalanx::model {
namespace {

// [items * patches, 3 * patch * patch], features in the order of the convolution's weight.
at::Tensor Unfold(const at::Tensor& pixels, int64_t patch) {
  const int64_t items = pixels.size(0), side = pixels.size(2) / patch;
  return pixels.reshape({items, 3, side, patch, side, patch})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({items * side * side, 3 * patch * patch});
}

}  // namespace

int64_t EncoderRows(const job::Architecture& architecture) {
  const int64_t side = architecture.image_size / architecture.patch_size;
  return side * side + 1;
}

PatchEmbedding::PatchEmbedding(const LayerContext& context, const ParameterTable& table)
    : context_(context),
      patch_(table.Matrix("patch")),
      class_(table.Vector("class")),
      position_(table.Matrix("position")),
      norm_(table.Vector("pre_norm")),
      norm_bias_(table.Vector("pre_norm_bias")) {}

at::Tensor PatchEmbedding::Forward(const at::Tensor& pixels, PatchState* state) const {
  const int64_t items = pixels.size(0), rows = EncoderRows(context_.architecture);
  const int64_t hidden = context_.architecture.hidden_size;
  at::Tensor patches = Unfold(pixels, context_.architecture.patch_size);
  at::Tensor embedded = at::empty({items, rows, hidden}, patches.options());
  embedded.select(1, 0).copy_(class_.weight.expand({items, hidden}));
  embedded.narrow(1, 1, rows - 1).copy_(Linear(patches, patch_).view({items, rows - 1, hidden}));
  embedded.add_(position_.weight);
  embedded = embedded.view({items * rows, hidden});
  LayerNormed norm =
      LayerNorm(embedded, norm_.weight, norm_bias_.weight, context_.architecture.norm_epsilon);
  at::Tensor output = norm.y;
  if (state != nullptr) {
    norm.y.reset();
    *state = {std::move(patches), std::move(embedded), std::move(norm)};
  }
  return output;
}

void PatchEmbedding::Backward(const at::Tensor& output_gradient, PatchState* state,
                              WeightWork* work) const {
  PatchState s = std::exchange(*state, {});
  const int64_t rows = EncoderRows(context_.architecture),
                hidden = context_.architecture.hidden_size;
  NormGradient norm =
      LayerNormBackward(output_gradient, s.embedded, s.norm, norm_.weight, norm_bias_.weight, {});
  work->Sum(norm_, std::move(norm.weight));
  work->Sum(norm_bias_, std::move(norm.bias));
  const at::Tensor gradient = norm.x.view({-1, rows, hidden});
  work->Bias(position_, gradient);
  work->Bias(class_, gradient.select(1, 0));
  work->Matrix(patch_, gradient.narrow(1, 1, rows - 1).reshape({-1, hidden}), std::move(s.patches));
}

}  // namespace phalanx::model
