// Every parallel layout computes the step of the unsharded model: loss, every gradient, and every
// parameter after each of 3 steps of 4 microbatches.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/oracle/training/cases.h"

namespace phalanx::oracle {
namespace {

constexpr int64_t kSteps = 3;

void ExpectEqual(const Case& c, job::Precision precision, double tolerance) {
  const job::JobSpec spec = SpecOf(c, precision);
  const DataShape data = DataShapeOf(spec);
  ExpectSteps(TrainInProcess(spec, data, kSteps), TrainPlain(spec, data, kSteps), spec, tolerance);
}

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {"vision_dp2_language_tp2_pp2", {.dp = 2}, {.tp = 2, .pp = 2}},
      {"vision_tp2_language_tp2_dp2", {.tp = 2}, {.tp = 2, .dp = 2}},
      {"vision_tp2_dp2_language_tp4", {.tp = 2, .dp = 2}, {.tp = 4}},
      {"vision_dp4_language_pp4", {.dp = 4}, {.pp = 4}},
      {"vision_dp1_language_tp2_pp3", {}, {.tp = 2, .pp = 3}},
      {"vision_dp3_language_dp2", {.dp = 3}, {.dp = 2}},
      {"vision_pp2_language_pp2", {.pp = 2}, {.pp = 2}},
      {"vision_tp3_language_tp2", {.tp = 3}, {.tp = 2}},
      {"language_alone", {.dp = 0}, {}},
      {"language_tp3", {.dp = 0}, {.tp = 3}},
      {"language_tp4_two_kv_heads", {.dp = 0}, {.tp = 4}},
      {"language_dp3", {.dp = 0}, {.dp = 3}},
      {"language_pp3", {.dp = 0}, {.pp = 3}},
      {"language_tied", {.dp = 0}, {.tp = 2}, {.tied_head = true}},
      {"language_tied_pp2", {.dp = 0}, {.tp = 2, .dp = 2, .pp = 2}, {.tied_head = true}},
      {"language_tied_pp2_dp3", {.dp = 0}, {.dp = 3, .pp = 2}, {.tied_head = true}},
      {"language_tp3_dp3_two_kv_heads", {.dp = 0}, {.tp = 3, .dp = 3}},
      {"language_uneven_layers", {.dp = 0}, {.pp = 2, .layers = {3, 1}}},
      {"language_tp3_dp2_padded_blocks",
       {.dp = 0},
       {.tp = 3, .dp = 2},
       {.mlp_size = 60, .vocabulary = 93}},
      {"language_dp_before_tp",
       {.dp = 0},
       {.tp = 2,
        .dp = 2,
        .order = {job::MeshAxis::kData, job::MeshAxis::kContext, job::MeshAxis::kTensor,
                  job::MeshAxis::kPipeline}}},
      {"colocated_tp2_dp2_language_tp4", {.tp = 2, .dp = 2}, {.tp = 4, .offset = 0}},
      {"colocated_dp4_language_tp2_pp2", {.dp = 4}, {.tp = 2, .pp = 2, .offset = 0}},
      {"colocated_dp4_language_pp4", {.dp = 4}, {.pp = 4, .offset = 0}},
      {"colocated_tp4_language_dp4", {.tp = 4}, {.dp = 4, .offset = 0}},
      {"colocated_one_rank", {}, {.offset = 0}},
  };
  return cases;
}

class TrainingTest : public testing::TestWithParam<Case> {};

TEST_P(TrainingTest, Fp64_EqualsThePlainModel) {
  ExpectEqual(GetParam(), job::Precision::kFp64, 1e-9);
}

TEST_P(TrainingTest, Fp32_FollowsThePlainModel) {
  ExpectEqual(GetParam(), job::Precision::kFp32, 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Layouts, TrainingTest, testing::ValuesIn(Cases()),
                         [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

TEST(TrainingDataTest, CorruptImage_CountsInNoLossOnAnyRank) {
  const Case c{"", {.dp = 2}, {.tp = 2, .pp = 2}};
  job::JobSpec spec = SpecOf(c, job::Precision::kFp64);
  DataShape data = DataShapeOf(spec);
  data.images_min = 1;
  data.samples = spec.batch.global;
  data.corrupt_sample = 3;
  const std::vector<TrainedStep> plain = TrainPlain(spec, data, 1);
  const std::vector<TrainedStep> trained = TrainInProcess(spec, data, 1);
  EXPECT_EQ(trained[0].decision.counted_tokens, plain[0].decision.counted_tokens);
  EXPECT_EQ(trained[0].decision.corrupt_samples, 1);
  EXPECT_NEAR(trained[0].decision.loss, plain[0].decision.loss, 1e-9);
  EXPECT_LE(Compare(trained[0].gradients, plain[0].gradients).error, 1e-9);
}

// Rows of targets that cannot be learned count in no loss; the sample's text does.
TEST(TrainingDataTest, CorruptTarget_CountsInNoLossOfTargets) {
  const job::JobSpec spec = support::AJob()
                                .Module("language", TinyLanguage(), {.tp = 2, .dp = 2})
                                .Module("regressor", TinyRegressor(), {.tp = 2, .pp = 2})
                                .Edge("language", "regressor", {.projector = 16})
                                .Batch(8, 2)
                                .Compute(job::Precision::kFp64);
  DataShape data = DataShapeOf(spec);
  data.samples = spec.batch.global;
  data.corrupt_target = 3;
  const std::vector<TrainedStep> plain = TrainPlain(spec, data, 1);
  const std::vector<TrainedStep> trained = TrainInProcess(spec, data, 1);
  EXPECT_EQ(trained[0].decision.counted_tokens, plain[0].decision.counted_tokens);
  EXPECT_EQ(trained[0].decision.corrupt_samples, 1);
  EXPECT_NEAR(trained[0].decision.loss, plain[0].decision.loss, 1e-9);
  EXPECT_LE(Compare(trained[0].gradients, plain[0].gradients).error, 1e-9);
}

// The rank that reads the images may be the one that is held to the targets, or another.
TEST(TrainingDataTest, CorruptTargetOfASampleWithImages_CountsAlikeOnOneRankAndOnSeveral) {
  const auto train = [](int32_t offset) {
    const job::JobSpec spec = support::AJob()
                                  .Module("vision", TinyVision(), {.offset = offset})
                                  .Module("language", TinyLanguage(), {.offset = offset})
                                  .Module("regressor", TinyRegressor(), {.offset = offset})
                                  .Edge("vision", "language", {.projector = 16})
                                  .Edge("language", "regressor", {.projector = 16})
                                  .Batch(8, 2)
                                  .Compute(job::Precision::kFp64);
    DataShape data = DataShapeOf(spec);
    data.images_min = 1;
    data.samples = spec.batch.global;
    data.corrupt_target = 3;
    const train::Decision trained = TrainInProcess(spec, data, 1)[0].decision;
    const train::Decision plain = TrainPlain(spec, data, 1)[0].decision;
    EXPECT_NEAR(trained.loss, plain.loss, 1e-9);
    EXPECT_EQ(trained.counted_tokens, plain.counted_tokens);
    return trained;
  };
  const train::Decision together = train(0), apart = train(-1);
  EXPECT_NEAR(together.loss, apart.loss, 1e-9);
  EXPECT_EQ(together.corrupt_samples, 1);
  EXPECT_EQ(apart.corrupt_samples, 1);
}

}  // namespace
}  // namespace phalanx::oracle
