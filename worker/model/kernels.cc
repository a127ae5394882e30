#include "worker/model/kernels.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "worker/device/cuda_device.h"
#include "worker/model/cpu_kernels.h"
#include "worker/model/kernels_cuda.h"

namespace phalanx::model {
namespace {

using device::kWithCuda;

// Whether the fused CPU loops apply to tensors of this kind.
bool IsPlain(const at::Tensor& tensor) {
  return tensor.device().is_cpu() &&
         (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble);
}

// Runs body.operator()<T>() with the C++ type of `tensor`, which is plain.
template <typename Body>
void ForType(const at::Tensor& tensor, const Body& body) {
  if (tensor.scalar_type() == at::kFloat) {
    body.template operator()<float>();
  } else {
    body.template operator()<double>();
  }
}

template <typename T>
const T* In(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}
template <typename T>
T* Out(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<T>() : nullptr;
}

// Rows of logits that are worked on together: bounds what a vocabulary in the sum type takes.
constexpr int64_t kRowsAtOnce = 1024;

// Where the labels of some rows stand among the columns [first, first + columns), each [rows, 1].
struct LabelColumns {
  at::Tensor column;  // clamped to a column that is here
  at::Tensor here;    // 1 or 0, in the type of `like`
};
LabelColumns ColumnsOf(const at::Tensor& labels, int64_t first, int64_t columns,
                       const at::Tensor& like) {
  const at::Tensor index = (labels - first).unsqueeze(1);
  const at::Tensor here = at::logical_and(index.ge(0), index.lt(columns));
  return {index.clamp(0, columns - 1), here.to(like.scalar_type())};
}

// ATen's name of it.
const char* ApproximationOf(GeluKind kind) { return kind == GeluKind::kTanh ? "tanh" : "none"; }

at::Tensor InSumType(const at::Tensor& tensor) { return tensor.to(SumType(tensor.scalar_type())); }

}  // namespace

at::ScalarType SumType(at::ScalarType compute) {
  return compute == at::kDouble ? at::kDouble : at::kFloat;
}

RmsNormed RmsNorm(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                  at::Tensor* largest) {
  if constexpr (kWithCuda) {
    if (fused::TakesRows(x)) {
      LayerNormed normed = fused::Norm(x, {}, {}, weight, {}, epsilon, largest);
      return {std::move(normed.y), std::move(normed.rstd)};
    }
  }
  RmsNormed normed;
  if (IsPlain(x)) {
    normed.y = at::empty_like(x);
    normed.rstd = at::empty({x.size(0)}, x.options());
    ForType(x, [&]<typename T>() {
      cpu::RmsNorm<T>(x.size(0), x.size(1), In<T>(x), nullptr, In<T>(weight),
                      static_cast<T>(epsilon), Out<T>(normed.y), Out<T>(normed.rstd));
    });
  } else if (x.is_cuda()) {
    std::tie(normed.y, normed.rstd) = at::_fused_rms_norm(x, {x.size(1)}, weight, epsilon);
  } else {
    const at::Tensor wide = InSumType(x);
    normed.rstd = at::rsqrt(wide.square().mean(1, /*keepdim=*/true) + epsilon);
    normed.y = (wide * normed.rstd).to(x.scalar_type()) * weight;
  }
  return normed;
}

RmsNormed AddRmsNorm(const at::Tensor& residual, const at::Tensor& branch, const at::Tensor& weight,
                     double epsilon, at::Tensor* largest) {
  if constexpr (kWithCuda) {
    if (fused::TakesRows(branch)) {
      LayerNormed normed = fused::Norm(residual, branch, {}, weight, {}, epsilon, largest);
      return {std::move(normed.y), std::move(normed.rstd)};
    }
  }
  if (!IsPlain(branch)) {
    branch.add_(residual);
    return RmsNorm(branch, weight, epsilon, largest);
  }
  RmsNormed normed;
  normed.y = at::empty_like(branch);
  normed.rstd = at::empty({branch.size(0)}, branch.options());
  ForType(branch, [&]<typename T>() {
    cpu::RmsNorm<T>(branch.size(0), branch.size(1), In<T>(residual), Out<T>(branch), In<T>(weight),
                    static_cast<T>(epsilon), Out<T>(normed.y), Out<T>(normed.rstd));
  });
  return normed;
}

NormGradient RmsNormBackward(const at::Tensor& output_gradient, const at::Tensor& x,
                             const at::Tensor& rstd, const at::Tensor& weight,
                             const at::Tensor& residual_gradient, at::Tensor* largest) {
  if constexpr (kWithCuda) {
    if (fused::TakesRows(x)) {
      return fused::NormBackward(output_gradient, x, {}, rstd, weight, residual_gradient,
                                 /*column_sums=*/false, largest);
    }
  }
  NormGradient gradient;
  if (IsPlain(x)) {
    gradient.x = at::empty_like(x);
    gradient.weight = at::empty_like(weight);
    ForType(x, [&]<typename T>() {
      cpu::RmsNormBackward<T>(x.size(0), x.size(1), In<T>(output_gradient), In<T>(x), In<T>(rstd),
                              In<T>(weight), In<T>(residual_gradient), Out<T>(gradient.x),
                              Out<T>(gradient.weight));
    });
    return gradient;
  }
  if (x.is_cuda()) {
    std::tie(gradient.x, gradient.weight) =
        at::_fused_rms_norm_backward(output_gradient, x, {x.size(1)}, rstd, weight, {true, true});
  } else {
    const at::Tensor normed = InSumType(x) * rstd;
    const at::Tensor wide = InSumType(output_gradient);
    const at::Tensor weighted = wide * InSumType(weight);
    gradient.x = (rstd * (weighted - normed * (weighted * normed).mean(1, /*keepdim=*/true)))
                     .to(x.scalar_type());
    gradient.weight = (wide * normed).sum(0);
  }
  if (residual_gradient.defined()) gradient.x.add_(residual_gradient);
  return gradient;
}

LayerNormed LayerNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      double epsilon) {
  if constexpr (kWithCuda) {
    if (fused::TakesRows(x)) return fused::Norm(x, {}, {}, weight, bias, epsilon);
  }
  LayerNormed normed;
  std::tie(normed.y, normed.mean, normed.rstd) =
      at::native_layer_norm(x, {x.size(1)}, weight, bias, epsilon);
  return normed;
}

LayerNormed AddLayerNorm(const at::Tensor& residual, const at::Tensor& branch,
                         const at::Tensor& branch_bias, const at::Tensor& weight,
                         const at::Tensor& bias, double epsilon) {
  if constexpr (kWithCuda) {
    if (fused::TakesRows(branch))
      return fused::Norm(residual, branch, branch_bias, weight, bias, epsilon);
  }
  AddBiasAndResidual(branch, branch_bias, residual);
  return LayerNorm(branch, weight, bias, epsilon);
}

NormGradient LayerNormBackward(const at::Tensor& output_gradient, const at::Tensor& x,
                               const LayerNormed& normed, const at::Tensor& weight,
                               const at::Tensor& bias, const at::Tensor& residual_gradient,
                               bool column_sums) {
  if constexpr (kWithCuda) {
    if (fused::TakesRows(x)) {
      return fused::NormBackward(output_gradient, x, normed.mean, normed.rstd, weight,
                                 residual_gradient, column_sums);
    }
  }
  NormGradient gradient;
  std::tie(gradient.x, gradient.weight, gradient.bias) = at::native_layer_norm_backward(
      output_gradient, x, {x.size(1)}, normed.mean, normed.rstd, weight, bias, {true, true, true});
  if (residual_gradient.defined()) gradient.x.add_(residual_gradient);
  return gradient;
}

void AddBiasAndResidual(const at::Tensor& branch, const at::Tensor& bias,
                        const at::Tensor& residual) {
  if constexpr (kWithCuda) {
    if (fused::Takes(branch)) return fused::AddBiasAndResidual(branch, bias, residual);
  }
  branch.add_(bias).add_(residual);
}

void AddColumnSums(const at::Tensor& sum, const at::Tensor& rows) {
  if constexpr (kWithCuda) {
    if (fused::Takes(rows) && sum.scalar_type() == at::kFloat && sum.is_contiguous() &&
        rows.stride(-1) == 1) {
      return fused::AddColumnSums(sum, rows.flatten(1));
    }
  }
  sum.add_(rows.sum(0, /*keepdim=*/false, sum.scalar_type()));
}

void Rotate(const at::Tensor& x, int64_t heads, const at::Tensor& cos, const at::Tensor& sin,
            bool inverse) {
  if constexpr (kWithCuda) {
    if (fused::Takes(x)) return fused::Rotate(x, heads, cos, sin, inverse);
  }
  const int64_t batch = x.size(0), length = x.size(1), half = x.size(3) / 2;
  if (IsPlain(x)) {
    ForType(x, [&]<typename T>() {
      cpu::Rotate<T>(batch * length, length, x.stride(1), heads, half, In<T>(cos), In<T>(sin),
                     inverse ? T(-1) : T(1), Out<T>(x));
    });
    return;
  }
  const at::Tensor turned = x.narrow(2, 0, heads);
  const at::Tensor first = turned.narrow(3, 0, half), second = turned.narrow(3, half, half);
  const at::Tensor c = cos.narrow(0, 0, length).unsqueeze(1);
  at::Tensor s = sin.narrow(0, 0, length).unsqueeze(1);
  if (inverse) s = s.neg();
  const at::Tensor a = InSumType(first), b = InSumType(second);
  // Both results exist before either half is overwritten (in fp64 `a` and `b` are the halves).
  const at::Tensor new_first = a * c - b * s, new_second = b * c + a * s;
  first.copy_(new_first);
  second.copy_(new_second);
}

void PackHeads(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& packed,
               at::Tensor* largest) {
  if constexpr (kWithCuda) {
    // A kernel's gradients may have rows of padding, but a head's elements stand side by side.
    if (fused::Takes(packed) && packed.size(3) % 2 == 0 && query.stride(3) == 1 &&
        key.stride(3) == 1 && value.stride(3) == 1) {
      return fused::PackHeads(query, key, value, cos, sin, packed, largest);
    }
  }
  const at::Tensor to = packed.transpose(1, 2);
  int64_t first = 0;
  for (const at::Tensor& heads : {query, key, value}) {
    to.narrow(1, first, heads.size(1)).copy_(heads);
    first += heads.size(1);
  }
  if (cos.defined()) Rotate(packed, query.size(1) + key.size(1), cos, sin, /*inverse=*/true);
}

at::Tensor SwiGlu(const at::Tensor& gate_up, int64_t block, at::Tensor* largest) {
  if constexpr (kWithCuda) {
    if (fused::Takes(gate_up)) return fused::SwiGlu(gate_up, block, largest);
  }
  const int64_t rows = gate_up.size(0), blocks = gate_up.size(1) / (2 * block);
  if (IsPlain(gate_up)) {
    at::Tensor y = at::empty({rows, blocks * block}, gate_up.options());
    ForType(gate_up,
            [&]<typename T>() { cpu::SwiGlu<T>(rows, blocks, block, In<T>(gate_up), Out<T>(y)); });
    return y;
  }
  const at::Tensor pairs = gate_up.view({rows, blocks, 2, block});
  return (at::silu(pairs.select(2, 0)) * pairs.select(2, 1)).view({rows, blocks * block});
}

at::Tensor SwiGluBackward(const at::Tensor& output_gradient, const at::Tensor& gate_up,
                          int64_t block, at::Tensor* largest, SwiGluAgain* again) {
  if constexpr (kWithCuda) {
    if (fused::Takes(gate_up))
      return fused::SwiGluBackward(output_gradient, gate_up, block, largest, again);
  }
  if (again != nullptr) again->y = SwiGlu(gate_up, block);
  const int64_t rows = gate_up.size(0), blocks = gate_up.size(1) / (2 * block);
  at::Tensor gradient = at::empty_like(gate_up);
  if (IsPlain(gate_up)) {
    ForType(gate_up, [&]<typename T>() {
      cpu::SwiGluBackward<T>(rows, blocks, block, In<T>(output_gradient), In<T>(gate_up),
                             Out<T>(gradient));
    });
    return gradient;
  }
  const at::Tensor pairs = gate_up.view({rows, blocks, 2, block});
  const at::Tensor gate = pairs.select(2, 0), up = pairs.select(2, 1);
  const at::Tensor dy = output_gradient.view({rows, blocks, block});
  const at::Tensor to = gradient.view({rows, blocks, 2, block});
  to.select(2, 0).copy_(at::silu_backward(dy * up, gate));
  at::Tensor up_gradient = to.select(2, 1);
  at::mul_out(up_gradient, dy, at::silu(gate));
  return gradient;
}

at::Tensor Gelu(GeluKind kind, const at::Tensor& x) {
  if constexpr (kWithCuda) {
    if (fused::Takes(x)) return fused::Gelu(kind, x);
  }
  if (kind != GeluKind::kQuick) return at::gelu(x, ApproximationOf(kind));
  if (!IsPlain(x)) return at::sigmoid(x * 1.702).mul_(x);
  at::Tensor y = at::empty_like(x);
  ForType(x, [&]<typename T>() { cpu::QuickGelu<T>(x.numel(), In<T>(x), Out<T>(y)); });
  return y;
}

GeluGradient GeluBackward(GeluKind kind, const at::Tensor& output_gradient, const at::Tensor& x,
                          bool column_sums) {
  if constexpr (kWithCuda) {
    if (fused::Takes(x)) return fused::GeluBackward(kind, output_gradient, x, column_sums);
  }
  if (kind != GeluKind::kQuick)
    return {at::gelu_backward(output_gradient, x, ApproximationOf(kind)), {}};
  if (!IsPlain(x)) {
    const at::Tensor wide = InSumType(x), sigmoid = at::sigmoid(wide * 1.702);
    return {(InSumType(output_gradient) * sigmoid * (wide * (1 - sigmoid) * 1.702 + 1))
                .to(x.scalar_type()),
            {}};
  }
  GeluGradient gradient{at::empty_like(x), {}};
  ForType(x, [&]<typename T>() {
    cpu::QuickGeluBackward<T>(x.numel(), In<T>(output_gradient), In<T>(x), Out<T>(gradient.x));
  });
  return gradient;
}

at::Tensor TakeRows(const at::Tensor& table, const at::Tensor& index, const at::Tensor& keep) {
  if constexpr (kWithCuda) {
    if (fused::Takes(table)) return fused::TakeRows(table, index, keep);
  }
  if (!IsPlain(table)) {
    at::Tensor y = table.index_select(0, index);
    if (keep.defined()) y.masked_fill_(keep.logical_not().unsqueeze(1), 0);
    return y;
  }
  at::Tensor y = at::empty({index.size(0), table.size(1)}, table.options());
  ForType(table, [&]<typename T>() {
    cpu::TakeRows<T>(index.size(0), table.size(1), In<T>(table), In<int64_t>(index), In<bool>(keep),
                     Out<T>(y));
  });
  return y;
}

void AddRows(const at::Tensor& sum, const at::Tensor& index, const at::Tensor& keep,
             const at::Tensor& values) {
  if constexpr (kWithCuda) {
    if (fused::Takes(sum) && fused::Takes(values))
      return fused::AddRows(sum, index, keep, values.contiguous());
  }
  if (IsPlain(sum) && sum.scalar_type() == values.scalar_type()) {
    ForType(sum, [&]<typename T>() {
      cpu::AddRows<T>(index.size(0), sum.size(1), In<int64_t>(index), In<bool>(keep), In<T>(values),
                      Out<T>(sum));
    });
    return;
  }
  at::Tensor addend = values.to(sum.scalar_type());
  if (keep.defined()) addend = addend.masked_fill(keep.logical_not().unsqueeze(1), 0);
  sum.index_add_(0, index, addend);
}

at::Tensor EmbedRows(const at::Tensor& table, int64_t first, const TokenRows& rows,
                     const at::Tensor& items, const at::Tensor& positions) {
  if constexpr (kWithCuda) {
    if (fused::Takes(table)) return fused::EmbedRows(table, first, rows, items);
  }
  const int64_t count = rows.source.size(0);
  if (IsPlain(table)) {
    at::Tensor y = at::empty({count, table.size(1)}, table.options());
    const at::Tensor from = items.defined() ? items.contiguous() : items;
    ForType(table, [&]<typename T>() {
      cpu::EmbedRows<T>(count, table.size(1), In<T>(table), first, table.size(0), In<T>(from),
                        In<int64_t>(rows.source), In<int64_t>(rows.next), Out<T>(y));
    });
    return y;
  }
  // Places of items are below 0, and so not here.
  const at::Tensor index = rows.source - first;
  const at::Tensor here = at::logical_and(rows.source.ge(first), index.lt(table.size(0)));
  at::Tensor y = TakeRows(table, index.clamp(0, table.size(0) - 1), here);
  if (items.defined()) ScatterRows(y, positions, items);
  return y;
}

void AddTokenRows(const at::Tensor& sum, int64_t first, const at::Tensor& tokens,
                  const at::Tensor& order, const at::Tensor& values) {
  if constexpr (kWithCuda) {
    if (fused::Takes(sum) && fused::Takes(values))
      return fused::AddTokenRows(sum, first, tokens, order, values.contiguous());
  }
  const int64_t count = tokens.size(0);
  if (IsPlain(sum) && sum.scalar_type() == values.scalar_type()) {
    const at::Tensor from = values.contiguous();
    ForType(sum, [&]<typename T>() {
      cpu::AddTokenRows<T>(count, sum.size(1), In<int32_t>(tokens), In<int64_t>(order), first,
                           sum.size(0), In<T>(from), Out<T>(sum));
    });
    return;
  }
  const at::Tensor index = tokens.to(at::kLong) - first;
  AddRows(sum, index.clamp(0, sum.size(0) - 1), at::logical_and(index.ge(0), index.lt(sum.size(0))),
          values.index_select(0, order));
}

void ScatterRows(const at::Tensor& rows, const at::Tensor& positions, const at::Tensor& values) {
  if constexpr (kWithCuda) {
    if (fused::Takes(rows)) return fused::AddRows(rows, positions, {}, values.contiguous());
  }
  if (IsPlain(rows)) {
    AddRows(rows, positions, {}, values.contiguous());
    return;
  }
  at::Tensor sum = rows;
  at::index_put_(sum, {positions}, values, /*accumulate=*/true);
}

at::Tensor SoftmaxStatistics(const at::Tensor& logits, const at::Tensor& labels,
                             const at::Tensor& weights, int64_t first) {
  if constexpr (kWithCuda) {
    if (fused::Takes(logits)) return fused::SoftmaxStatistics(logits, labels, weights, first);
  }
  const int64_t rows = logits.size(0), columns = logits.size(1);
  at::Tensor statistics =
      at::empty({rows, kStatistics}, logits.options().dtype(SumType(logits.scalar_type())));
  if (IsPlain(logits)) {
    ForType(logits, [&]<typename T>() {
      cpu::SoftmaxStatistics<T>(rows, columns, In<T>(logits), In<int64_t>(labels), In<T>(weights),
                                first, Out<T>(statistics));
    });
    return statistics;
  }
  for (int64_t row = 0; row < rows; row += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, rows - row);
    const at::Tensor wide = InSumType(logits.narrow(0, row, count));
    const LabelColumns label = ColumnsOf(labels.narrow(0, row, count), first, columns, wide);
    const at::Tensor largest = wide.amax(1, /*keepdim=*/true);
    const at::Tensor to = statistics.narrow(0, row, count);
    to.narrow(1, 0, 1).copy_(largest);
    to.narrow(1, 1, 1).copy_((wide - largest).exp_().sum(1, /*keepdim=*/true));
    to.narrow(1, 2, 1).copy_(wide.gather(1, label.column) * label.here);
  }
  return statistics;
}

at::Tensor CrossEntropy(const at::Tensor& logits, const at::Tensor& gathered,
                        const at::Tensor& labels, const at::Tensor& weights, int64_t first,
                        bool gradient) {
  if constexpr (kWithCuda) {
    if (fused::Takes(logits))
      return fused::CrossEntropy(logits, gathered, labels, weights, first, gradient);
  }
  const int64_t rows = logits.size(0), columns = logits.size(1);
  if (IsPlain(logits)) {
    at::Tensor loss_sum = at::empty({}, logits.options());
    ForType(logits, [&]<typename T>() {
      *Out<T>(loss_sum) = cpu::CrossEntropy<T>(rows, columns, gathered.size(0), In<T>(gathered),
                                               In<int64_t>(labels), In<T>(weights), first,
                                               gradient ? Out<T>(logits) : nullptr);
    });
    return loss_sum;
  }
  const at::Tensor largest_of = gathered.select(2, 0);  // [width, rows]
  const at::Tensor largest = largest_of.amax(0);        // [rows]
  const at::Tensor sum = (gathered.select(2, 1) * at::exp(largest_of - largest)).sum(0);  // [rows]
  const at::Tensor log_sum = largest + at::log(sum);
  at::Tensor loss_sum = ((log_sum - gathered.select(2, 2).sum(0)) * weights).sum();
  if (!gradient) return loss_sum;
  for (int64_t row = 0; row < rows; row += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, rows - row);
    const at::Tensor part = logits.narrow(0, row, count);
    const at::Tensor weight = weights.narrow(0, row, count).unsqueeze(1);
    const at::Tensor wide =
        (InSumType(part) - log_sum.narrow(0, row, count).unsqueeze(1)).exp_().mul_(weight);
    const LabelColumns label = ColumnsOf(labels.narrow(0, row, count), first, columns, wide);
    wide.scatter_add_(1, label.column, (weight * label.here).neg());
    part.copy_(wide);
  }
  return loss_sum;
}

at::Tensor WholeCrossEntropy(const at::Tensor& logits, const at::Tensor& labels,
                             const at::Tensor& weights, bool gradient) {
  if constexpr (kWithCuda) {
    if (fused::Takes(logits)) return fused::WholeCrossEntropy(logits, labels, weights, gradient);
  }
  const at::Tensor statistics = SoftmaxStatistics(logits, labels, weights, 0);
  return CrossEntropy(logits, statistics.unsqueeze(0), labels, weights, 0, gradient);
}

}  // namespace phalanx::model
