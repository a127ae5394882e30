#include "worker/model/sounds.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "worker/model/kernels.h"

namespace phalanx::model {
namespace {

constexpr int64_t kWidth = 3;   // of a convolution
constexpr int64_t kStride = 2;  // of the second one

// x [items, channels, frames] -> [items * frames / stride, channels * 3], features in the order of
// the convolution's weight; one frame of zeros on either side.
at::Tensor Unfold(const at::Tensor& x, int64_t stride) {
  const at::Tensor windows = at::constant_pad_nd(x, {1, 1}).unfold(2, kWidth, stride);
  return windows.permute({0, 2, 1, 3}).reshape({-1, x.size(1) * kWidth});
}

// The transpose of Unfold with kStride: the sum over the windows in which a frame stands, as rows
// [items * frames, channels].
at::Tensor Fold(const at::Tensor& columns, int64_t items, int64_t frames) {
  const int64_t channels = columns.size(1) / kWidth, rows = columns.size(0) / items;
  const at::Tensor windows = columns.view({items, rows, channels, kWidth});
  const at::Tensor padded = at::zeros({items, frames + 2, channels}, columns.options());
  for (int64_t k = 0; k < kWidth; ++k) {
    padded.slice(1, k, k + kStride * (rows - 1) + 1, kStride).add_(windows.select(3, k));
  }
  return padded.narrow(1, 1, frames).reshape({items * frames, channels});
}

// Rows [items * frames, channels] as [items, channels, frames].
at::Tensor ByChannel(const at::Tensor& rows, int64_t items) {
  return rows.view({items, -1, rows.size(1)}).transpose(1, 2);
}

// Sines of falling frequency in the first half of a row, cosines in the second.
at::Tensor Positions(int64_t rows, int64_t hidden) {
  TORCH_CHECK(hidden % 2 == 0, "a whisper module needs an even hidden_size, not ", hidden);
  const at::TensorOptions fp64 = at::TensorOptions().dtype(at::kDouble);
  const int64_t half = hidden / 2;
  const double decay = std::log(10000.0) / static_cast<double>(std::max<int64_t>(1, half - 1));
  const at::Tensor frequencies = at::exp(at::arange(half, fp64) * -decay);
  const at::Tensor angles = at::outer(at::arange(rows, fp64), frequencies);
  return at::cat({at::sin(angles), at::cos(angles)}, 1);
}

}  // namespace

SoundEmbedding::SoundEmbedding(const LayerContext& context, const ParameterTable& table)
    : conv1_(table.Matrix(plan::MatrixRole::kConv1)),
      conv1_bias_(table.Vector(plan::MatrixRole::kConv1Bias)),
      conv2_(table.Matrix(plan::MatrixRole::kConv2)),
      conv2_bias_(table.Vector(plan::MatrixRole::kConv2Bias)),
      positions_(Positions(context.architecture.frames / kStride, context.architecture.hidden_size)
                     .to(conv1_.weight.options())) {}

at::Tensor SoundEmbedding::Forward(const at::Tensor& sounds, SoundState* state) const {
  const int64_t items = sounds.size(0), hidden = positions_.size(1);
  at::Tensor first = Linear(Unfold(sounds, 1), conv1_, conv1_bias_);
  at::Tensor second =
      Linear(Unfold(ByChannel(Gelu(GeluKind::kErf, first), items), kStride), conv2_, conv2_bias_);
  const at::Tensor rows = Gelu(GeluKind::kErf, second).view({items, -1, hidden}).add_(positions_);
  if (state != nullptr) *state = {sounds, std::move(first), std::move(second)};
  return rows.view({-1, hidden});
}

void SoundEmbedding::Backward(const at::Tensor& output_gradient, SoundState* state,
                              WeightWork* work) const {
  const SoundState s = std::exchange(*state, {});
  const int64_t items = s.sounds.size(0), frames = s.sounds.size(2);
  GeluGradient second = GeluBackward(GeluKind::kErf, output_gradient, s.second,
                                     /*column_sums=*/conv2_bias_.gradient.defined());
  work->Matrix(conv2_, second.x, Unfold(ByChannel(Gelu(GeluKind::kErf, s.first), items), kStride));
  work->Bias(conv2_bias_, second.x, std::move(second.sum));
  const at::Tensor active = Fold(LinearInputGradient(second.x, conv2_), items, frames);
  GeluGradient first = GeluBackward(GeluKind::kErf, active, s.first,
                                    /*column_sums=*/conv1_bias_.gradient.defined());
  work->Matrix(conv1_, first.x, Unfold(s.sounds, 1));
  work->Bias(conv1_bias_, first.x, std::move(first.sum));
}

}  // namespace phalanx::model
