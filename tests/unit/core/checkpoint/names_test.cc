#include "core/checkpoint/names.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::checkpoint {
namespace {

using ::testing::Optional;

TEST(NamesTest, Checkpoint_ReadsBack) {
  EXPECT_EQ(ToString(CheckpointName{.step = 50, .epoch = 3}), "step-00000050.epoch-3");
  for (const CheckpointName& name :
       {CheckpointName{1, 1}, {50, 3}, {123456789012, 40}, {50, 3, 2}}) {
    EXPECT_THAT(ParseCheckpointName(ToString(name)), Optional(name));
  }
}

TEST(NamesTest, Manifest_IsInItsFolder) {
  EXPECT_EQ(ManifestPath("out/step-00000007.epoch-2"), "out/step-00000007.epoch-2/manifest.json");
}

TEST(NamesTest, Checkpoints_OrderByStepThenEpoch) {
  EXPECT_LT((CheckpointName{50, 3}), (CheckpointName{100, 1}));
  EXPECT_LT((CheckpointName{50, 3}), (CheckpointName{50, 4}));
  EXPECT_LT((CheckpointName{50, 3}), (CheckpointName{50, 3, 2}));
}

TEST(NamesTest, WhatIsNoCheckpoint_IsNone) {
  for (const char* text :
       {"", "step-50.epoch-3", "step-00000050", "step-00000050.epoch-0", "step-00000000.epoch-1",
        ".step-00000050.epoch-3.00c0ffee-job-7", "step-00000050.epoch-3.deleted",
        "step-00000050.epoch-3.1", "step-00000050.epoch-3.0", "step-00000050.epoch-3.2.2",
        "step-00000050.epoch-03", "step-+0000050.epoch-3", "step- 0000050.epoch-3"}) {
    EXPECT_FALSE(ParseCheckpointName(text).has_value()) << text;
  }
}

TEST(NamesTest, Draft_SaysWhoseItIs) {
  const CheckpointName name{.step = 50, .epoch = 3};
  const std::string draft = DraftName(name, "00c0ffee", 7);
  EXPECT_EQ(draft, ".step-00000050.epoch-3.00c0ffee-job-7");
  EXPECT_FALSE(ParseCheckpointName(draft).has_value());
  EXPECT_THAT(ParseDraftName(draft, "00c0ffee", 7), Optional(name));
  EXPECT_FALSE(ParseDraftName(draft, "00c0ffee", 17).has_value());
  EXPECT_FALSE(ParseDraftName(draft, "c0ffee", 7).has_value());
  EXPECT_FALSE(ParseDraftName(draft.substr(1), "00c0ffee", 7).has_value());
}

TEST(NamesTest, PartFile_ReadsBack) {
  EXPECT_EQ(PartFileName(4), "rank-00004.safetensors");
  for (const int32_t rank : {0, 99999, 131071}) {
    EXPECT_THAT(ParsePartFileName(PartFileName(rank)), Optional(rank));
  }
  for (const char* text : {"", "rank-4.safetensors", "rank-00004", "../rank-00004.safetensors",
                           "rank-00004.safetensors.tmp", "rank--0004.safetensors"}) {
    EXPECT_FALSE(ParsePartFileName(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace phalanx::checkpoint
