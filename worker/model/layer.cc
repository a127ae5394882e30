#include "worker/model/layer.h"

#include <ATen/ATen.h>

namespace phalanx::model {

Parameter ParameterTable::Matrix(const std::string& role, bool frozen, int32_t layer,
                                 int32_t edge) const {
  const plan::LocalMatrix* matrix = parameters_.Find(role, layer, edge);
  TORCH_CHECK(matrix != nullptr, "no parameter ", role, " of layer ", layer, " edge ", edge,
              " in this stage");
  const auto view = [matrix](const at::Tensor& buffer) {
    return buffer.narrow(0, matrix->offset, matrix->rows * matrix->cols)
        .view({matrix->rows, matrix->cols});
  };
  Parameter parameter;
  parameter.weight = view(weights_);
  if (!frozen && gradients_.defined()) parameter.gradient = view(gradients_);
  return parameter;
}

Parameter ParameterTable::Vector(const std::string& role, bool frozen, int32_t layer,
                                 int32_t edge) const {
  Parameter parameter = Matrix(role, frozen, layer, edge);
  parameter.weight = parameter.weight.view({-1});
  if (parameter.gradient.defined()) parameter.gradient = parameter.gradient.view({-1});
  return parameter;
}

at::Tensor Linear(const at::Tensor& input, const Parameter& weight) {
  return at::mm(input, weight.weight.t());
}

at::Tensor Linear(const at::Tensor& input, const Parameter& weight, const Parameter& bias) {
  return at::addmm(bias.weight, input, weight.weight.t());
}

at::Tensor LinearInputGradient(const at::Tensor& output_gradient, const Parameter& weight) {
  return at::mm(output_gradient, weight.weight);
}

}  // namespace phalanx::model
