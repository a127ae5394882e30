// Rank processes that write checkpoints, and others that begin with one.
#include "core/checkpoint_io/checkpoints.h"

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/digest.h"
#include "core/checkpoint_io/lock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/rank/rank_world.h"
#include "tests/support/files.h"

namespace phalanx::e2e {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Behind the one that is written only that of the last step comes: the third one gives it up.
constexpr int64_t kSteps = 8, kWritten = 6;

JobOptions CheckpointedJob(const std::string& output, const std::string& checkpoint) {
  return {.steps = kSteps,
          .precision = "fp64",
          .vision = "ranks: 1",
          .language = "ranks: 4, tp: 2",
          .checkpoint = checkpoint,
          .output = output};
}

bool AllSucceeded(const RankWorld& world, const RankWorld::Said& said) {
  return said.succeeded.size() == static_cast<size_t>(world.size());
}

// Lets a world write and publish a checkpoint of kWritten; its path.
std::string WriteOne(RankWorld& world) {
  world.Begin(std::nullopt);
  world.Await([&](const RankWorld::Said& said) {
    const auto parts = said.parts.find(kWritten);
    return parts != said.parts.end() && parts->second.size() == static_cast<size_t>(world.size());
  });
  world.Publish(1, kWritten);
  const RankWorld::Said said =
      world.Await([](const RankWorld::Said& s) { return !s.published.empty(); });
  EXPECT_EQ(said.published[0].step(), kWritten);
  return said.published[0].path();
}

v1::CheckpointSource SourceOf(const std::string& path) {
  const auto manifest = checkpoint::ReadManifestOf(path);
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  v1::CheckpointSource source;
  source.set_path(path);
  if (manifest.ok()) {
    source.set_manifest_digest(Digest(checkpoint::WriteManifest(*manifest)));
    source.set_step(manifest->step);
  }
  return source;
}

TEST(RankCheckpointsTest, NewProcessesThatBeginWithOne_TrainAsIfNothingHadHappened) {
  const DataFolder data = MakeData();
  std::string path;
  {
    RankWorld world(data, CheckpointedJob("broken", "{every: 6}"));
    path = WriteOne(world);
  }  // killed, wherever they are
  EXPECT_EQ(path, absl::StrCat(data.path, "/checkpoints/step-00000006.epoch-1"));
  const auto manifest = checkpoint::ReadManifestOf(path);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_TRUE(checkpoint::VerifyCheckpoint(path, *manifest, {}).ok());

  RankWorld world(data, CheckpointedJob("broken", "{every: 1000}"));
  world.Begin(std::nullopt, [&](v1::RunEpoch& run) {
    *run.mutable_assign()->mutable_checkpoint() = SourceOf(path);
  });
  const RankWorld::Said said =
      world.Await([&](const RankWorld::Said& s) { return AllSucceeded(world, s); });
  EXPECT_EQ(said.steps.front().step(), kWritten + 1);
  const std::vector<Metric> broken = MetricsOf(data, "broken");
  ASSERT_EQ(StepsFault(broken, kSteps), "");

  RankWorld another(data, CheckpointedJob("unbroken", ""));
  another.Begin(std::nullopt);
  another.Await([&](const RankWorld::Said& s) { return AllSucceeded(another, s); });
  const std::vector<Metric> unbroken = MetricsOf(data, "unbroken");
  ASSERT_EQ(unbroken.size(), broken.size());
  for (size_t i = 0; i < broken.size(); ++i) {
    EXPECT_EQ(broken[i].loss, unbroken[i].loss) << "step " << i + 1;
    EXPECT_EQ(broken[i].gradient_norm, unbroken[i].gradient_norm) << "step " << i + 1;
  }
}

// Another job's `keep` counts it; this one may have to go back to it.
TEST(RankCheckpointsTest, CheckpointThatAnEpochWentOnFrom_CannotBeDeletedMeanwhile) {
  const DataFolder data = MakeData();
  std::string path;
  {
    RankWorld world(data, CheckpointedJob("first", "{every: 6}"));
    path = WriteOne(world);
  }
  ASSERT_TRUE(checkpoint::CheckpointLock::ToDelete(path).has_value());
  {
    JobOptions options = CheckpointedJob("second", "");
    options.steps = kForEver;
    RankWorld world(data, options);
    world.Begin(std::nullopt, [&](v1::RunEpoch& run) {
      *run.mutable_assign()->mutable_checkpoint() = SourceOf(path);
    });
    world.Await([](const RankWorld::Said& said) { return !said.steps.empty(); });
    EXPECT_FALSE(checkpoint::CheckpointLock::ToDelete(path).has_value());
  }
  EXPECT_TRUE(checkpoint::CheckpointLock::ToDelete(path).has_value());
}

TEST(RankCheckpointsTest, CheckpointThatIsGone_IsNotMissedByAJobThatHasGoneOnSince) {
  const DataFolder data = MakeData();
  std::string path;
  {
    RankWorld world(data, CheckpointedJob("first", "{every: 6}"));
    path = WriteOne(world);
  }
  JobOptions options = CheckpointedJob("second", "");
  options.steps = kForEver;
  RankWorld world(data, options);
  const v1::CheckpointSource source = SourceOf(path);
  const auto from_it = [&](v1::RunEpoch& run) {
    *run.mutable_assign()->mutable_checkpoint() = source;
  };
  world.Begin(std::nullopt, from_it);
  world.Await([](const RankWorld::Said& said) { return said.steps.size() >= 2; });
  v1::EpochBegins begins;
  for (const auto& [rank, quiet] : world.Stop().quiet) {
    if (quiet.decision().step() <= begins.decision().step()) continue;
    *begins.mutable_decision() = quiet.decision();
    begins.set_updates(quiet.updates());
    begins.set_skipped_in_a_row(quiet.skipped_in_a_row());
  }
  ASSERT_GT(begins.decision().step(), kWritten);
  std::filesystem::remove_all(path);
  world.Begin(begins, from_it);
  const RankWorld::Said said =
      world.Await([](const RankWorld::Said& s) { return !s.steps.empty() || !s.errors.empty(); });
  EXPECT_THAT(said.errors, IsEmpty());
  EXPECT_EQ(said.steps.front().step(), begins.decision().step() + 1);
}

TEST(RankCheckpointsTest, WhatOneRankWrites_AllWrite_AndTheLastStepAlways) {
  const DataFolder data = MakeData();
  RankWorld world(data, CheckpointedJob("out", "{every: 2}"));
  world.Begin(std::nullopt);
  const RankWorld::Said said =
      world.Await([&](const RankWorld::Said& s) { return AllSucceeded(world, s); });
  for (const auto& [step, parts] : said.parts)
    EXPECT_EQ(parts.size(), static_cast<size_t>(world.size())) << "step " << step;
  EXPECT_EQ(said.parts.count(2), 1u);
  EXPECT_EQ(said.parts.count(kSteps), 1u);
  // Of those that are left out, one rank tells.
  EXPECT_EQ(said.parts.size() + said.events.size(), static_cast<size_t>(kSteps / 2));
}

TEST(RankCheckpointsTest, CheckpointOfTheLastStep_IsPublishedBehindTheEpoch) {
  const DataFolder data = MakeData();
  RankWorld world(data, CheckpointedJob("out", "{every: 0, directory: elsewhere}"));
  world.Begin(std::nullopt);
  const RankWorld::Said done =
      world.Await([&](const RankWorld::Said& s) { return AllSucceeded(world, s); });
  ASSERT_EQ(done.parts.count(kSteps), 1u);
  world.Publish(0, kSteps);
  const RankWorld::Said said =
      world.Await([](const RankWorld::Said& s) { return !s.published.empty(); });
  EXPECT_EQ(said.published[0].path(), absl::StrCat(data.path, "/elsewhere/step-00000008.epoch-1"));
  for (int32_t rank = 0; rank < world.size(); ++rank) EXPECT_EQ(world.Quit(rank), 0) << rank;
}

// One rank is told, once two steps are done: all end at the same step and have written a
// checkpoint of it, of which a job can begin; the ranks could train on at once.
TEST(RankCheckpointsTest, WishOfOneRank_EndsAllAtOneStepWithItsCheckpoint) {
  for (const int64_t every : {0, 1, 1000}) {
    const DataFolder data = MakeData();
    JobOptions options = CheckpointedJob("out", absl::StrCat("{every: ", every, ", keep: 1}"));
    options.steps = kForEver;
    options.validation = true;  // not evaluated
    RankWorld world(data, options);
    world.Begin(std::nullopt);
    world.Await([](const RankWorld::Said& said) { return said.steps.size() >= 2; });
    world.Wish(3);
    const RankWorld::Said done =
        world.Await([&](const RankWorld::Said& s) { return AllSucceeded(world, s); });
    const int64_t last = done.succeeded.at(0).step();
    for (const auto& [rank, succeeded] : done.succeeded) {
      EXPECT_EQ(succeeded.step(), last) << "rank " << rank << ", every " << every;
      EXPECT_TRUE(succeeded.early());
    }
    EXPECT_EQ(StepsFault(MetricsOf(data, "out"), last), "");
    ASSERT_THAT(done.parts.at(last), SizeIs(world.size())) << "every " << every;
    if (every != 1) {
      EXPECT_THAT(done.parts, SizeIs(1));
    }
    world.Publish(0, last);
    const RankWorld::Said said =
        world.Await([](const RankWorld::Said& s) { return !s.published.empty(); });
    ASSERT_EQ(said.published[0].error(), "");
    const std::string path = said.published[0].path();
    const auto manifest = checkpoint::ReadManifestOf(path);
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    EXPECT_EQ(manifest->step, last);
    EXPECT_TRUE(checkpoint::VerifyCheckpoint(path, *manifest, {}).ok());
    for (int32_t rank = 0; rank < world.size(); ++rank) EXPECT_EQ(world.Quit(rank), 0) << rank;
  }
}

// The wish comes before there is anything that could be asked, and is of no later epoch.
TEST(RankCheckpointsTest, WishBeforeTheFirstStep_EndsWithTheSecondAndNotTheNextEpoch) {
  const DataFolder data = MakeData();
  RankWorld world(data, CheckpointedJob("out", ""));
  world.Begin(std::nullopt);
  world.Wish(1);
  const RankWorld::Said said =
      world.Await([&](const RankWorld::Said& s) { return AllSucceeded(world, s); });
  for (const auto& [rank, succeeded] : said.succeeded) {
    EXPECT_EQ(succeeded.step(), 2) << rank;
    EXPECT_TRUE(succeeded.early()) << rank;
  }
  EXPECT_THAT(said.parts, IsEmpty());
  world.Begin(std::nullopt);
  const RankWorld::Said whole =
      world.Await([&](const RankWorld::Said& s) { return AllSucceeded(world, s); });
  for (const auto& [rank, succeeded] : whole.succeeded) {
    EXPECT_EQ(succeeded.step(), kSteps) << rank;
    EXPECT_FALSE(succeeded.early()) << rank;
  }
}

TEST(RankCheckpointsTest, FolderThatCannotBe_IsToldAndTrainingGoesOn) {
  const DataFolder data = MakeData();
  support::WriteFile(absl::StrCat(data.path, "/file"), "");
  RankWorld world(data, CheckpointedJob("out", "{every: 3, directory: file}"));
  world.Begin(std::nullopt);
  const RankWorld::Said said =
      world.Await([&](const RankWorld::Said& s) { return AllSucceeded(world, s); });
  EXPECT_THAT(said.parts, IsEmpty());
  int32_t failed = 0, skipped = 0;
  for (const v1::JobEvent& event : said.events) {
    if (event.type() == "CheckpointSkipped") {  // a slow machine is still at that of step 3
      EXPECT_THAT(event.message(), HasSubstr("step 6: the checkpoint before"));
      ++skipped;
      continue;
    }
    EXPECT_EQ(event.type(), "CheckpointFailed");
    EXPECT_THAT(event.message(), HasSubstr(absl::StrCat(data.path, "/file: Not a directory")));
    ++failed;
  }
  // Of steps 3 and 6, and the last one.
  EXPECT_GE(failed, 2 * world.size());
  if (skipped == 0) {
    EXPECT_EQ(failed, 3 * world.size());
  }
  EXPECT_EQ(StepsFault(MetricsOf(data, "out"), kSteps), "");
}

TEST(RankCheckpointsTest, AnotherManifestThanTheChosenOne_IsRefusedByPath) {
  const DataFolder data = MakeData();
  RankWorld world(data, CheckpointedJob("out", "{every: 6}"));
  const std::string path = WriteOne(world);
  world.Stop();
  world.Begin(std::nullopt, [&](v1::RunEpoch& run) {
    v1::CheckpointSource& source = *run.mutable_assign()->mutable_checkpoint();
    source = SourceOf(path);
    source.set_manifest_digest("other");
  });
  const RankWorld::Said said = world.Await([&](const RankWorld::Said& s) {
    return s.errors.size() == static_cast<size_t>(world.size());
  });
  for (const auto& [rank, error] : said.errors) {
    EXPECT_THAT(error.message(), HasSubstr(path));
    EXPECT_THAT(error.message(), HasSubstr("nodes see different folders"));
  }
}

}  // namespace
}  // namespace phalanx::e2e
