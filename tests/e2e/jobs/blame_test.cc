// Whose fault it was: the cause of a failed job names what broke, not who noticed.
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(BlameTest, DaemonKilled_IsTheLossOfItsNode_AtOnce) {
  const DataFolder data = MakeData();
  // Neither silence nor absence tells.
  Cluster cluster({.devices = 1, .coordinator_flags = {"--heartbeat-timeout", "10m"}});
  support::Process& there = cluster.AddWorker("there", 1);
  const int64_t job = cluster
                          .Submit(Document(data, {.steps = kForEver,
                                                  .vision = "",
                                                  .language = "ranks: 2, tp: 2",
                                                  .recovery = kNoRecovery}))
                          .id();
  cluster.AwaitStep(job, 2);
  there.Signal(SIGKILL);
  const v1::JobStatus failed = cluster.AwaitEnd(job);
  EXPECT_EQ(failed.failure().cause(), "NodeLost") << failed.failure().message();
  EXPECT_EQ(failed.failure().kind(), v1::FAILURE_KIND_NODE_LOST);
  EXPECT_EQ(failed.failure().node(), "there");
}

// No layout does better, and none is tried. Each step is slow enough to get a fault of its own.
TEST(BlameTest, GradientsThatAreNotFiniteInTenStepsInARow_EndTheJobOnce) {
  constexpr int kFaultsMax = 1000;
  const DataFolder data = MakeData();
  Cluster cluster({.devices = 2, .coordinator_flags = {"--allow-inject"}});
  const int64_t job =
      cluster
          .Submit(Document(data, {.steps = kForEver, .vision = "", .language = "ranks: 2, tp: 2"}))
          .id();
  cluster.AwaitStep(job, 2);
  const auto inject = [&](const char* rank, const char* fault) {
    return cluster
        .Phalanx({"inject", "--job", absl::StrCat("job-", job), "--rank", rank, "--fault", fault})
        .exit_code;
  };
  ASSERT_EQ(inject("1", "slow:40"), 0);
  for (int fault = 0; fault < kFaultsMax && inject("0", "nan") == 0; ++fault) continue;
  const v1::JobStatus failed = cluster.AwaitEnd(job);
  EXPECT_EQ(failed.phase(), v1::JOB_PHASE_FAILED);
  EXPECT_EQ(failed.failure().kind(), v1::FAILURE_KIND_NON_FINITE) << failed.failure().message();
  EXPECT_THAT(failed.failure().message(), HasSubstr("the last 10 steps up to step "));
  EXPECT_EQ(failed.epoch(), 1) << "nobody recovers from it";
  const std::vector<Metric> metrics = ReadMetrics(data.path + "/out");
  ASSERT_GE(metrics.size(), 9u);
  EXPECT_TRUE(std::all_of(metrics.end() - 9, metrics.end(),
                          [](const Metric& metric) { return metric.skipped; }));
}

// The daemon's session stands while it is stopped, and nobody tells how its ranks ended: what is
// left is that all ranks of the other node lost it.
TEST(BlameTest, RanksCutOffBehindALivingDaemon_AreANodeThatCannotBeReached) {
  const DataFolder data = MakeData();
  Cluster cluster({.devices = 2, .coordinator_flags = {"--heartbeat-timeout", "10m"}});
  cluster.AddWorker("there", 2);
  const int64_t job = cluster
                          .Submit(Document(data, {.steps = kForEver,
                                                  .vision = "",
                                                  .language = "ranks: 4, tp: 2",
                                                  .recovery = kNoRecovery}))
                          .id();
  cluster.AwaitStep(job, 2);
  const auto ranks = cluster.Ranks(job, "worker");
  ASSERT_EQ(ranks.size(), 2u);
  cluster.worker().Signal(SIGSTOP);
  for (const auto& [rank, watch] : ranks) kill(watch.pid(), SIGKILL);
  const v1::JobStatus failed = cluster.AwaitEnd(job);
  cluster.worker().Signal(SIGCONT);
  EXPECT_EQ(failed.failure().cause(), "NodeUnreachable") << failed.failure().message();
  EXPECT_EQ(failed.failure().node(), "here") << failed.failure().message();
}

TEST(BlameTest, OutputFolderThatCannotBeMade_IsOutputUnavailableBeforeTheFirstStep) {
  const DataFolder data = MakeData();
  support::WriteFile(data.path + "/file", "no folder");
  Cluster cluster({.devices = 2});
  const int64_t job =
      cluster.Submit(Document(data, {.vision = "", .language = "ranks: 2", .output = "file/out"}))
          .id();
  const v1::JobStatus failed = cluster.AwaitEnd(job);
  EXPECT_EQ(failed.failure().cause(), "OutputUnavailable") << failed.failure().message();
  EXPECT_THAT(failed.failure().message(), HasSubstr("file/out"));
  EXPECT_FALSE(failed.has_last_step());
}

TEST(BlameTest, FileWhereAFolderOfTheOutputBelongs_IsOutputUnavailableBeforeTheFirstStep) {
  const DataFolder data = MakeData();
  std::filesystem::create_directories(data.path + "/out");
  support::WriteFile(data.path + "/out/ranks", "no folder");
  Cluster cluster({.devices = 1});
  const int64_t job = cluster.Submit(Document(data, {.vision = "", .language = "ranks: 1"})).id();
  const v1::JobStatus failed = cluster.AwaitEnd(job);
  EXPECT_EQ(failed.failure().cause(), "OutputUnavailable") << failed.failure().message();
  EXPECT_THAT(failed.failure().message(), HasSubstr("out/ranks"));
  EXPECT_FALSE(failed.has_last_step());
}

// A file that may not grow stands in for a disk that is full.
TEST(BlameTest, FullDisk_HoldsTrainingUpAndIsThenOutputUnavailable) {
  const DataFolder data = MakeData();
  Cluster cluster({.devices = 2});
  const int64_t job =
      cluster.Submit(Document(data, {.steps = kForEver, .vision = "", .language = "ranks: 2"}))
          .id();
  cluster.AwaitStep(job, 2);
  const rlimit full{1, RLIM_INFINITY};
  for (const auto& [rank, watch] : cluster.Ranks(job))
    ASSERT_EQ(prlimit(watch.pid(), RLIMIT_FSIZE, &full, nullptr), 0);
  const v1::JobStatus failed = cluster.AwaitEnd(job);
  EXPECT_EQ(failed.failure().cause(), "OutputUnavailable") << failed.failure().message();
  EXPECT_THAT(failed.failure().message(),
              AllOf(HasSubstr("metrics.jsonl"), HasSubstr("File too large")));
  EXPECT_EQ(failed.failure().rank(), 0) << "that writes it";
  // No step is reported beyond the one that could not be written.
  const auto written = static_cast<int64_t>(ReadMetrics(data.path + "/out").size());
  EXPECT_LE(failed.last_step().step(), written + 1);
  const std::vector<v1::JobEvent> events = cluster.Events(job);
  EXPECT_TRUE(std::any_of(events.begin(), events.end(),
                          [](const v1::JobEvent& e) { return e.type() == "OutputWaiting"; }));
}

TEST(BlameTest, OutputFolderThatGoesWhileTraining_IsOutputUnavailableToo) {
  const DataFolder data = MakeData();
  Cluster cluster({.devices = 2});
  const int64_t job =
      cluster.Submit(Document(data, {.steps = kForEver, .vision = "", .language = "ranks: 2"}))
          .id();
  cluster.AwaitStep(job, 2);
  std::filesystem::rename(data.path + "/out", data.path + "/gone");
  const v1::JobStatus failed = cluster.AwaitEnd(job);
  EXPECT_EQ(failed.failure().cause(), "OutputUnavailable") << failed.failure().message();
  EXPECT_EQ(failed.failure().rank(), 0) << "that writes it";
  EXPECT_THAT(failed.failure().message(),
              AllOf(HasSubstr("metrics.jsonl"), HasSubstr("No such file or directory")));
}

TEST(BlameTest, ShardTruncatedWhileTraining_IsDataUnavailableAndNamed) {
  const DataFolder data = MakeData();
  Cluster cluster({.devices = 2});
  const int64_t job =
      cluster.Submit(Document(data, {.steps = kForEver, .vision = "", .language = "ranks: 2"}))
          .id();
  cluster.AwaitStep(job, 2);
  std::filesystem::resize_file(data.files.shards[1], 600);
  const v1::JobStatus failed = cluster.AwaitEnd(job);
  EXPECT_EQ(failed.failure().cause(), "DataUnavailable") << failed.failure().message();
  EXPECT_THAT(failed.failure().message(), HasSubstr("set-001.tar"));
  EXPECT_GE(failed.failure().rank(), 0) << "whoever came to it first";
  const std::vector<v1::JobEvent> events = cluster.Events(job);
  EXPECT_TRUE(std::none_of(events.begin(), events.end(), [](const v1::JobEvent& e) {
    return e.type() == "Recovered";
  })) << "others would not have it either";
}

// What it trained is not lost for them: they were opened with the rest.
TEST(BlameTest, ValidationAndTokenizerThatGoWhileTraining_AreNotMissed) {
  const DataFolder data = MakeData();
  Cluster cluster({.devices = 2});
  const int64_t job =
      cluster
          .Submit(Document(
              data, {.steps = 300, .vision = "", .language = "ranks: 2", .validation = true}))
          .id();
  cluster.AwaitStep(job, 1);
  std::filesystem::remove(data.path + "/validation-000.tar");
  std::filesystem::remove(data.files.tokenizer);
  const v1::JobStatus ended = cluster.AwaitEnd(job);
  EXPECT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.failure().message();
}

TEST(BlameTest, JobSubmittedAgain_LeavesTheMetricsOfTheRunBefore) {
  const DataFolder data = MakeData();
  Cluster cluster({.devices = 2});
  for (const int64_t steps : {4, 2}) {
    const int64_t job = cluster.Submit(Document(data, {.steps = steps})).id();
    ASSERT_EQ(cluster.AwaitEnd(job).phase(), v1::JOB_PHASE_SUCCEEDED);
  }
  EXPECT_EQ(StepsFault(ReadMetrics(data.path + "/out"), 2), "");
  const std::string before = support::ReadFile(data.path + "/out/metrics.1.jsonl");
  EXPECT_EQ(std::count(before.begin(), before.end(), '\n'), 4);
}

}  // namespace
}  // namespace phalanx::e2e
