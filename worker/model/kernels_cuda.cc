#include "worker/model/kernels_cuda.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <optional>

#include "worker/model/cuda_kernels.h"
#include "worker/model/fp8_cuda.h"

namespace phalanx::model::fused {
namespace {

cuda::Stream Stream() { return c10::cuda::getCurrentCUDAStream().stream(); }
void CheckLaunch() { C10_CUDA_KERNEL_LAUNCH_CHECK(); }

cuda::Type TypeOf(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 ? cuda::Type::kBf16 : cuda::Type::kFp32;
}
// Null where undefined.
const void* Data(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  TORCH_CHECK(tensor.is_contiguous(), "a kernel needs contiguous rows");
  return tensor.const_data_ptr();
}
void* MutableData(const at::Tensor& tensor) { return const_cast<void*>(Data(tensor)); }
template <typename T>
const T* In(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}
template <typename T>
T* Out(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<T>() : nullptr;
}
// Room for fp32.
at::Tensor Sums(at::IntArrayRef shape, const at::Tensor& like) {
  return at::empty(shape, like.options().dtype(at::kFloat));
}

// Where a kernel is to find a largest magnitude: null where nobody asks.
uint32_t* FindLargest(at::Tensor* largest) {
  if (largest == nullptr) return nullptr;
  *largest = ClearedScalar();
  return static_cast<uint32_t*>(largest->mutable_data_ptr());
}

cuda::Gelu KindOf(GeluKind kind) {
  switch (kind) {
    case GeluKind::kQuick:
      return cuda::Gelu::kQuick;
    case GeluKind::kErf:
      return cuda::Gelu::kErf;
    case GeluKind::kTanh:
      break;
  }
  return cuda::Gelu::kTanh;
}

cuda::CrossEntropyArguments ArgumentsOf(const at::Tensor& logits, const at::Tensor& labels,
                                        const at::Tensor& weights, int64_t first, bool gradient) {
  cuda::CrossEntropyArguments arguments{};
  arguments.rows = logits.size(0);
  arguments.columns = logits.size(1);
  arguments.logits = MutableData(logits);
  arguments.labels = In<int64_t>(labels);
  arguments.weights = In<float>(weights);
  arguments.first = first;
  arguments.gradient = gradient;
  return arguments;
}

// What the caller does not know of `arguments`: types, tensors and scratch.
void AddSortedRows(const at::Tensor& sum, cuda::SortedRowsArguments arguments,
                   const at::Tensor& values) {
  const at::Tensor partials =
      Sums({2 * cuda::AddRowsChunks(arguments.rows), arguments.features}, sum);
  arguments.values = Data(values);
  arguments.partials = Out<float>(partials);
  arguments.sum = MutableData(sum);
  cuda::AddSortedRows(TypeOf(sum), TypeOf(values), arguments, Stream());
  CheckLaunch();
}

}  // namespace

bool Takes(const at::Tensor& tensor) {
  return tensor.is_cuda() &&
         (tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kFloat);
}

bool TakesRows(const at::Tensor& rows) {
  return Takes(rows) && rows.size(1) <= cuda::NormFeaturesMax(TypeOf(rows), rows.size(1));
}

LayerNormed Norm(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& branch_bias,
                 const at::Tensor& weight, const at::Tensor& bias, double epsilon,
                 at::Tensor* largest) {
  LayerNormed normed;
  normed.y = at::empty_like(x);
  normed.rstd = Sums({x.size(0), 1}, x);
  if (bias.defined()) normed.mean = Sums({x.size(0), 1}, x);
  cuda::NormArguments arguments{};
  arguments.rows = x.size(0);
  arguments.features = x.size(1);
  arguments.x = Data(x);
  arguments.branch = MutableData(branch);
  arguments.branch_bias = Data(branch_bias);
  arguments.weight = Data(weight);
  arguments.bias = Data(bias);
  arguments.epsilon = static_cast<float>(epsilon);
  arguments.y = MutableData(normed.y);
  arguments.mean = Out<float>(normed.mean);
  arguments.rstd = Out<float>(normed.rstd);
  arguments.largest = FindLargest(largest);
  cuda::Norm(TypeOf(x), arguments, Stream());
  CheckLaunch();
  return normed;
}

NormGradient NormBackward(const at::Tensor& output_gradient, const at::Tensor& x,
                          const at::Tensor& mean, const at::Tensor& rstd, const at::Tensor& weight,
                          const at::Tensor& residual_gradient, bool column_sums,
                          at::Tensor* largest) {
  const int64_t rows = x.size(0), features = x.size(1);
  const bool sums_here = column_sums && features <= cuda::NormSumsMax(TypeOf(x), features);
  const int kinds = !mean.defined() ? 1 : sums_here ? 4 : 2;
  NormGradient gradient;
  gradient.x = at::empty_like(x);
  const at::Tensor sums = Sums({kinds, features}, x);
  const at::Tensor partials = Sums({cuda::NormPartials(rows), kinds, features}, x);
  cuda::NormBackwardArguments arguments{};
  arguments.rows = rows;
  arguments.features = features;
  arguments.output_gradient = Data(output_gradient);
  arguments.x = Data(x);
  arguments.mean = In<float>(mean);
  arguments.rstd = In<float>(rstd);
  arguments.weight = Data(weight);
  arguments.residual = Data(residual_gradient);
  arguments.input_gradient = MutableData(gradient.x);
  arguments.kinds = kinds;
  arguments.partials = Out<float>(partials);
  arguments.sums = Out<float>(sums);
  arguments.largest = FindLargest(largest);
  cuda::NormBackward(TypeOf(x), arguments, Stream());
  CheckLaunch();
  gradient.weight = sums[0];
  if (kinds > 1) gradient.bias = sums[1];
  if (kinds > 2) {
    if (residual_gradient.defined()) gradient.residual_sum = sums[2];
    gradient.x_sum = sums[3];
  }
  return gradient;
}

void AddBiasAndResidual(const at::Tensor& branch, const at::Tensor& bias,
                        const at::Tensor& residual) {
  cuda::AddBiasAndResidual(TypeOf(branch), branch.size(0), branch.size(1), Data(bias),
                           Data(residual), MutableData(branch), Stream());
  CheckLaunch();
}

void AddColumnSums(const at::Tensor& sum, const at::Tensor& rows) {
  const int64_t count = rows.size(0), features = rows.size(1);
  const at::Tensor partials = Sums({cuda::ColumnPartials(count), features}, sum);
  cuda::AddColumnSums(TypeOf(rows), count, features, rows.stride(0), rows.const_data_ptr(),
                      Out<float>(partials), Out<float>(sum), Stream());
  CheckLaunch();
}

void Rotate(const at::Tensor& x, int64_t heads, const at::Tensor& cos, const at::Tensor& sin,
            bool inverse) {
  cuda::RotateArguments arguments{};
  arguments.rows = x.size(0) * x.size(1);
  arguments.length = x.size(1);
  arguments.heads = heads;
  arguments.half = x.size(3) / 2;
  arguments.from = arguments.to = x.mutable_data_ptr();
  arguments.from_row = arguments.to_row = x.stride(1);
  arguments.from_head = arguments.to_head = x.stride(2);
  arguments.cos = In<float>(cos);
  arguments.sin = In<float>(sin);
  arguments.inverse = inverse;
  cuda::Rotate(TypeOf(x), arguments, Stream());
  CheckLaunch();
}

void PackHeads(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& packed,
               at::Tensor* largest) {
  const auto part = [](const at::Tensor& heads) {
    return cuda::HeadsPart{heads.const_data_ptr(), heads.size(1), heads.stride(0), heads.stride(2),
                           heads.stride(1)};
  };
  cuda::PackHeadsArguments arguments{};
  arguments.rows = packed.size(0) * packed.size(1);
  arguments.length = packed.size(1);
  arguments.half = packed.size(3) / 2;
  arguments.parts[0] = part(query);
  arguments.parts[1] = part(key);
  arguments.parts[2] = part(value);
  arguments.to = MutableData(packed);
  arguments.cos = In<float>(cos);
  arguments.sin = In<float>(sin);
  arguments.largest = FindLargest(largest);
  cuda::PackHeads(TypeOf(packed), arguments, Stream());
  CheckLaunch();
}

at::Tensor SwiGlu(const at::Tensor& gate_up, int64_t block, at::Tensor* largest) {
  const at::Tensor y = at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
  cuda::SwiGlu(TypeOf(gate_up), y.numel() / block, block, Data(gate_up), MutableData(y),
               FindLargest(largest), Stream());
  CheckLaunch();
  return y;
}

at::Tensor SwiGluBackward(const at::Tensor& output_gradient, const at::Tensor& gate_up,
                          int64_t block, at::Tensor* largest, SwiGluAgain* again) {
  at::Tensor gradient = at::empty_like(gate_up);
  cuda::Activated activated{};
  if (again != nullptr) {
    again->y = at::empty_like(output_gradient);
    activated = {MutableData(again->y), FindLargest(again->largest)};
  }
  cuda::SwiGluBackward(TypeOf(gate_up), output_gradient.numel() / block, block,
                       Data(output_gradient), Data(gate_up), MutableData(gradient),
                       FindLargest(largest), activated, Stream());
  CheckLaunch();
  return gradient;
}

at::Tensor Gelu(GeluKind kind, const at::Tensor& x) {
  at::Tensor y = at::empty_like(x);
  cuda::GeluForward(TypeOf(x), KindOf(kind), x.numel(), Data(x), MutableData(y), Stream());
  CheckLaunch();
  return y;
}

GeluGradient GeluBackward(GeluKind kind, const at::Tensor& output_gradient, const at::Tensor& x,
                          bool column_sums) {
  const int64_t rows = x.size(0), features = x.size(1);
  GeluGradient gradient;
  gradient.x = at::empty_like(x);
  at::Tensor partials;
  if (column_sums) {
    gradient.sum = Sums({features}, x);
    partials = Sums({cuda::ColumnPartials(rows), features}, x);
  }
  cuda::GeluBackward(TypeOf(x), KindOf(kind), rows, features, Data(output_gradient), Data(x),
                     MutableData(gradient.x), Out<float>(partials), Out<float>(gradient.sum),
                     Stream());
  CheckLaunch();
  return gradient;
}

at::Tensor TakeRows(const at::Tensor& table, const at::Tensor& index, const at::Tensor& keep) {
  at::Tensor y = at::empty({index.size(0), table.size(1)}, table.options());
  cuda::TakeRows(TypeOf(table), index.size(0), table.size(1), Data(table), In<int64_t>(index),
                 In<bool>(keep), MutableData(y), Stream());
  CheckLaunch();
  return y;
}

void AddRows(const at::Tensor& sum, const at::Tensor& index, const at::Tensor& keep,
             const at::Tensor& values) {
  const int64_t rows = index.size(0), features = sum.size(1);
  if (rows == 0) return;
  const at::Tensor keys = at::empty({rows}, index.options().dtype(at::kInt));
  cuda::MakeKeys(rows, In<int64_t>(index), In<bool>(keep), Out<int32_t>(keys), Stream());
  CheckLaunch();
  const auto [sorted, order] = at::sort(keys, /*stable=*/std::optional<bool>(true));
  AddSortedRows(sum,
                {.rows = rows,
                 .features = features,
                 .keys = In<int32_t>(sorted),
                 .order = In<int64_t>(order),
                 .first = 0,
                 .end = cuda::kNoRow},
                values);
}

at::Tensor EmbedRows(const at::Tensor& table, int64_t first, const TokenRows& rows,
                     const at::Tensor& items) {
  at::Tensor y = at::empty({rows.source.size(0), table.size(1)}, table.options());
  const at::Tensor from = items.defined() ? items.contiguous() : items;
  TORCH_CHECK(!from.defined() || from.scalar_type() == table.scalar_type(),
              "rows of items are of the table's type");
  cuda::EmbedRows(TypeOf(table),
                  {.rows = rows.source.size(0),
                   .features = table.size(1),
                   .table = Data(table),
                   .first = first,
                   .count = table.size(0),
                   .items = Data(from),
                   .source = In<int64_t>(rows.source),
                   .next = In<int64_t>(rows.next),
                   .y = MutableData(y)},
                  Stream());
  CheckLaunch();
  return y;
}

void AddTokenRows(const at::Tensor& sum, int64_t first, const at::Tensor& tokens,
                  const at::Tensor& order, const at::Tensor& values) {
  if (tokens.size(0) == 0) return;
  AddSortedRows(sum,
                {.rows = tokens.size(0),
                 .features = sum.size(1),
                 .keys = In<int32_t>(tokens),
                 .order = In<int64_t>(order),
                 .first = static_cast<int32_t>(first),
                 .end = static_cast<int32_t>(first + sum.size(0))},
                values);
}

at::Tensor SoftmaxStatistics(const at::Tensor& logits, const at::Tensor& labels,
                             const at::Tensor& weights, int64_t first) {
  at::Tensor statistics = Sums({logits.size(0), kStatistics}, logits);
  cuda::SoftmaxStatistics(TypeOf(logits), ArgumentsOf(logits, labels, weights, first, false),
                          Out<float>(statistics), Stream());
  CheckLaunch();
  return statistics;
}

at::Tensor CrossEntropy(const at::Tensor& logits, const at::Tensor& gathered,
                        const at::Tensor& labels, const at::Tensor& weights, int64_t first,
                        bool gradient) {
  const int64_t rows = logits.size(0);
  at::Tensor loss_sum = Sums({}, logits);
  const at::Tensor losses = Sums({rows}, logits), scales = Sums({rows, 2}, logits);
  cuda::CrossEntropyArguments arguments = ArgumentsOf(logits, labels, weights, first, gradient);
  arguments.losses = Out<float>(losses);
  arguments.loss_sum = Out<float>(loss_sum);
  cuda::CrossEntropy(TypeOf(logits), arguments, gathered.size(0), In<float>(gathered),
                     Out<float>(scales), Stream());
  CheckLaunch();
  return loss_sum;
}

at::Tensor WholeCrossEntropy(const at::Tensor& logits, const at::Tensor& labels,
                             const at::Tensor& weights, bool gradient) {
  at::Tensor loss_sum = Sums({}, logits);
  const int64_t rows = logits.size(0);
  const at::Tensor losses = Sums({rows}, logits), scratch = Sums({rows, kStatistics + 2}, logits);
  cuda::CrossEntropyArguments arguments = ArgumentsOf(logits, labels, weights, 0, gradient);
  arguments.losses = Out<float>(losses);
  arguments.loss_sum = Out<float>(loss_sum);
  cuda::WholeCrossEntropy(TypeOf(logits), arguments, Out<float>(scratch), Stream());
  CheckLaunch();
  return loss_sum;
}

}  // namespace phalanx::model::fused
