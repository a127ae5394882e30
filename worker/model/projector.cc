#include "worker/model/projector.h"

#include <ATen/ATen.h>

#include <utility>

#include "core/base/status.h"
#include "worker/model/kernels.h"

namespace phalanx::model {

Projector::Projector(TensorGroup group, const ParameterTable& table, int32_t edge)
    : group_(group),
      up_(table.Matrix(plan::MatrixRole::kProjectorUp, -1, edge)),
      up_bias_(table.Vector(plan::MatrixRole::kProjectorUpBias, -1, edge)),
      down_(table.Matrix(plan::MatrixRole::kProjectorDown, -1, edge)),
      down_bias_(table.Vector(plan::MatrixRole::kProjectorDownBias, -1, edge)) {}

absl::Status Projector::Forward(const at::Tensor& input, ProjectorState* state,
                                at::Tensor* output) const {
  at::Tensor hidden = Linear(input, up_, up_bias_);
  at::Tensor active = Gelu(GeluKind::kErf, hidden);
  *output = Linear(active, down_);
  RETURN_IF_ERROR(group_.Sum(output));
  output->add_(down_bias_.weight);
  if (state == nullptr) return absl::OkStatus();
  state->hidden = std::move(hidden);
  if (trains()) {
    state->input = input;
    state->active = std::move(active);
  }
  return absl::OkStatus();
}

absl::Status Projector::BackwardInput(const at::Tensor& output_gradient, ProjectorState* state,
                                      WeightWork* work, at::Tensor* input_gradient) const {
  ProjectorState s = std::exchange(*state, {});
  GeluGradient hidden = GeluBackward(GeluKind::kErf, LinearInputGradient(output_gradient, down_),
                                     s.hidden, /*column_sums=*/up_bias_.gradient.defined());
  Transfer transfer;
  if (input_gradient != nullptr)
    RETURN_IF_ERROR(group_.BeginSum(LinearInputGradient(hidden.x, up_), &transfer));
  work->Matrix(down_, output_gradient, std::move(s.active));
  work->Bias(down_bias_, output_gradient);
  work->Matrix(up_, hidden.x, std::move(s.input));
  work->Bias(up_bias_, hidden.x, std::move(hidden.sum));
  work->RunSome(WeightWork::kAll);
  return input_gradient == nullptr ? absl::OkStatus() : Await(&transfer, input_gradient);
}

}  // namespace phalanx::model
