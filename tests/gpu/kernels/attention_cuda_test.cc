// Attention by cuDNN against its definition in fp64, and which shapes it is asked for.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include <tuple>
#include <utility>

#include "worker/model/attention.h"
#include "worker/model/cudnn_attention.h"
#include "worker/model/prepared.h"

namespace phalanx::model {
namespace {

struct Heads {
  plan::UnitRange query, kv;
  int64_t group;
};

HeadMap MapOf(const Heads& heads, int64_t head_size) {
  plan::TensorUnits units;
  units.query_heads = heads.query;
  units.kv_heads = heads.kv;
  return MakeHeadMap(units, heads.group, head_size, at::kCUDA);
}

struct Results {
  at::Tensor output, gradient;
};

Results BothPasses(const at::Tensor& qkv, const at::Tensor& upstream, const HeadMap& heads,
                   bool causal) {
  AttentionState state;
  Results results;
  results.output = Attention(qkv, heads, causal, &state);
  results.gradient = AttentionBackward(upstream, heads, causal, state);
  return results;
}

double ErrorOf(const at::Tensor& actual, const at::Tensor& exact) {
  return ((actual.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
}

class AttentionCudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
    at::globalContext().lazyInitDevice(at::kCUDA);
    at::manual_seed(17);
  }
  static at::TensorOptions Bf16() { return at::TensorOptions(at::kCUDA).dtype(at::kBFloat16); }
  static CudnnShape ShapeOf(int64_t batch, int64_t length, const HeadMap& heads, bool causal) {
    return {.batch = batch,
            .length = length,
            .query_heads = heads.query_heads,
            .kv_heads = heads.regular ? heads.kv_heads : heads.query_heads,
            .head_size = heads.head_size,
            .causal = causal,
            .packed = heads.regular,
            .half = false,
            .device = c10::cuda::current_device()};
  }
};

class CudnnAttentionTest
    : public AttentionCudaTest,
      public testing::WithParamInterface<std::tuple<Heads, int64_t, int64_t, bool>> {};

TEST_P(CudnnAttentionTest, BothPasses_FollowTheirDefinition) {
  const auto& [some, head_size, length, causal] = GetParam();
  constexpr int64_t kBatch = 2;
  const HeadMap heads = MapOf(some, head_size);
  const at::Tensor qkv = at::randn({kBatch, length, heads.columns()}, Bf16());
  const at::Tensor upstream = at::randn({kBatch * length, heads.query_heads * head_size}, Bf16());
  const Results exact = BothPasses(qkv.to(at::kDouble), upstream.to(at::kDouble), heads, causal);
  const Results flash = BothPasses(qkv, upstream, heads, causal);
  const CudnnShape shape = ShapeOf(kBatch, length, heads, causal);
  ASSERT_FALSE(CudnnTried(shape).has_value()) << "no shape is tried by its passes";

  PrepareAttention(heads, causal, kBatch, length, Bf16());
  ASSERT_EQ(CudnnTried(shape), true);
  const Results actual = BothPasses(qkv, upstream, heads, causal);
  EXPECT_LT(ErrorOf(actual.output, exact.output), 4e-3);
  EXPECT_LT(ErrorOf(actual.gradient, exact.gradient), 1e-2);
  EXPECT_LT(ErrorOf(actual.output, exact.output), 1.5 * ErrorOf(flash.output, exact.output));
  EXPECT_LT(ErrorOf(actual.gradient, exact.gradient),
            1.5 * ErrorOf(flash.gradient, exact.gradient));

  // The backward pass adds up in any order; those sums are in fp32.
  const Results again = BothPasses(qkv, upstream, heads, causal);
  EXPECT_TRUE(at::equal(again.output, actual.output));
  EXPECT_LT(ErrorOf(again.gradient, actual.gradient.to(at::kDouble)), 2e-3);
  RecordProperty("gradient_is_the_same_again", at::equal(again.gradient, actual.gradient));
  // An evaluation has the same plan, and so the same output.
  EXPECT_TRUE(at::equal(Attention(qkv, heads, causal, nullptr), actual.output));
}

INSTANTIATE_TEST_SUITE_P(Heads, CudnnAttentionTest,
                         testing::Combine(testing::Values(Heads{{0, 32}, {0, 8}, 4},
                                                          Heads{{0, 4}, {0, 4}, 1}),
                                          testing::Values(64, 80, 96, 128),
                                          testing::Values(577, 1024), testing::Bool()));
// One head; two query heads of one group and one of another; lengths below a tile and odd.
INSTANTIATE_TEST_SUITE_P(
    Shards, CudnnAttentionTest,
    testing::Combine(testing::Values(Heads{{5, 1}, {2, 1}, 2}, Heads{{3, 3}, {0, 2}, 4}),
                     testing::Values(64, 128), testing::Values(37, 264), testing::Bool()));

// Above 128 it depends on device and version: LibTorch says what is tried, and the trial which
// kernels compute.
TEST_F(AttentionCudaTest, LargeHeads_AreTriedWhereLibTorchLetsCudnn) {
  constexpr int64_t kBatch = 2, kLength = 192;
  for (const int64_t head_size : {136, 192, 256}) {
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(testing::Message() << "heads of " << head_size << ", causal " << causal);
      const HeadMap heads = MapOf({{0, 8}, {0, 2}, 4}, head_size);
      const at::Tensor qkv = at::randn({kBatch, kLength, heads.columns()}, Bf16());
      const at::Tensor upstream =
          at::randn({kBatch * kLength, heads.query_heads * head_size}, Bf16());
      const at::Tensor all = qkv.view({kBatch, kLength, -1, head_size}).transpose(1, 2);
      const bool taken =
          CudnnTakes(all.narrow(1, 0, 8), all.narrow(1, 8, 2), all.narrow(1, 10, 2), causal);
      PrepareAttention(heads, causal, kBatch, kLength, Bf16());
      EXPECT_EQ(CudnnTried(ShapeOf(kBatch, kLength, heads, causal)).has_value(), taken);
      const Results exact =
          BothPasses(qkv.to(at::kDouble), upstream.to(at::kDouble), heads, causal);
      const Results actual = BothPasses(qkv, upstream, heads, causal);
      EXPECT_LT(ErrorOf(actual.output, exact.output), 4e-3);
      EXPECT_LT(ErrorOf(actual.gradient, exact.gradient), 1e-2);
    }
  }
}

TEST_F(AttentionCudaTest, ShapeThatWasNotTried_IsFlashAttentions) {
  const HeadMap heads = MapOf({{0, 8}, {0, 2}, 4}, 64);
  PrepareAttention(heads, true, 2, 128, Bf16());
  ASSERT_EQ(CudnnTried(ShapeOf(2, 128, heads, true)), true);
  for (const int64_t length : {128, 136}) {
    const at::Tensor qkv = at::randn({2, length, heads.columns()}, Bf16());
    AttentionState state;
    Attention(qkv, heads, true, &state);
    // cuDNN's sums have a dim more.
    EXPECT_EQ(state.log_sum.dim(), length == 128 ? 4 : 3);
    EXPECT_EQ(CudnnTried(ShapeOf(2, length, heads, true)).has_value(), length == 128);
  }
}

// By flash attention, and in fp32 by the memory-efficient kernel; keys long enough to be split.
TEST_F(AttentionCudaTest, Deterministic_GradientsAreTheSameBitsAgain) {
  for (const int64_t head_size : {64, 80, 96, 128}) {
    HeadMap heads = MapOf({{0, 8}, {0, 2}, 4}, head_size);
    heads.deterministic = true;
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
      for (const auto& [length, causal] : {std::pair{int64_t{2048}, true}, {577, false}}) {
        const at::TensorOptions options = at::TensorOptions(at::kCUDA).dtype(type);
        PrepareAttention(heads, causal, 1, length, options);
        EXPECT_FALSE(CudnnTried(ShapeOf(1, length, heads, causal)).has_value());
        const at::Tensor qkv = at::randn({1, length, heads.columns()}, options);
        const at::Tensor upstream = at::randn({length, 8 * head_size}, options);
        const Results first = BothPasses(qkv, upstream, heads, causal);
        for (int again = 0; again < 5; ++again) {
          const Results next = BothPasses(qkv, upstream, heads, causal);
          EXPECT_TRUE(at::equal(next.output, first.output)) << head_size << type << length;
          EXPECT_TRUE(at::equal(next.gradient, first.gradient)) << head_size << type << length;
        }
        heads.deterministic = false;
        const Results other = BothPasses(qkv, upstream, heads, causal);
        heads.deterministic = true;
        EXPECT_LT(ErrorOf(first.gradient, other.gradient.to(at::kDouble)), 2e-3);
      }
    }
  }
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
}

TEST_F(AttentionCudaTest, PlansOfAShape_AreMadeOnce) {
  const HeadMap heads = MapOf({{0, 8}, {0, 2}, 4}, 64);
  const PreparationCounts before = CountPreparations();
  PrepareAttention(heads, true, 3, 144, Bf16());
  ASSERT_EQ(CudnnTried(ShapeOf(3, 144, heads, true)), true);
  const PreparationCounts made = CountPreparations();
  EXPECT_EQ(made.attention_trials, before.attention_trials + 1);
  EXPECT_EQ(made.attention_plans, before.attention_plans + 2);
  PrepareAttention(heads, true, 3, 144, Bf16());
  const at::Tensor qkv = at::randn({3, 144, heads.columns()}, Bf16());
  BothPasses(qkv, at::randn({3 * 144, 8 * 64}, Bf16()), heads, true);
  EXPECT_TRUE(CountPreparations() == made);
}

TEST_F(AttentionCudaTest, TypesAndHeadsThatCudnnDoesNotTake_AreNotTried) {
  const HeadMap small = MapOf({{0, 2}, {0, 2}, 1}, 20), large = MapOf({{0, 2}, {0, 2}, 1}, 264);
  for (const HeadMap* heads : {&small, &large}) {
    PrepareAttention(*heads, false, 1, 64, Bf16());
    EXPECT_FALSE(CudnnTried(ShapeOf(1, 64, *heads, false)).has_value());
  }
  const HeadMap heads = MapOf({{0, 2}, {0, 2}, 1}, 64);
  PrepareAttention(heads, false, 1, 72, at::TensorOptions(at::kCUDA));
  EXPECT_FALSE(CudnnTried(ShapeOf(1, 72, heads, false)).has_value());
}

}  // namespace
}  // namespace phalanx::model
