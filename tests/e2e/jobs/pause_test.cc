// Processes that are stopped for a while and go on: nobody dies of it.
#include <csignal>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

using testing::HasSubstr;

// Stops `process` for `duration` while `witness` goes on living.
void Pause(const support::Process& process, const support::Process& witness,
           absl::Duration duration) {
  process.Signal(SIGSTOP);
  EXPECT_FALSE(witness.watch().AwaitEnd(duration));
  process.Signal(SIGCONT);
}

// It trains on, in the same epoch.
void ExpectToGoOn(Cluster& cluster, int64_t job) {
  const int64_t step = cluster.Get(job).last_step().step();
  const v1::JobStatus later = cluster.AwaitStep(job, step + 50);
  EXPECT_EQ(later.phase(), v1::JOB_PHASE_RUNNING) << later.reason();
  EXPECT_EQ(later.epoch(), 1);
}

TEST(PauseTest, CoordinatorStoppedForLongerThanItsTimeout_LosesNoNode) {
  const DataFolder data = MakeData();
  Cluster cluster(
      {.devices = 2,
       .coordinator_flags = {"--heartbeat-interval", "200ms", "--heartbeat-timeout", "2s"}});
  const int64_t job = cluster.Submit(Document(data, {.steps = kForEver})).id();
  cluster.AwaitStep(job, 2);
  Pause(cluster.coordinator(), cluster.worker(), absl::Seconds(5));
  ExpectToGoOn(cluster, job);
  EXPECT_THAT(cluster.CoordinatorLog(), HasSubstr("stalled for"));
}

TEST(PauseTest, DaemonStoppedForLessThanTheTimeout_KeepsItsRanks) {
  const DataFolder data = MakeData();
  Cluster cluster({.devices = 2});
  const int64_t job = cluster.Submit(Document(data, {.steps = kForEver})).id();
  cluster.AwaitStep(job, 2);
  Pause(cluster.worker(), cluster.coordinator(), absl::Seconds(5));
  ExpectToGoOn(cluster, job);
  EXPECT_THAT(cluster.WorkerLog(), HasSubstr("stalled for"));
}

// Its peers wait for it.
TEST(PauseTest, RankStoppedForTwoSeconds_GoesOn) {
  const DataFolder data = MakeData();
  Cluster cluster({.devices = 2});
  const int64_t job = cluster.Submit(Document(data, {.steps = kForEver})).id();
  cluster.AwaitStep(job, 2);
  const auto ranks = cluster.Ranks(job);
  const support::ProcessWatch& rank = ranks.at(1);
  rank.Stop();
  EXPECT_FALSE(cluster.worker().watch().AwaitEnd(absl::Seconds(2)));
  kill(rank.pid(), SIGCONT);
  ExpectToGoOn(cluster, job);
}

TEST(PauseTest, RankStoppedForGood_IsEndedAndNamed) {
  const DataFolder data = MakeData();
  Cluster cluster({.devices = 2});
  const int64_t job =
      cluster.Submit(Document(data, {.steps = kForEver, .recovery = "{ladder: []}"})).id();
  cluster.AwaitStep(job, 20);
  cluster.Ranks(job).at(1).Stop();
  const absl::Time stopped = absl::Now();
  const v1::JobStatus ended = cluster.AwaitEnd(job);
  RecordProperty("seconds", absl::StrCat(absl::ToDoubleSeconds(absl::Now() - stopped)));
  EXPECT_EQ(ended.failure().kind(), v1::FAILURE_KIND_RANK_HUNG) << ended.reason();
  EXPECT_EQ(ended.failure().rank(), 1);
  EXPECT_LT(absl::Now() - stopped, absl::Seconds(12)) << "of 5, its end and a busy machine";
}

}  // namespace
}  // namespace phalanx::e2e
