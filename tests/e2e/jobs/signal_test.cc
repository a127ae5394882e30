// SIGTERM ends everything in good order.
#include <signal.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

// The grace that programs have by default, and what a busy machine needs on top.
constexpr absl::Duration kGrace = absl::Seconds(20);

TEST(SignalTest, TermToCoordinatorThenWorker_BothEndInOrder) {
  const DataFolder data = MakeData();
  Cluster cluster({.devices = 2});
  const int64_t job =
      cluster.Submit(Document(data, {.steps = kForEver, .recovery = kNoRecovery})).id();
  cluster.AwaitStep(job, 2);
  const std::map<int32_t, support::ProcessWatch> ranks = cluster.Ranks(job);
  ASSERT_EQ(ranks.size(), 2u);

  const absl::Time begin = absl::Now();
  cluster.coordinator().Signal(SIGTERM);
  EXPECT_EQ(cluster.coordinator().WaitExitCode(), 0);
  EXPECT_LT(absl::Now() - begin, kGrace);
  for (const auto& [rank, watch] : ranks)
    EXPECT_FALSE(watch.HasEnded()) << "training never stops for it";
  cluster.StartCoordinator();
  const int64_t step = cluster.Get(job).last_step().step();
  cluster.AwaitStep(job, step + 1);

  const absl::Time later = absl::Now();
  cluster.worker().Signal(SIGTERM);
  EXPECT_EQ(cluster.worker().WaitExitCode(), 0);
  EXPECT_LT(absl::Now() - later, kGrace);
  for (const auto& [rank, watch] : ranks) EXPECT_TRUE(watch.HasEnded()) << "rank " << rank;
  const v1::JobStatus failed = cluster.AwaitEnd(job);
  EXPECT_EQ(failed.phase(), v1::JOB_PHASE_FAILED);
  EXPECT_EQ(failed.failure().cause(), "NodeStopped") << failed.failure().message();
  cluster.coordinator().Signal(SIGTERM);
  EXPECT_EQ(cluster.coordinator().WaitExitCode(), 0);
  EXPECT_TRUE(cluster.Processes().empty());
}

TEST(SignalTest, TermToRun_CancelsAndLeavesNothing) {
  const DataFolder data = MakeData();
  support::WriteFile(data.path + "/job.yaml", JobText(data, {.steps = kForEver}));
  const std::string mark = support::NewMark();
  support::Process run({support::Program("phalanx"), "run", data.path + "/job.yaml"}, mark,
                       data.path + "/run.out", data.path + "/run.talk");
  // The first rank of the last stage makes it when training is about to begin.
  support::AwaitFile(data.path + "/out", run);
  support::AwaitFile(data.path + "/out/metrics.jsonl", run);
  const absl::Time begin = absl::Now();
  run.Signal(SIGTERM);
  EXPECT_EQ(run.WaitExitCode(), 103) << support::ReadText(data.path + "/run.talk");
  EXPECT_LT(absl::Now() - begin, kGrace);
  EXPECT_TRUE(support::ProcessesMarked(mark).empty());
}

// The process among them that runs a program of that name.
pid_t ProcessOf(const std::vector<pid_t>& processes, const std::string& program) {
  for (const pid_t pid : processes) {
    std::error_code error;
    const auto path = std::filesystem::read_symlink(absl::StrCat("/proc/", pid, "/exe"), error);
    if (!error && path.filename() == program) return pid;
  }
  return -1;
}

TEST(SignalTest, TermToRun_WhoseCoordinatorHangs_SaysThatItDoesNotKnowTheEnd) {
  const DataFolder data = MakeData();
  support::WriteFile(data.path + "/job.yaml", JobText(data, {.steps = kForEver}));
  const std::string mark = support::NewMark();
  support::Process run({support::Program("phalanx"), "run", data.path + "/job.yaml"}, mark,
                       data.path + "/run.out", data.path + "/run.talk");
  support::AwaitFile(data.path + "/out", run);
  support::AwaitFile(data.path + "/out/metrics.jsonl", run);
  const pid_t coordinator = ProcessOf(support::ProcessesMarked(mark), "phalanx-coordinator");
  ASSERT_GT(coordinator, 0);
  ASSERT_EQ(kill(coordinator, SIGSTOP), 0);
  run.Signal(SIGTERM);
  EXPECT_EQ(run.WaitExitCode(), 69);
  EXPECT_THAT(support::ReadText(data.path + "/run.talk"),
              testing::HasSubstr("the local cluster ends now, and job-1 with it; how far it came"));
  EXPECT_EQ(support::ReadText(data.path + "/run.out"), "") << "nothing is known of an end";
  EXPECT_TRUE(support::ProcessesMarked(mark).empty());
}

TEST(SignalTest, KillOfRun_TakesEverythingAlong) {
  const DataFolder data = MakeData();
  support::WriteFile(data.path + "/job.yaml", JobText(data, {.steps = kForEver}));
  const std::string mark = support::NewMark();
  support::Process run({support::Program("phalanx"), "run", data.path + "/job.yaml"}, mark,
                       data.path + "/run.out", data.path + "/run.talk");
  support::AwaitFile(data.path + "/out", run);
  support::AwaitFile(data.path + "/out/metrics.jsonl", run);
  std::vector<support::ProcessWatch> watches;
  for (const pid_t pid : support::ProcessesMarked(mark)) watches.emplace_back(pid);
  EXPECT_EQ(watches.size(), 5u) << "run, coordinator, worker, two ranks";
  run.Signal(SIGKILL);
  run.Wait();
  for (const support::ProcessWatch& watch : watches) EXPECT_TRUE(watch.AwaitEnd()) << watch.pid();
}

}  // namespace
}  // namespace phalanx::e2e
