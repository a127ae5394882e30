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

// `phalanx run` of a job without an end, which is about to train.
class EndlessRun {
 public:
  EndlessRun() {
    support::AwaitFile(data_.path + "/out", run);
    // The first rank of the last stage makes it when training is about to begin.
    support::AwaitFile(data_.path + "/out/metrics.jsonl", run);
  }
  std::vector<pid_t> Processes() const { return support::ProcessesMarked(mark_); }
  std::string Out() const { return support::ReadText(data_.path + "/run.out"); }
  std::string Talk() const { return support::ReadText(data_.path + "/run.talk"); }

 private:
  std::string JobFile() const {
    support::WriteFile(data_.path + "/job.yaml", JobText(data_, {.steps = kForEver}));
    return data_.path + "/job.yaml";
  }
  const DataFolder data_ = MakeData();
  const std::string mark_ = support::NewMark();

 public:
  support::Process run{{support::Program("phalanx"), "run", JobFile()},
                       mark_,
                       data_.path + "/run.out",
                       data_.path + "/run.talk"};
};

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
  EndlessRun endless;
  const absl::Time begin = absl::Now();
  endless.run.Signal(SIGTERM);
  EXPECT_EQ(endless.run.WaitExitCode(), 103) << endless.Talk();
  EXPECT_LT(absl::Now() - begin, kGrace);
  EXPECT_TRUE(endless.Processes().empty());
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
  EndlessRun endless;
  const pid_t coordinator = ProcessOf(endless.Processes(), "phalanx-coordinator");
  ASSERT_GT(coordinator, 0);
  ASSERT_EQ(kill(coordinator, SIGSTOP), 0);
  endless.run.Signal(SIGTERM);
  EXPECT_EQ(endless.run.WaitExitCode(), 69);
  EXPECT_THAT(endless.Talk(),
              testing::HasSubstr("the local cluster ends now, and job-1 with it; how far it came"));
  EXPECT_EQ(endless.Out(), "") << "nothing is known of an end";
  EXPECT_TRUE(endless.Processes().empty());
}

TEST(SignalTest, KillOfRun_TakesEverythingAlong) {
  EndlessRun endless;
  std::vector<support::ProcessWatch> watches;
  for (const pid_t pid : endless.Processes()) watches.emplace_back(pid);
  EXPECT_EQ(watches.size(), 5u) << "run, coordinator, worker, two ranks";
  endless.run.Signal(SIGKILL);
  endless.run.Wait();
  for (const support::ProcessWatch& watch : watches) EXPECT_TRUE(watch.AwaitEnd()) << watch.pid();
}

}  // namespace
}  // namespace phalanx::e2e
