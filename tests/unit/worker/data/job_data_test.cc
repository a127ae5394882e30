// From a job to its data set and to what a loader decodes.
#include "worker/data/job_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phalanx::data {
namespace {

using ::testing::ElementsAre;

// A job of one language model and these modules before it, all feeding it.
job::JobSpec JobOf(const std::vector<job::Architecture>& encoders) {
  job::JobSpec spec;
  for (const job::Architecture& architecture : encoders) {
    spec.modules.push_back({.architecture = architecture});
    spec.edges.push_back({static_cast<int32_t>(spec.modules.size()) - 1,
                          static_cast<int32_t>(encoders.size()), std::nullopt});
  }
  spec.language = static_cast<int32_t>(encoders.size());
  spec.modules.push_back(
      {.architecture = {.family = job::Family::kLlama, .vocabulary = 96, .context = 40}});
  spec.data = job::Data{.shards = {"a.tar", "/data/b.tar"},
                        .validation = {"v.tar"},
                        .tokenizer = "t.model",
                        .items_max = 3};
  return spec;
}

const job::Architecture kVision{
    .family = job::Family::kClipVision, .image_size = 32, .patch_size = 8};
const job::Architecture kAudio{.family = job::Family::kWhisper, .mel_bins = 80, .frames = 50};

TEST(JobDataTest, EveryKindOfItem_ComesFromItsModule) {
  const job::JobSpec job = JobOf({kVision, kAudio});
  const DataSetSpec spec = DataSetSpecOf(job, "/jobs", false);
  EXPECT_THAT(spec.shards, ElementsAre("/jobs/a.tar", "/data/b.tar"));
  EXPECT_EQ(spec.tokenizer, "/jobs/t.model");
  EXPECT_EQ(spec.items_max, 3);
  ASSERT_EQ(spec.encoders.size(), 2);
  EXPECT_EQ(spec.encoders[0].module, 0);
  EXPECT_EQ(spec.encoders[0].kind, ItemKind::kImage);
  EXPECT_EQ(spec.encoders[0].rows, 16);
  EXPECT_EQ(spec.encoders[0].values(), 3 * 32 * 32);
  EXPECT_EQ(spec.encoders[1].module, 1);
  EXPECT_EQ(spec.encoders[1].kind, ItemKind::kSound);
  EXPECT_EQ(spec.encoders[1].rows, 25);
  EXPECT_EQ(spec.encoders[1].values(), 80 * 50);
  EXPECT_FALSE(spec.targets);
  EXPECT_EQ(spec.context, 40);
  EXPECT_EQ(spec.vocabulary, 96);
  EXPECT_EQ(spec.shards_field, "spec.data.shards");
  EXPECT_EQ(spec.vocabulary_field, "spec.modules[2].architecture.vocabulary");
}

TEST(JobDataTest, EncodersOfOneModality_EachReadItemsTheirWay) {
  job::Architecture close_up = kVision;
  close_up.image_size = 64;
  const ItemShapes shapes = ItemShapesOf(JobOf({kVision, kAudio, close_up}));
  ASSERT_EQ(shapes.encoders.size(), 3);
  EXPECT_EQ(shapes.encoders[2].rows, 64);
  EXPECT_EQ(shapes.EncoderOf(2), 2);
  EXPECT_EQ(shapes.EncoderOf(3), -1) << "the language module reads no items";
}

TEST(JobDataTest, Validation_HasItsShardsAndField) {
  const DataSetSpec spec = DataSetSpecOf(JobOf({}), "/jobs", true);
  EXPECT_THAT(spec.shards, ElementsAre("/jobs/v.tar"));
  EXPECT_EQ(spec.shards_field, "spec.data.validation");
}

TEST(JobDataTest, RegressorWantsTargets_WhereItIsASink) {
  const job::Architecture regressor{.family = job::Family::kRegressor, .hidden_size = 24};
  job::JobSpec job = JobOf({});
  job.modules.push_back({.architecture = regressor});
  job.edges.push_back({0, 1, std::nullopt});
  EXPECT_TRUE(DataSetSpecOf(job, "", false).targets);
  EXPECT_EQ(DataSetSpecOf(job, "", false).target_hidden, 24);
  // As a source it only passes rows on.
  EXPECT_FALSE(DataSetSpecOf(JobOf({regressor}), "", false).targets);
}

TEST(JobDataTest, DigestOfSets_TellsEitherSetApart) {
  EXPECT_EQ(DigestOfSets("a", ""), "a");
  EXPECT_NE(DigestOfSets("a", "b"), "a");
  EXPECT_NE(DigestOfSets("a", "b"), DigestOfSets("a", "c"));
  EXPECT_NE(DigestOfSets("a", "b"), DigestOfSets("b", "a"));
}

}  // namespace
}  // namespace phalanx::data
