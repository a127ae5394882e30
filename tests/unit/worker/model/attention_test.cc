#include "worker/model/attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "worker/model/kernels.h"

namespace phalanx::model {
namespace {

constexpr int64_t kHeadSize = 6, kLength = 7, kBatch = 2;

// By definition, one query head at a time.
at::Tensor PlainAttention(const at::Tensor& qkv, const HeadMap& heads, bool causal) {
  const at::Tensor all = qkv.view({kBatch, kLength, -1, kHeadSize});
  std::vector<at::Tensor> outputs;
  for (int64_t kv = 0; kv < heads.kv_heads; ++kv) {
    for (int64_t head = heads.first_query[static_cast<size_t>(kv)];
         head < heads.first_query[static_cast<size_t>(kv) + 1]; ++head) {
      const at::Tensor query = all.select(2, head), key = all.select(2, heads.query_heads + kv);
      const at::Tensor value = all.select(2, heads.query_heads + heads.kv_heads + kv);
      at::Tensor scores =
          at::bmm(query, key.transpose(1, 2)) / std::sqrt(static_cast<double>(kHeadSize));
      if (causal)
        scores = scores.masked_fill(at::ones({kLength, kLength}, at::kBool).triu(1), -INFINITY);
      outputs.push_back(at::bmm(at::softmax(scores, -1), value));
    }
  }
  return at::cat(outputs, 2).flatten(0, 1);
}

struct Shards {
  plan::UnitRange query, kv;
  int64_t group;
  bool regular;
};

class AttentionTest : public testing::TestWithParam<Shards> {};

TEST_P(AttentionTest, ForwardAndBackward_EqualAutograd) {
  at::manual_seed(5);
  plan::TensorUnits units;
  units.query_heads = GetParam().query;
  units.kv_heads = GetParam().kv;
  const HeadMap heads = MakeHeadMap(units, GetParam().group, kHeadSize, at::kCPU);
  EXPECT_EQ(heads.regular, GetParam().regular);
  for (const bool causal : {false, true}) {
    at::Tensor qkv = at::randn({kBatch, kLength, heads.columns()}, at::kDouble);
    const at::Tensor upstream =
        at::randn({kBatch * kLength, heads.query_heads * kHeadSize}, at::kDouble);
    AttentionState state;
    const at::Tensor output = Attention(qkv, heads, causal, &state);
    const at::Tensor gradient = AttentionBackward(upstream, heads, causal, state);
    const at::Tensor leaf = qkv.clone().set_requires_grad(true);
    const at::Tensor expected = PlainAttention(leaf, heads, causal);
    expected.backward(upstream);
    EXPECT_LT((output - expected).abs().max().item<double>(), 1e-12);
    EXPECT_LT((gradient - leaf.grad()).abs().max().item<double>(), 1e-12);
    EXPECT_TRUE(at::equal(Attention(qkv, heads, causal, nullptr), output));

    const at::Tensor angles = at::rand({kLength, kHeadSize / 2}, at::kDouble) * 6;
    const at::Tensor turned =
        AttentionBackward(upstream, heads, causal, state, angles.cos(), angles.sin());
    Rotate(gradient.view({kBatch, kLength, -1, kHeadSize}), heads.query_heads + heads.kv_heads,
           angles.cos(), angles.sin(), /*inverse=*/true);
    EXPECT_TRUE(at::equal(turned, gradient));
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, AttentionTest,
                         testing::Values(Shards{{0, 4}, {0, 4}, 1, true},   // a KV head for each
                                         Shards{{0, 6}, {0, 2}, 3, true},   // whole groups
                                         Shards{{2, 2}, {0, 1}, 4, true},   // part of one group
                                         Shards{{2, 4}, {0, 2}, 4, true},   // 2 and 2 of two groups
                                         Shards{{3, 3}, {0, 2}, 4, false},  // 1 and 2
                                         Shards{{3, 7}, {1, 4}, 2, false},  // 1, 2, 2 and 2
                                         Shards{{5, 1}, {2, 1}, 2, true}));  // one head

}  // namespace
}  // namespace phalanx::model
