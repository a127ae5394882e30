// Stages on any layout give the plain model's loss and gradients, in fp64 to 1e-9.
#include <gtest/gtest.h>

#include <string>

#include "tests/oracle/model_harness.h"
#include "tests/oracle/random_microbatch.h"
#include "tests/support/specs.h"

namespace phalanx::oracle {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using support::Regressor;

TEST(StageTest, Language_OneRank_EqualsPlainModel) {
  ExpectSameAsPlain(AJob().Module("language", Llama()));
}

// 8 query heads over 2 KV heads, 8 MLP blocks, 12 vocabulary blocks: width 3 cuts inside a group.
TEST(StageTest, Language_EachTensorWidth_EqualsPlainModel) {
  for (const int32_t width : {2, 3, 4, 5, 8}) {
    SCOPED_TRACE(width);
    ExpectSameAsPlain(AJob().Module("language", Llama(), {.tp = width}));
  }
}

TEST(StageTest, Language_OddHeadsPerKvHead_EqualsPlainModel) {
  const job::Architecture architecture = Llama({.hidden_size = 48, .heads = 6, .kv_heads = 2});
  for (const int32_t width : {1, 2, 4, 5}) {
    SCOPED_TRACE(width);
    ExpectSameAsPlain(AJob().Module("language", architecture, {.tp = width}));
  }
}

TEST(StageTest, Language_HeadPerKvHead_EqualsPlainModel) {
  ExpectSameAsPlain(AJob().Module("language", Llama({.heads = 4, .kv_heads = 4}), {.tp = 3}));
}

// Last blocks of MLP and vocabulary are short: 61 = 7 * 8 + 5, 93 = 11 * 8 + 5.
TEST(StageTest, Language_PaddedBlocks_EqualPlainModel) {
  const job::Architecture architecture = Llama({.mlp_size = 61, .vocabulary = 93});
  for (const int32_t width : {1, 3}) {
    SCOPED_TRACE(width);
    ExpectSameAsPlain(AJob().Module("language", architecture, {.tp = width}));
  }
}

TEST(StageTest, Language_TiedHead_SumsBothEnds) {
  const job::Architecture architecture = Llama({.vocabulary = 93, .tied_head = true});
  ExpectSameAsPlain(AJob().Module("language", architecture, {.tp = 2}));
  ExpectSameAsPlain(AJob().Module("language", architecture, {.tp = 2, .pp = 2}));
}

// Two parts on each rank. With one stage, and folded, one rank has both ends of a tied head.
TEST(StageTest, Language_Chunks_EqualPlainModel) {
  for (const auto schedule : {job::ScheduleName::kInterleaved, job::ScheduleName::kZeroBubbleV}) {
    for (const int32_t width : {1, 2, 3}) {
      for (const int32_t stages : {1, 2}) {
        SCOPED_TRACE(testing::Message() << "tp " << width << " pp " << stages);
        ExpectSameAsPlain(
            AJob()
                .Module("language", Llama({.tied_head = true}), {.tp = width, .pp = stages})
                .Module("regressor", Regressor({.layers = 1}))
                .Edge("language", "regressor", {.projector = 40})
                .Schedule(schedule, 2));
      }
    }
  }
}

TEST(StageTest, Language_SplitLayers_EqualPlainModel) {
  ExpectSameAsPlain(AJob().Module("language", Llama(), {.pp = 4}));
  ExpectSameAsPlain(AJob().Module("language", Llama(), {.tp = 2, .pp = 2, .layers = {1, 3}}));
}

TEST(StageTest, VisionAndLanguage_EachWidth_EqualsPlainModel) {
  for (const auto& [vision, language] : {std::pair{1, 1}, {2, 2}, {3, 2}, {4, 3}}) {
    SCOPED_TRACE(testing::Message() << vision << " -> " << language);
    ExpectSameAsPlain(AJob()
                          .Module("vision", ClipVision({.mlp_size = 61}), {.tp = vision})
                          .Module("language", Llama(), {.tp = language})
                          .Edge("vision", "language", {.projector = 45}));
  }
}

TEST(StageTest, Vision_SplitLayers_EqualPlainModel) {
  ExpectSameAsPlain(AJob()
                        .Module("vision", ClipVision({.layers = 3}), {.tp = 2, .pp = 3})
                        .Module("language", Llama(), {.pp = 2})
                        .Edge("vision", "language", {.projector = 32}));
}

TEST(StageTest, Vision_WithoutProjector_SendsFeatures) {
  ExpectSameAsPlain(AJob()
                        .Module("vision", ClipVision(), {.tp = 2})
                        .Module("language", Llama())
                        .Edge("vision", "language"));
}

TEST(StageTest, Vision_MicrobatchWithoutItems_LeavesNoGradient) {
  // The second microbatch has none.
  ExpectSameAsPlain(AJob()
                        .Module("vision", ClipVision())
                        .Module("language", Llama(), {.tp = 2})
                        .Edge("vision", "language", {.projector = 32}),
                    /*items=*/1);
}

TEST(StageTest, Vision_TwoSources_RowsInEdgeOrder) {
  ExpectSameAsPlain(AJob()
                        .Module("near", ClipVision())
                        .Module("far", ClipVision({.hidden_size = 16, .layers = 1}))
                        .Module("language", Llama({.context = 64}))
                        .Edge("near", "language", {.projector = 32})
                        .Edge("far", "language", {.projector = 24}));
}

TEST(StageTest, Evaluate_AnyWidth_PredictsAsPlainModel) {
  const job::JobSpec spec = AJob()
                                .Module("vision", ClipVision())
                                .Module("language", Llama({.vocabulary = 93}), {.tp = 3, .pp = 2})
                                .Edge("vision", "language", {.projector = 32});
  const PlainModel plain(spec, at::kDouble);
  StageWorld world(spec, at::kDouble);
  const PlainMicrobatch batch = RandomMicrobatch(spec, {}, at::kDouble);
  const model::StageOutput output = world.Evaluate(batch);
  EXPECT_TRUE(at::equal(output.predicted, plain.Logits(plain.Hidden(batch)).argmax(-1).flatten()));
  EXPECT_NEAR(output.loss_sum.item<double>(), plain.Loss(batch).item<double>(), 1e-9);
}

TEST(StageTest, Fp32_EqualsPlainModel) {
  const job::JobSpec spec = AJob()
                                .Module("vision", ClipVision(), {.tp = 2})
                                .Module("language", Llama(), {.tp = 3})
                                .Edge("vision", "language", {.projector = 32});
  PlainModel plain(spec, at::kFloat);
  StageWorld world(spec, at::kFloat);
  const PlainMicrobatch batch = RandomMicrobatch(spec, {}, at::kFloat);
  plain.Accumulate(batch);
  EXPECT_NEAR(world.RunStep(0, batch) / plain.Loss(batch).item<double>(), 1, 1e-5);
  EXPECT_LT(LargestError(world.Gradients(), plain.Gradients()), 1e-4);
}

TEST(StageTest, Bf16_FollowsFp32) {
  const job::JobSpec spec = AJob()
                                .Module("vision", ClipVision(), {.tp = 2})
                                .Module("language", Llama(), {.tp = 3})
                                .Edge("vision", "language", {.projector = 32});
  StageWorld exact(spec, at::kFloat), rounded(spec, at::kBFloat16);
  const double loss = exact.RunStep(0, RandomMicrobatch(spec, {}, at::kFloat));
  EXPECT_NEAR(rounded.RunStep(0, RandomMicrobatch(spec, {}, at::kBFloat16)) / loss, 1, 2e-2);
  const NamedTensors gradients = rounded.Gradients();
  for (const auto& [name, expected] : exact.Gradients()) {
    const at::Tensor error = (gradients.at(name) - expected).norm() / expected.norm();
    if (name.find("k_proj.bias") != std::string::npos) continue;  // a true gradient of zero
    EXPECT_LT(error.item<double>(), 0.1) << name;
  }
}

TEST(StageTest, Passes_OutOfOrder_AreRefused) {
  const job::JobSpec spec = AJob().Module("language", Llama());
  const auto plan = plan::MakePlan(spec, plan::MakeCluster(1, 1), Epoch{1});
  ASSERT_TRUE(plan.ok());
  const plan::Place place;
  const plan::StageParameters parameters = plan::ParametersOf(*plan, place);
  const at::Tensor weights = at::zeros({parameters.elements}),
                   gradients = at::zeros({parameters.elements});
  const auto stage = model::MakeStage(*plan, place, 0, parameters, weights, gradients, nullptr, {});
  ASSERT_TRUE(stage.ok());
  const PlainMicrobatch batch = RandomMicrobatch(spec, {}, at::kFloat);
  model::StageInput input;
  input.tokens = model::MakeTokenRows(batch.tokens);
  input.labels = batch.labels;
  input.label_weights = batch.label_weights;
  EXPECT_EQ((*stage)->BackwardWeight(0).code(), absl::StatusCode::kInternal);
  ASSERT_TRUE((*stage)->Forward(0, input).ok());
  EXPECT_EQ((*stage)->Forward(0, input).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ((*stage)->BackwardWeight(0).code(), absl::StatusCode::kInternal);
  ASSERT_TRUE((*stage)->BackwardInput(0, {}).ok());
  EXPECT_EQ((*stage)->BackwardInput(0, {}).status().code(), absl::StatusCode::kInternal);
  ASSERT_TRUE((*stage)->BackwardWeight(0).ok());
  EXPECT_TRUE((*stage)->Forward(0, input).ok());
}

}  // namespace
}  // namespace phalanx::oracle
