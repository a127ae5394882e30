// worker/model/attention.h: softmax attention, forward and backward, on whatever the device has.
//
// Heads: this rank has `query_heads` of which consecutive ones share a KV head. A rank may hold
// unequal numbers of query heads per KV head (its run of heads may begin and end inside a group);
// then keys and values are repeated per query head, else kernels that know grouped heads get them
// as they are.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/plan/units.h"

namespace phalanx::model {

// Which local KV head each local query head reads, and how. Immutable.
struct HeadMap {
  int64_t query_heads = 0, kv_heads = 0;
  int64_t head_size = 0;
  std::vector<int64_t>
      first_query;         // of each KV head, with one more entry for the end: [kv_heads + 1]
  bool regular = true;     // all KV heads serve equally many query heads
  at::Tensor kv_of_query;  // [query_heads] int64 on the device, where not regular
  // Gradients of equal operands are the same bits: flash attention, not cuDNN's, whose sums then
  // have one order.
  bool deterministic = false;

  // Width of the joint matrix: query, key and value rows.
  int64_t columns() const { return (query_heads + 2 * kv_heads) * head_size; }
};
HeadMap MakeHeadMap(const plan::TensorUnits& units, int64_t query_heads_per_kv_head,
                    int64_t head_size, at::Device device);

// What the backward pass needs.
struct AttentionState {
  at::Tensor query, key, value;  // [batch, heads, length, head_size], views into the joint matrix
  at::Tensor output;             // [batch, query heads, length, head_size]
  at::Tensor log_sum;
  at::Tensor seed, offset;  // of dropout that is not there; kernels want them back
  int64_t length = 0;
};

// `qkv` is [batch, length, columns], query rows, then key rows, then value rows; it is shared with
// the state. Returns [batch * length, query_heads * head_size]. `state` may be nullptr.
at::Tensor Attention(const at::Tensor& qkv, const HeadMap& heads, bool causal,
                     AttentionState* state);
// What that returned.
at::Tensor OutputOf(const AttentionState& state);
// The gradient of qkv, [batch, length, columns], from that of the output; with `cos` and `sin`
// (undefined: without), of qkv before its queries and keys were turned by Rotate. `largest` as in
// kernels.h.
at::Tensor AttentionBackward(const at::Tensor& output_gradient, const HeadMap& heads, bool causal,
                             const AttentionState& state, const at::Tensor& cos = {},
                             const at::Tensor& sin = {}, at::Tensor* largest = nullptr);

}  // namespace phalanx::model
