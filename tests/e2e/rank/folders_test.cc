// Rank processes whose paths lead out of the node's folders when they open them.
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/rank/rank_world.h"
#include "tests/support/files.h"

namespace phalanx::e2e {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::Property;

constexpr int64_t kFolderSteps = 3;

// Jobs that write below RUNS alone, with a checkpoint of their last step.
struct RankFoldersTest : public testing::Test {
  RankFoldersTest() { fs::create_directory(runs); }
  void Begin(RankWorld& world) const {
    world.Begin(std::nullopt, [this](v1::RunEpoch& run) {
      run.add_read_folders(data.path);
      run.add_write_folders(runs);
    });
  }
  static bool AllSucceeded(const RankWorld& world, const RankWorld::Said& said) {
    return said.succeeded.size() == static_cast<size_t>(world.size());
  }
  std::string Refusal(const std::string& value) const {
    return absl::StrCat(value, ": leads to ", elsewhere, "; must lead below ", runs);
  }

  const DataFolder data = MakeData();
  const std::string runs = data.path + "/runs";
  const std::string elsewhere = fs::canonical(support::MakeFolder("elsewhere"));
  const JobOptions job{.steps = kFolderSteps,
                       .vision = "ranks: 1",
                       .language = "ranks: 1",
                       .checkpoint = "{every: 0, directory: runs/checkpoints}",
                       .output = "runs/out"};
};

TEST_F(RankFoldersTest, WhatLiesWithin_IsWritten) {
  fs::create_directory(runs + "/real");
  fs::create_directory_symlink("real", runs + "/checkpoints");
  RankWorld world(data, job);
  Begin(world);
  world.Await([&](const RankWorld::Said& said) { return AllSucceeded(world, said); });
  EXPECT_EQ(StepsFault(ReadMetrics(runs + "/out"), kFolderSteps), "");
  world.Publish(0, kFolderSteps);
  const RankWorld::Said said =
      world.Await([](const RankWorld::Said& s) { return !s.published.empty(); });
  EXPECT_EQ(said.published[0].error(), "");
  EXPECT_TRUE(fs::exists(runs + "/real/step-00000003.epoch-1/manifest.json"));
}

TEST_F(RankFoldersTest, OutputThatLeadsOut_EndsTheEpochByItsField) {
  fs::create_directory_symlink(elsewhere, runs + "/out");
  RankWorld world(data, job);
  Begin(world);
  std::string message;
  world.Await([&](const RankWorld::Said& said) {
    for (const auto& [rank, error] : said.errors) {
      if (error.kind() == v1::FAILURE_KIND_OUTPUT_UNAVAILABLE) message = error.message();
    }
    return !message.empty();
  });
  EXPECT_EQ(message, absl::StrCat("spec.output: ", Refusal("runs/out")));
  EXPECT_TRUE(fs::is_empty(elsewhere));
}

TEST_F(RankFoldersTest, CheckpointsThatLeadOut_FailByTheirField_AndTheJobGoesOn) {
  fs::create_directory_symlink(elsewhere, runs + "/checkpoints");
  RankWorld world(data, job);
  Begin(world);
  const RankWorld::Said said =
      world.Await([&](const RankWorld::Said& s) { return AllSucceeded(world, s); });
  EXPECT_THAT(said.events,
              Contains(AllOf(Property(&v1::JobEvent::type, "CheckpointFailed"),
                             Property(&v1::JobEvent::message,
                                      absl::StrCat("step 3: spec.checkpoint.directory: ",
                                                   Refusal(runs + "/checkpoints"))))));
  EXPECT_TRUE(fs::is_empty(elsewhere));
}

}  // namespace
}  // namespace phalanx::e2e
