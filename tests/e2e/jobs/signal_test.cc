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

// `phalanx run` of a job that has begun to train.
class LocalRun {
 public:
  explicit LocalRun(int64_t steps = kForEver)
      : run_({support::Program("phalanx"), "run", JobFile(steps)}, mark_, data_.path + "/run.out",
             data_.path + "/run.talk") {
    support::AwaitFile(path() + "/out", run_);
    // The first rank of the last stage makes it when training is about to begin.
    support::AwaitFile(path() + "/out/metrics.jsonl", run_);
  }

  support::Process& process() { return run_; }
  const std::string& path() const { return data_.path; }
  std::vector<pid_t> Processes() const { return support::ProcessesMarked(mark_); }
  // Those that run a program of that name.
  std::vector<pid_t> ProcessesOf(const std::string& program) const {
    std::vector<pid_t> found;
    for (const pid_t pid : Processes()) {
      std::error_code gone;
      const auto path = std::filesystem::read_symlink(absl::StrCat("/proc/", pid, "/exe"), gone);
      if (!gone && path.filename() == program) found.push_back(pid);
    }
    return found;
  }
  std::string Out() const { return support::ReadText(path() + "/run.out"); }
  std::string Talk() const { return support::ReadText(path() + "/run.talk"); }

 private:
  std::string JobFile(int64_t steps) const {
    support::WriteFile(path() + "/job.yaml", JobText(data_, {.steps = steps}));
    return path() + "/job.yaml";
  }

  const DataFolder data_ = MakeData();
  const std::string mark_ = support::NewMark();
  support::Process run_;
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
  LocalRun run;
  const absl::Time begin = absl::Now();
  run.process().Signal(SIGTERM);
  EXPECT_EQ(run.process().WaitExitCode(), 103) << run.Talk();
  EXPECT_LT(absl::Now() - begin, kGrace);
  EXPECT_TRUE(run.Processes().empty());
}

// It is asked to end once the job has, and has not been told of that yet.
TEST(SignalTest, TermToRun_OfAJobThatHasEnded_ShowsHowItEnded) {
  LocalRun run(20);
  std::vector<support::ProcessWatch> ranks;
  for (const pid_t pid : run.ProcessesOf("phalanx-rank")) ranks.emplace_back(pid);
  run.process().Signal(SIGSTOP);
  for (const support::ProcessWatch& rank : ranks) ASSERT_TRUE(rank.AwaitEnd());
  run.process().Signal(SIGTERM);
  run.process().Signal(SIGCONT);
  EXPECT_EQ(run.process().WaitExitCode(), 0) << run.Talk();
  EXPECT_THAT(run.Out(), testing::HasSubstr("Succeeded after 20 of 20 steps"));
  EXPECT_TRUE(std::filesystem::exists(run.path() + "/out/job.json"));
}

TEST(SignalTest, TermToRun_WhoseCoordinatorHangs_SaysThatItDoesNotKnowTheEnd) {
  LocalRun run;
  const std::vector<pid_t> coordinator = run.ProcessesOf("phalanx-coordinator");
  ASSERT_EQ(coordinator.size(), 1u);
  support::ProcessWatch(coordinator[0]).Stop();
  run.process().Signal(SIGTERM);
  EXPECT_EQ(run.process().WaitExitCode(), 69);
  EXPECT_THAT(run.Talk(),
              testing::HasSubstr("the local cluster ends now, and job-1 with it; how far it came"));
  EXPECT_EQ(run.Out(), "") << "nothing is known of an end";
  EXPECT_TRUE(run.Processes().empty());
}

TEST(SignalTest, KillOfRun_TakesEverythingAlong) {
  LocalRun run;
  std::vector<support::ProcessWatch> watches;
  for (const pid_t pid : run.Processes()) watches.emplace_back(pid);
  EXPECT_EQ(watches.size(), 5u) << "run, coordinator, worker, two ranks";
  run.process().Signal(SIGKILL);
  run.process().Wait();
  for (const support::ProcessWatch& watch : watches) EXPECT_TRUE(watch.AwaitEnd()) << watch.pid();
}

}  // namespace
}  // namespace phalanx::e2e
