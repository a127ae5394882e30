#include "worker/model/attention.h"

#include <ATen/ATen.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "worker/model/cudnn_attention.h"
#include "worker/model/kernels.h"
#include "worker/model/one_order.h"

namespace phalanx::model {
namespace {

// Which pair of kernels serves a tensor.
enum class Kernel : uint8_t { kCpuFlash, kCudaCudnn, kCudaFlash, kCudaEfficient, kPlain };

// That of any batch and length.
Kernel GeneralKernel(const at::Tensor& tensor, int64_t head_size) {
  if (tensor.device().is_cpu()) return Kernel::kCpuFlash;
  if (!tensor.is_cuda()) return Kernel::kPlain;
  // Flash is for 16-bit types; both want rows of 16 bytes.
  if (at::isReducedFloatingType(tensor.scalar_type()) && head_size % 8 == 0 && head_size <= 256)
    return Kernel::kCudaFlash;
  if (tensor.scalar_type() == at::kFloat && head_size % 4 == 0) return Kernel::kCudaEfficient;
  return Kernel::kPlain;
}

bool KnowsGroups(Kernel kernel) {
  return kernel == Kernel::kCpuFlash || kernel == Kernel::kCudaFlash ||
         kernel == Kernel::kCudaCudnn;
}

CudnnShape CudnnShapeOf(const at::Tensor& tensor, const HeadMap& heads, bool causal, int64_t batch,
                        int64_t length) {
  return {.batch = batch,
          .length = length,
          .query_heads = heads.query_heads,
          .kv_heads = heads.regular ? heads.kv_heads : heads.query_heads,
          .head_size = heads.head_size,
          .causal = causal,
          .packed = heads.regular,
          .half = tensor.scalar_type() == at::kHalf,
          .device = static_cast<int>(tensor.get_device())};
}

// `tensor`: of the type and device.
Kernel KernelFor(const at::Tensor& tensor, const HeadMap& heads, bool causal, int64_t batch,
                 int64_t length) {
  const Kernel kernel = GeneralKernel(tensor, heads.head_size);
  if (kernel != Kernel::kCudaFlash || heads.deterministic) return kernel;
  const bool by_cudnn =
      CudnnTried(CudnnShapeOf(tensor, heads, causal, batch, length)).value_or(false);
  return by_cudnn ? Kernel::kCudaCudnn : kernel;
}

// Keys or values, one per query head.
at::Tensor Repeated(const at::Tensor& tensor, const HeadMap& heads) {
  if (heads.query_heads == heads.kv_heads) return tensor;
  if (!heads.regular) return tensor.index_select(1, heads.kv_of_query);
  const int64_t group = heads.query_heads / heads.kv_heads;
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape.insert(shape.begin() + 2, group);
  return tensor.unsqueeze(2).expand(shape).flatten(1, 2);
}

// The sum over the query heads of each KV head, [batch, kv_heads, length, head_size], of a gradient
// that has one for each: its own heads, where those are the KV heads.
at::Tensor SumGroups(const at::Tensor& gradient, const HeadMap& heads) {
  if (gradient.size(1) == heads.kv_heads) return gradient;
  std::vector<int64_t> shape = gradient.sizes().vec();
  shape[1] = heads.kv_heads;
  at::Tensor sums = at::empty(shape, gradient.options());
  for (int64_t head = 0; head < heads.kv_heads; ++head) {
    const int64_t first = heads.first_query[static_cast<size_t>(head)];
    const int64_t count = heads.first_query[static_cast<size_t>(head) + 1] - first;
    if (count == 1) {
      sums.select(1, head).copy_(gradient.select(1, first));
    } else {
      at::Tensor sum = sums.select(1, head);
      at::sum_out(sum, gradient.narrow(1, first, count), /*dim=*/at::IntArrayRef{1});
    }
  }
  return sums;
}

at::Tensor Probabilities(const at::Tensor& query, const at::Tensor& key, bool causal) {
  const at::ScalarType wide = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor scores = at::matmul(query, key.transpose(2, 3))
                          .to(wide)
                          .mul_(1.0 / std::sqrt(static_cast<double>(query.size(3))));
  if (causal) {
    const at::Tensor future =
        at::ones({query.size(2), query.size(2)}, query.options().dtype(at::kBool)).triu_(1);
    scores.masked_fill_(future, -INFINITY);
  }
  return at::softmax(scores, -1);
}

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Gradients PlainBackward(const at::Tensor& output_gradient, const AttentionState& state,
                        bool causal) {
  const at::Tensor probabilities = Probabilities(state.query, state.key, causal);
  const at::ScalarType type = state.query.scalar_type();
  const at::Tensor value_gradient =
      at::matmul(probabilities.to(type).transpose(2, 3), output_gradient);
  const at::Tensor upstream =
      at::matmul(output_gradient, state.value.transpose(2, 3)).to(probabilities.scalar_type());
  at::Tensor scores =
      probabilities * (upstream - (upstream * probabilities).sum(-1, /*keepdim=*/true));
  scores = scores.mul_(1.0 / std::sqrt(static_cast<double>(state.query.size(3)))).to(type);
  return {at::matmul(scores, state.key), at::matmul(scores.transpose(2, 3), state.query),
          value_gradient};
}

}  // namespace

HeadMap MakeHeadMap(const plan::TensorUnits& units, int64_t query_heads_per_kv_head,
                    int64_t head_size, at::Device device) {
  HeadMap heads;
  heads.query_heads = units.query_heads.count;
  heads.kv_heads = units.kv_heads.count;
  heads.head_size = head_size;
  std::vector<int64_t> kv_of_query;
  for (int64_t head = units.query_heads.first; head < units.query_heads.end(); ++head) {
    const int64_t kv = head / query_heads_per_kv_head - units.kv_heads.first;
    while (static_cast<int64_t>(heads.first_query.size()) <= kv) {
      heads.first_query.push_back(static_cast<int64_t>(kv_of_query.size()));
    }
    kv_of_query.push_back(kv);
  }
  heads.first_query.push_back(heads.query_heads);
  TORCH_CHECK(static_cast<int64_t>(heads.first_query.size()) == heads.kv_heads + 1,
              "the rank's KV heads are not those of its query heads");
  for (int64_t head = 0; head < heads.kv_heads; ++head) {
    const size_t at = static_cast<size_t>(head);
    const int64_t group = heads.first_query[at + 1] - heads.first_query[at];
    heads.regular = heads.regular && group * heads.kv_heads == heads.query_heads;
  }
  if (!heads.regular) heads.kv_of_query = at::tensor(kv_of_query, at::kLong).to(device);
  return heads;
}

namespace {

// Queries, keys and values as the kernel takes them.
void SplitHeads(Kernel kernel, const at::Tensor& qkv, const HeadMap& heads, AttentionState& s) {
  s.length = qkv.size(1);
  const at::Tensor all = qkv.view({qkv.size(0), s.length, -1, heads.head_size}).transpose(1, 2);
  s.query = all.narrow(1, 0, heads.query_heads);
  s.key = all.narrow(1, heads.query_heads, heads.kv_heads);
  s.value = all.narrow(1, heads.query_heads + heads.kv_heads, heads.kv_heads);
  if (!heads.regular || !KnowsGroups(kernel)) {
    s.key = Repeated(s.key, heads);
    s.value = Repeated(s.value, heads);
  }
}

at::Tensor AttentionBy(Kernel kernel, const at::Tensor& qkv, const HeadMap& heads, bool causal,
                       AttentionState* state) {
  AttentionState local;
  AttentionState& s = state == nullptr ? local : *state;
  SplitHeads(kernel, qkv, heads, s);
  switch (kernel) {
    case Kernel::kCpuFlash:
      std::tie(s.output, s.log_sum) =
          at::_scaled_dot_product_flash_attention_for_cpu(s.query, s.key, s.value, 0.0, causal);
      break;
    case Kernel::kCudaCudnn: {
      CudnnAttended attended = CudnnAttention(s.query, s.key, s.value, causal);
      s.output = std::move(attended.output);
      s.log_sum = std::move(attended.log_sum);
      s.seed = std::move(attended.seed);
      s.offset = std::move(attended.offset);
      break;
    }
    case Kernel::kCudaFlash: {
      auto result = at::_scaled_dot_product_flash_attention(s.query, s.key, s.value, 0.0, causal);
      s.output = std::get<0>(result);
      s.log_sum = std::get<1>(result);
      s.seed = std::get<6>(result);
      s.offset = std::get<7>(result);
      break;
    }
    case Kernel::kCudaEfficient:
      std::tie(s.output, s.log_sum, s.seed, s.offset) = at::_scaled_dot_product_efficient_attention(
          s.query, s.key, s.value, std::nullopt, /*compute_log_sumexp=*/state != nullptr, 0.0,
          causal);
      break;
    case Kernel::kPlain:
      s.output = at::matmul(Probabilities(s.query, s.key, causal).to(qkv.scalar_type()), s.value);
      break;
  }
  return OutputOf(s);
}

at::Tensor AttentionBackwardBy(Kernel kernel, const at::Tensor& output_gradient,
                               const HeadMap& heads, bool causal, const AttentionState& s,
                               const at::Tensor& cos, const at::Tensor& sin, at::Tensor* largest) {
  const int64_t batch = s.query.size(0);
  const at::Tensor upstream =
      output_gradient.view({batch, s.length, heads.query_heads, heads.head_size}).transpose(1, 2);
  at::Tensor query, key, value;
  const bool adds_up = kernel == Kernel::kCudaFlash || kernel == Kernel::kCudaEfficient;
  const OneOrder order(heads.deterministic && adds_up);
  switch (kernel) {
    case Kernel::kCudaCudnn:
      std::tie(query, key, value) = CudnnAttentionBackward(
          upstream, s.query, s.key, s.value, {s.output, s.log_sum, s.seed, s.offset}, causal);
      break;
    case Kernel::kCpuFlash:
      std::tie(query, key, value) = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          upstream, s.query, s.key, s.value, s.output, s.log_sum, 0.0, causal);
      break;
    case Kernel::kCudaFlash:
      std::tie(query, key, value) = at::_scaled_dot_product_flash_attention_backward(
          upstream, s.query, s.key, s.value, s.output, s.log_sum, {}, {}, s.length, s.length, 0.0,
          causal, s.seed, s.offset);
      break;
    case Kernel::kCudaEfficient:
      std::tie(query, key, value, std::ignore) =
          at::_scaled_dot_product_efficient_attention_backward(
              upstream, s.query, s.key, s.value, {}, s.output, s.log_sum, s.seed, s.offset, 0.0,
              {true, true, true, false}, causal);
      break;
    case Kernel::kPlain:
      std::tie(query, key, value) = PlainBackward(upstream, s, causal);
      break;
  }
  at::Tensor gradient = at::empty({batch, s.length, heads.columns()}, output_gradient.options());
  PackHeads(query, SumGroups(key, heads), SumGroups(value, heads), cos, sin,
            gradient.view({batch, s.length, -1, heads.head_size}), largest);
  return gradient;
}

// Norm of the difference, relative.
double Difference(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor wide = expected.to(at::kFloat);
  return ((actual.to(at::kFloat) - wide).norm() / wide.norm()).item<double>();
}

// "4 x 4096 of 32/8 heads of 128, causal".
std::string Words(const CudnnShape& shape) {
  return absl::StrCat(shape.batch, " x ", shape.length, " of ", shape.query_heads, "/",
                      shape.kv_heads, " heads of ", shape.head_size,
                      shape.causal ? ", causal" : "");
}

// The first time in the process alone: shapes that it holds for come again with each layout.
void WarnOnce(std::atomic<bool>& told, const CudnnShape& shape, absl::string_view why) {
  if (told.exchange(true)) return;
  spdlog::warn("flash attention, not cuDNN's, for {}: {}; others are not told", Words(shape),
               std::string(why));
}

}  // namespace

at::Tensor OutputOf(const AttentionState& state) {
  const at::Tensor& output = state.output;
  // The kernels keep the head dim next to the features, so this is a view but for the plain one.
  return output.transpose(1, 2).reshape(
      {output.size(0) * output.size(2), output.size(1) * output.size(3)});
}

at::Tensor Attention(const at::Tensor& qkv, const HeadMap& heads, bool causal,
                     AttentionState* state) {
  const Kernel kernel = KernelFor(qkv, heads, causal, qkv.size(0), qkv.size(1));
  return AttentionBy(kernel, qkv, heads, causal, state);
}

void PrepareAttention(const HeadMap& heads, bool causal, int64_t batch, int64_t length,
                      const at::TensorOptions& options) {
  // Two ways of rounding stay far below; a mask that is wrong does not.
  constexpr double kDifferenceMax = 0.05;
  const at::Tensor like = at::empty({0}, options);
  if (GeneralKernel(like, heads.head_size) != Kernel::kCudaFlash || heads.deterministic) return;
  const CudnnShape shape = CudnnShapeOf(like, heads, causal, batch, length);
  if (!CudnnIsWanted(shape) || CudnnTried(shape).has_value()) return;
  static std::atomic<bool> told_of_room, told_of_refusal;
  if (!CudnnHasRoom())
    return WarnOnce(told_of_room, shape, "as many shapes as are kept have been tried");
  const at::Tensor qkv = at::empty({batch, length, heads.columns()}, options);
  {
    AttentionState views;
    SplitHeads(Kernel::kCudaCudnn, qkv, heads, views);
    if (!CudnnTakes(views.query, views.key, views.value, causal))
      return WarnOnce(told_of_refusal, shape, "cuDNN does not take it");
  }
  qkv.normal_();
  const at::Tensor upstream =
      at::randn({batch * length, heads.query_heads * heads.head_size}, options);
  const auto both = [&](Kernel kernel) {
    AttentionState state;
    const at::Tensor output = AttentionBy(kernel, qkv, heads, causal, &state);
    return std::pair(output,
                     AttentionBackwardBy(kernel, upstream, heads, causal, state, {}, {}, nullptr));
  };
  std::pair<at::Tensor, at::Tensor> actual;
  try {
    actual = both(Kernel::kCudaCudnn);
  } catch (const c10::OutOfMemoryError&) {
    throw;  // flash would need as much
  } catch (const c10::Error& error) {
    spdlog::warn("flash attention, not cuDNN's, for {}: {}", Words(shape),
                 error.what_without_backtrace());
    return SetCudnnTried(shape, false);
  }
  const auto expected = both(Kernel::kCudaFlash);
  const double output = Difference(actual.first, expected.first);
  const double gradient = Difference(actual.second, expected.second);
  const bool agree = output <= kDifferenceMax && gradient <= kDifferenceMax;  // NaN does not
  if (!agree) {
    spdlog::warn(
        "flash attention, not cuDNN's, for {}: outputs differ by {:.3g}, gradients by {:.3g}",
        Words(shape), output, gradient);
  }
  SetCudnnTried(shape, agree);
}

at::Tensor AttentionBackward(const at::Tensor& output_gradient, const HeadMap& heads, bool causal,
                             const AttentionState& state, const at::Tensor& cos,
                             const at::Tensor& sin, at::Tensor* largest) {
  const Kernel kernel =
      KernelFor(output_gradient, heads, causal, state.query.size(0), state.length);
  return AttentionBackwardBy(kernel, output_gradient, heads, causal, state, cos, sin, largest);
}

}  // namespace phalanx::model
