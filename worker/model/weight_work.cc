#include "worker/model/weight_work.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "worker/device/cuda_device.h"
#include "worker/model/fp8_cuda.h"
#include "worker/model/kernels.h"
#include "worker/model/products.h"
#include "worker/model/unwritten.h"

namespace phalanx::model {
namespace {

using device::kWithCuda;

thread_local int in_both_ways = 0;  // ProductsInBothWays that live

// gradient = output_gradient^T input, or gradient += that; it lies as the product does.
void Multiply(const at::Tensor& gradient, const Operand& left, const Operand& right, bool add) {
  if (left.in_fp8()) {
    if constexpr (kWithCuda) {
      fused::MultiplyFp8(left.columns, left.scale, right.columns, right.scale, Fp8Sums::kPrecise,
                         add, gradient);
    }
    return;
  }
  at::Tensor sum = gradient;
  const at::ScalarType type = gradient.scalar_type();
  const bool widens = type != right.rows.scalar_type();
  if (widens && gradient.is_cuda()) {
    // Added in the product itself: a sum of its own would read and write the gradient's size once
    // more each, and hold the product.
    return WideProductInto(gradient, left.rows.t(), right.rows, add);
  }
  const at::Tensor output_gradient = widens ? left.rows.to(type) : left.rows;
  const at::Tensor input = widens ? right.rows.to(type) : right.rows;
  if (add) {
    sum.addmm_(output_gradient.t(), input);
  } else {
    at::mm_out(sum, output_gradient.t(), input);
  }
}

// gradient += output_gradient^T input.
void AddProduct(const at::Tensor& gradient, const Operand& left, const Operand& right) {
  // Both sides transposed, so that the product lies as what it is added to.
  if (gradient.stride(0) < gradient.stride(1)) return AddProduct(gradient.t(), right, left);
  const bool written = TakeUnwritten(gradient, /*may_write=*/true);
  const bool both = in_both_ways > 0 && gradient.is_contiguous();
  if (written || both) Multiply(gradient, left, right, /*add=*/false);
  if (!written || both) Multiply(gradient, left, right, /*add=*/true);
}

}  // namespace

ProductsInBothWays::ProductsInBothWays() { ++in_both_ways; }
ProductsInBothWays::~ProductsInBothWays() { --in_both_ways; }

Parameter NarrowRows(const Parameter& parameter, int64_t first, int64_t count) {
  Parameter rows;
  rows.weight = parameter.weight.narrow(0, first, count);
  if (parameter.gradient.defined()) rows.gradient = parameter.gradient.narrow(0, first, count);
  return rows;
}

void WeightWork::Matrix(const Parameter& parameter, Operand output_gradient, Operand input) {
  if (!parameter.gradient.defined()) return;
  if (parameter.fp8 != nullptr && !output_gradient.rounded)
    output_gradient = RoundToFp8(output_gradient, Fp8Format::kE5M2, Forms::kColumns);
  if (parameter.fp8 != nullptr && !input.rounded)
    input = RoundToFp8(input, Fp8Format::kE4M3, Forms::kColumns);
  items_.push_back(
      {Kind::kMatrix, parameter.gradient, std::move(output_gradient), std::move(input), {}});
  ++waiting_;
}

void WeightWork::Bias(const Parameter& parameter, at::Tensor output_gradient, at::Tensor sums) {
  if (sums.defined()) return Sum(parameter, std::move(sums));
  if (!parameter.gradient.defined()) return;
  items_.push_back({Kind::kBias, parameter.gradient, std::move(output_gradient), {}, {}});
}

void WeightWork::Sum(const Parameter& parameter, at::Tensor summand) {
  if (!parameter.gradient.defined()) return;
  items_.push_back({Kind::kSum, parameter.gradient, std::move(summand), {}, {}});
}

void WeightWork::Rows(const Parameter& parameter, int64_t first, const TokenRows& tokens,
                      at::Tensor values) {
  if (!parameter.gradient.defined()) return;
  items_.push_back(
      {Kind::kRows, parameter.gradient, std::move(values), tokens.tokens, tokens.order, first});
}

void WeightWork::NextLayer() { items_.push_back({.kind = Kind::kNextLayer}); }

void WeightWork::RunFirst(const Pace& pace) {
  const Item item = std::move(items_.front());  // memory goes back as soon as it can
  items_.pop_front();
  if (item.kind != Kind::kMatrix && item.kind != Kind::kNextLayer)
    TakeUnwritten(item.gradient, /*may_write=*/false);
  switch (item.kind) {
    case Kind::kMatrix:
      AddProduct(item.gradient, item.left, item.right);
      --waiting_;
      break;
    case Kind::kBias:
      AddColumnSums(item.gradient, item.left.rows);
      break;
    case Kind::kSum:
      item.gradient.add_(item.left.rows);
      break;
    case Kind::kRows:
      AddTokenRows(item.gradient, item.first, item.right.rows, item.order, item.left.rows);
      break;
    case Kind::kNextLayer:
      if (pace != nullptr) pace();
      if (layer_done_ != nullptr) layer_done_();
      break;
  }
}

void WeightWork::RunSome(int products) {
  const int left = std::max(0, waiting_ - products);
  while (along_ && !items_.empty() && (waiting_ > left || left == 0)) RunFirst(nullptr);
}

void WeightWork::Run(const Pace& pace) {
  while (!items_.empty()) RunFirst(pace);
}

}  // namespace phalanx::model
