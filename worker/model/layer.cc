#include "worker/model/layer.h"

#include <ATen/ATen.h>

#include <utility>

#include "core/base/status.h"
#include "core/plan/rows.h"
#include "worker/model/products.h"

namespace phalanx::model {

namespace {

// a b of `rows` [n, k] rounded and b [k, m], whose columns such a product reads. `kept` becomes
// what a sum over rows takes of them, where it is asked for.
at::Tensor RoundedProduct(const Operand& rows, Fp8Format format, const Operand& b, Fp8Sums sums,
                          Operand* kept) {
  Operand a = RoundToFp8(rows, format, kept != nullptr ? Forms::kBoth : Forms::kRows);
  at::Tensor product =
      a.in_fp8() ? Fp8Product(a.rows, a.scale, b.columns, b.scale, sums) : at::mm(a.rows, b.rows);
  if (kept == nullptr) return product;
  if (a.in_fp8()) a.rows.reset();
  *kept = std::move(a);
  return product;
}

}  // namespace

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
              .mlp_hidden = std::move(computed.mlp_hidden),
              .attention = std::move(computed.attention)};
    case job::Recompute::kNone:
      break;
  }
  DropOperands(context, &computed);
  return computed;
}

void DropOperands(const LayerContext& context, LayerState* s) {
  if (context.trains) return;
  s->attention_input = s->mlp_input = {};
  s->attention_rows = s->mlp_rows = s->context = s->mlp_active = {};
}

void LayerRows::Add() {
  if (!branch.defined()) return;
  if (bias.defined()) {
    AddBiasAndResidual(branch, bias, rows);
  } else {
    branch.add_(rows);
  }
  *this = LayerRows(std::move(branch));
}

RmsNormed RmsNormOf(const at::Tensor& weight, double epsilon, LayerRows* input,
                    at::Tensor* largest) {
  if (!input->branch.defined()) return RmsNorm(input->rows, weight, epsilon, largest);
  TORCH_CHECK(!input->bias.defined(), "what an RMSNorm takes has no bias");
  RmsNormed normed = AddRmsNorm(input->rows, input->branch, weight, epsilon, largest);
  *input = LayerRows(std::move(input->branch));
  return normed;
}

LayerNormed LayerNormOf(const at::Tensor& weight, const at::Tensor& bias, double epsilon,
                        LayerRows* input) {
  if (!input->branch.defined()) return LayerNorm(input->rows, weight, bias, epsilon);
  LayerNormed normed = AddLayerNorm(input->rows, input->branch, input->bias, weight, bias, epsilon);
  *input = LayerRows(std::move(input->branch));
  return normed;
}

absl::Status LayerStack::Forward(const SequenceShape& shape, std::vector<LayerState>* states,
                                 LayerRows* hidden) const {
  if (states != nullptr) states->resize(layers_.size());
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (i > 0 && pace_ != nullptr) pace_();
    if (i > 0 && begins_ != nullptr) begins_();
    LayerRows output;
    RETURN_IF_ERROR(layers_[i]->Forward(std::move(*hidden), ShapeOf(i, shape),
                                        states == nullptr ? nullptr : &(*states)[i], &output));
    *hidden = std::move(output);
  }
  return absl::OkStatus();
}

absl::Status LayerStack::BackwardInput(const SequenceShape& shape, std::vector<LayerState>* states,
                                       WeightWork* work, at::Tensor* gradient) const {
  Operand behind = std::exchange(*gradient, {});  // memory goes back as soon as it can
  for (size_t i = layers_.size(); i-- > 0;) {
    if (i + 1 < layers_.size()) {
      if (pace_ != nullptr) pace_();
      work->NextLayer();
    }
    Operand input_gradient;
    RETURN_IF_ERROR(
        layers_[i]->BackwardInput(behind, ShapeOf(i, shape), &(*states)[i], work, &input_gradient));
    behind = std::move(input_gradient);
  }
  *gradient = std::move(behind.rows);
  return absl::OkStatus();
}

absl::Status BeginWhole(const TensorGroup& group, int64_t rows, Operand mine, Operand* whole,
                        Transfer* transfer) {
  *transfer = {};
  if (whole->defined()) return absl::OkStatus();
  if (group.slices()) return group.BeginWhole(mine.rows, rows, transfer);
  *whole = std::move(mine);
  return absl::OkStatus();
}

absl::Status AwaitWhole(Transfer* transfer, Operand* whole) {
  return whole->defined() ? absl::OkStatus() : Await(transfer, &whole->rows);
}

at::Tensor Linear(const Operand& input, const Parameter& weight, Operand* kept) {
  if (weight.fp8 != nullptr) {
    return RoundedProduct(input, Fp8Format::kE4M3, weight.fp8->Rounded().Turned(), Fp8Sums::kFast,
                          kept);
  }
  if (kept != nullptr) *kept = input;
  return Product(input.rows, weight.weight.t());
}

at::Tensor Linear(const at::Tensor& input, const Parameter& weight, const Parameter& bias) {
  return Product(input, weight.weight.t(), bias.weight);
}

absl::Status GatheredLinear(const TensorGroup& group, const Operand& mine, int64_t rows,
                            const Parameter& weight, const Parameter& bias, Operand* kept,
                            at::Tensor* output) {
  Transfer transfer;
  Operand whole;
  RETURN_IF_ERROR(BeginWhole(group, rows, mine, &whole, &transfer));
  if (weight.fp8 != nullptr) {
    TORCH_CHECK(!bias.weight.defined(), "a product in FP8 has no bias");
    RETURN_IF_ERROR(AwaitWhole(&transfer, &whole));
    *output = Linear(whole, weight, kept);
    return absl::OkStatus();
  }
  *output = at::empty({rows, weight.weight.size(0)}, mine.rows.options());
  const at::Tensor factor = weight.weight.t();
  const auto multiply = [&](const at::Tensor& input, int64_t first) {
    if (input.size(0) == 0) return;
    ProductInto(output->narrow(0, first, input.size(0)), input, factor, bias.weight);
  };
  const plan::UnitRange own =
      group.slices() ? plan::SliceOf(rows, group.width(), group.rank()) : plan::UnitRange{0, rows};
  multiply(mine.rows, own.first);
  RETURN_IF_ERROR(AwaitWhole(&transfer, &whole));
  multiply(whole.rows.narrow(0, 0, own.first), 0);
  multiply(whole.rows.narrow(0, own.end(), rows - own.end()), own.end());
  if (kept != nullptr) *kept = std::move(whole);
  return absl::OkStatus();
}

at::Tensor LinearInputGradient(const Operand& output_gradient, const Parameter& weight,
                               Operand* kept) {
  if (weight.fp8 != nullptr) {
    return RoundedProduct(output_gradient, Fp8Format::kE5M2, weight.fp8->Rounded(),
                          Fp8Sums::kPrecise, weight.gradient.defined() ? kept : nullptr);
  }
  if (kept != nullptr) *kept = output_gradient;
  return Product(output_gradient.rows, weight.weight);
}

}  // namespace phalanx::model
