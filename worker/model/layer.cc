#include "worker/model/layer.h"

#include <ATen/ATen.h>

#include <utility>

#include "core/base/status.h"
#include "core/plan/rows.h"

namespace phalanx::model {

Parameter ParameterTable::Matrix(plan::MatrixRole role, int32_t layer, int32_t edge) const {
  const plan::LocalMatrix* matrix = parameters_.Find(role, layer, edge);
  TORCH_CHECK(matrix != nullptr, "no parameter ", plan::RoleName(role), " of layer ", layer,
              " edge ", edge, " in this stage");
  const auto view = [matrix](const at::Tensor& buffer) {
    const at::Tensor stored = buffer.narrow(0, matrix->offset, matrix->rows * matrix->cols)
                                  .view({matrix->rows, matrix->cols});
    return matrix->transposed ? stored.t() : stored;
  };
  Parameter parameter;
  parameter.weight = view(weights_);
  if (matrix->trains && gradients_.defined()) parameter.gradient = view(gradients_);
  return parameter;
}

Parameter ParameterTable::Vector(plan::MatrixRole role, int32_t layer, int32_t edge) const {
  Parameter parameter = Matrix(role, layer, edge);
  parameter.weight = parameter.weight.view({-1});
  if (parameter.gradient.defined()) parameter.gradient = parameter.gradient.view({-1});
  return parameter;
}

LayerState Kept(const LayerContext& context, LayerState computed) {
  switch (context.recompute) {
    case job::Recompute::kFull:
      return {.input = std::move(computed.input)};
    case job::Recompute::kSelective:
      return {.input = std::move(computed.input),
              .middle = std::move(computed.middle),
              .qkv = std::move(computed.qkv),
              .mlp_hidden = std::move(computed.mlp_hidden)};
    case job::Recompute::kNone:
      break;
  }
  if (!context.trains) {
    // Operands of weight gradients alone.
    computed.attention_input.reset();
    computed.context.reset();
    computed.mlp_input.reset();
    computed.mlp_active.reset();
  }
  return computed;
}

absl::Status LayerStack::Forward(const SequenceShape& shape, std::vector<LayerState>* states,
                                 at::Tensor* hidden) const {
  if (states != nullptr) states->resize(layers_.size());
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (i > 0 && pace_ != nullptr) pace_();
    at::Tensor output;
    RETURN_IF_ERROR(layers_[i]->Forward(*hidden, ShapeOf(i, shape),
                                        states == nullptr ? nullptr : &(*states)[i], &output));
    *hidden = std::move(output);
  }
  return absl::OkStatus();
}

absl::Status LayerStack::BackwardInput(const SequenceShape& shape, std::vector<LayerState>* states,
                                       WeightWork* work, at::Tensor* gradient) const {
  for (size_t i = layers_.size(); i-- > 0;) {
    if (i + 1 < layers_.size()) {
      if (pace_ != nullptr) pace_();
      work->NextLayer();
    }
    at::Tensor input_gradient;
    RETURN_IF_ERROR(layers_[i]->BackwardInput(*gradient, ShapeOf(i, shape), &(*states)[i], work,
                                              &input_gradient));
    *gradient = std::move(input_gradient);
  }
  return absl::OkStatus();
}

absl::Status BeginInput(const TensorGroup& group, int64_t rows, at::Tensor* mine, at::Tensor* whole,
                        Transfer* transfer) {
  const at::Tensor part = std::exchange(*mine, {});
  if (!whole->defined()) return group.BeginWhole(part, rows, transfer);
  *transfer = {.result = std::exchange(*whole, {})};
  return absl::OkStatus();
}

at::Tensor Linear(const at::Tensor& input, const Parameter& weight) {
  return at::mm(input, weight.weight.t());
}

at::Tensor Linear(const at::Tensor& input, const Parameter& weight, const Parameter& bias) {
  return at::addmm(bias.weight, input, weight.weight.t());
}

absl::Status GatheredLinear(const TensorGroup& group, const at::Tensor& mine, int64_t rows,
                            const Parameter& weight, const Parameter& bias, at::Tensor* whole,
                            at::Tensor* output) {
  Transfer transfer;
  RETURN_IF_ERROR(group.BeginWhole(mine, rows, &transfer));
  *output = at::empty({rows, weight.weight.size(0)}, mine.options());
  const at::Tensor factor = weight.weight.t();
  const auto multiply = [&](const at::Tensor& input, int64_t first) {
    if (input.size(0) == 0) return;
    at::Tensor part = output->narrow(0, first, input.size(0));
    bias.weight.defined() ? at::addmm_out(part, bias.weight, input, factor)
                          : at::mm_out(part, input, factor);
  };
  const plan::UnitRange own =
      group.slices() ? plan::SliceOf(rows, group.width(), group.rank()) : plan::UnitRange{0, rows};
  multiply(mine, own.first);
  at::Tensor all;
  RETURN_IF_ERROR(Await(&transfer, &all));
  multiply(all.narrow(0, 0, own.first), 0);
  multiply(all.narrow(0, own.end(), rows - own.end()), own.end());
  if (whole != nullptr) *whole = std::move(all);
  return absl::OkStatus();
}

at::Tensor LinearInputGradient(const at::Tensor& output_gradient, const Parameter& weight) {
  return at::mm(output_gradient, weight.weight);
}

}  // namespace phalanx::model
