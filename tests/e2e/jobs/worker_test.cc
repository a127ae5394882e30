// A daemon that dies takes its ranks with it.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

using testing::HasSubstr;

TEST(WorkerTest, KilledAndBack_ItsJobFailsAtOnce_AndTheNextOneRuns) {
  const DataFolder data = MakeData();
  // The restarted daemon is what tells, not silence.
  Cluster cluster({.devices = 2, .coordinator_flags = {"--heartbeat-timeout", "10m"}});
  const int64_t job =
      cluster.Submit(Document(data, {.steps = kForEver, .recovery = kNoRecovery})).id();
  cluster.AwaitStep(job, 2);
  const std::map<int32_t, support::ProcessWatch> ranks = cluster.Ranks(job);
  ASSERT_EQ(ranks.size(), 2u);
  cluster.KillWorker();
  for (const auto& [rank, watch] : ranks) EXPECT_TRUE(watch.AwaitEnd()) << "rank " << rank;
  EXPECT_EQ(cluster.Get(job).phase(), v1::JOB_PHASE_RUNNING);
  cluster.StartWorker();
  const v1::JobStatus failed = cluster.AwaitEnd(job);
  EXPECT_EQ(failed.phase(), v1::JOB_PHASE_FAILED);
  EXPECT_EQ(failed.failure().cause(), "NodeLost");
  EXPECT_EQ(failed.failure().node(), "here");
  EXPECT_THAT(cluster.Why(job), HasSubstr("restarted"));
  const int64_t second = cluster.Submit(Document(data, {.name = "second", .steps = 2})).id();
  EXPECT_EQ(cluster.AwaitEnd(second).phase(), v1::JOB_PHASE_SUCCEEDED);
}

TEST(WorkerTest, KilledForGood_ItsJobFailsWhenTheHeartbeatTimeoutPasses) {
  const DataFolder data = MakeData();
  Cluster cluster(
      {.devices = 2,
       .coordinator_flags = {"--heartbeat-interval", "200ms", "--heartbeat-timeout", "3s"}});
  const int64_t job =
      cluster.Submit(Document(data, {.steps = kForEver, .recovery = kNoRecovery})).id();
  cluster.AwaitStep(job, 2);
  cluster.KillWorker();
  const v1::JobStatus failed = cluster.AwaitEnd(job);
  EXPECT_EQ(failed.phase(), v1::JOB_PHASE_FAILED);
  EXPECT_EQ(failed.failure().cause(), "NodeLost");
  EXPECT_THAT(failed.failure().message(), HasSubstr("away"));
}

}  // namespace
}  // namespace phalanx::e2e
