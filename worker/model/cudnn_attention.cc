#include "worker/model/cudnn_attention.h"

#include <ATen/ATen.h>
#include <ATen/native/transformers/cuda/sdp_utils.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "worker/device/cuda_device.h"
#include "worker/model/prepared.h"

namespace phalanx::model {
namespace {

// Heads are at most as large as flash attention's, which stands in for what cuDNN refuses and
// judges what it computes.
constexpr int64_t kHeadSizeMax = 256, kHeadSizeMultiple = 8, kBatchMax = 65535;

// By shape, of this thread, whose plans LibTorch keeps.
std::map<CudnnShape, bool>& Tried() {
  thread_local std::map<CudnnShape, bool> tried;
  return tried;
}

// What LibTorch keeps its plans by. The first time in this thread it makes one.
void CountPlan(bool backward, const at::Tensor& query, const at::Tensor& key,
               const at::Tensor& value, bool causal) {
  constexpr size_t kDims = 4;
  using Key = std::array<int64_t, 4 + 6 * kDims>;
  thread_local std::set<Key> known;
  Key of = {backward, causal, static_cast<int64_t>(query.scalar_type()), query.get_device()};
  auto to = of.begin() + 4;
  for (const at::Tensor* tensor : {&query, &key, &value}) {
    to = std::copy_n(tensor->sizes().begin(), kDims, to);
    to = std::copy_n(tensor->strides().begin(), kDims, to);
  }
  if (known.insert(of).second) CountPreparation(Preparation::kAttentionPlan);
}

}  // namespace

bool CudnnIsWanted(const CudnnShape& shape) {
  return shape.batch > 0 && shape.batch <= kBatchMax && shape.length > 1 &&
         shape.head_size <= kHeadSizeMax && shape.head_size % kHeadSizeMultiple == 0;
}

bool CudnnTakes(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                bool causal) {
  if constexpr (device::kWithCuda) {
    const sdp::sdp_params parameters{.query = query,
                                     .key = key,
                                     .value = value,
                                     .attn_mask = std::nullopt,
                                     .dropout = 0,
                                     .is_causal = causal,
                                     .enable_gqa = true};
    return sdp::can_use_cudnn_attention(parameters, /*debug=*/false);
  }
  return false;
}

std::optional<bool> CudnnTried(const CudnnShape& shape) {
  const auto found = Tried().find(shape);
  if (found == Tried().end()) return std::nullopt;
  return found->second;
}

bool CudnnHasRoom() { return Tried().size() < kCudnnShapesMax; }

void SetCudnnTried(const CudnnShape& shape, bool computes) {
  CountPreparation(Preparation::kAttentionTrial);
  Tried()[shape] = computes;
}

CudnnAttended CudnnAttention(const at::Tensor& query, const at::Tensor& key,
                             const at::Tensor& value, bool causal) {
  // Without the sums it would be another plan.
  auto result = at::_scaled_dot_product_cudnn_attention(query, key, value, std::nullopt,
                                                        /*compute_log_sumexp=*/true, 0.0, causal);
  CountPlan(/*backward=*/false, query, key, value, causal);
  return {std::get<0>(result), std::get<1>(result), std::get<6>(result), std::get<7>(result)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> CudnnAttentionBackward(
    const at::Tensor& output_gradient, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const CudnnAttended& attended, bool causal) {
  auto gradients = at::_scaled_dot_product_cudnn_attention_backward(
      output_gradient, query, key, value, attended.output, attended.log_sum, attended.seed,
      attended.offset, /*attn_bias=*/{}, /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, query.size(2),
      key.size(2), 0.0, causal);
  CountPlan(/*backward=*/true, query, key, value, causal);
  return gradients;
}

}  // namespace phalanx::model
