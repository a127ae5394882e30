#include "worker/model/prediction.h"

#include <ATen/ATen.h>

#include <utility>

#include "worker/model/kernels.h"
#include "worker/model/layer.h"

namespace phalanx::model {

at::Tensor Prediction::Forward(const at::Tensor& normed, const at::Tensor& targets,
                               const at::Tensor& positions, const at::Tensor& weights,
                               PredictionState* state) const {
  const at::ScalarType wide = SumType(normed.scalar_type());
  at::Tensor rows = normed.index_select(0, positions);
  const at::Tensor difference = Linear(rows, predict_).to(wide).sub(targets.to(wide));
  const at::Tensor scale = weights.to(wide).mul(loss_weight_);
  if (state != nullptr) {
    const at::Tensor factor = scale.mul(2.0 / static_cast<double>(targets.size(1))).unsqueeze(1);
    state->rows = std::move(rows);
    state->gradient = (difference * factor).to(normed.scalar_type());
    state->positions = positions;
  }
  return (difference.square().mean(1) * scale).sum();
}

void Prediction::Backward(PredictionState* state, WeightWork* work,
                          const at::Tensor& normed_gradient) const {
  PredictionState s = std::exchange(*state, {});
  if (!s.gradient.defined()) return;  // nothing to predict
  ScatterRows(normed_gradient, s.positions, LinearInputGradient(s.gradient, predict_));
  work->Matrix(predict_, std::move(s.gradient), std::move(s.rows));
}

}  // namespace phalanx::model
