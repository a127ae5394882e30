// What is left cannot go on by itself: the job waits for what is lost, and where state is lost with
// it, goes back to its last checkpoint.
#include <signal.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/recovery/trouble.h"

namespace phalanx::e2e {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int64_t kWaitSteps = 120;

JobOptions WaitingJob(const std::string& name) {
  return {.name = name,
          .steps = kWaitSteps,
          .precision = "fp64",
          .vision = "",
          .language = "ranks: 2, tp: 2",
          .batch = 7,
          .checkpoint = "{every: 3, directory: checkpoints-" + name + "}",
          .output = name};
}

class WaitTest : public testing::Test {
 protected:
  WaitTest() : data_(MakeSmallData()), cluster_({.devices = 2}) {
    const v1::JobStatus whole =
        cluster_.AwaitEnd(cluster_.Submit(Document(data_, WaitingJob("whole"))).id());
    EXPECT_EQ(whole.phase(), v1::JOB_PHASE_SUCCEEDED) << whole.reason();
    job_ = cluster_.Submit(Document(data_, WaitingJob("hit"))).id();
    cluster_.Await(job_,
                   [](const v1::JobStatus& status) { return status.last_checkpoint().step() > 0; });
  }
  void ExpectItGoesOn() {
    const v1::JobStatus ended = cluster_.AwaitEnd(job_);
    ASSERT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason() << cluster_.WorkerLog();
    EXPECT_THAT(MessagesOf(cluster_, job_, "StateLost"), Not(HasSubstr("checkpoint section")));
    // To copies, or, where these are no newer than a checkpoint, to that.
    EXPECT_NE(MessagesOf(cluster_, job_, "StateLost") + MessagesOf(cluster_, job_, "WentBack"), "");
    ExpectSameCurves(MetricsOf(data_, "hit"), MetricsOf(data_, "whole"), kWaitSteps);
  }

  DataFolder data_;
  Cluster cluster_;
  int64_t job_ = 0;
};

// One replica, so every rank is needed, and what it held is nowhere else.
TEST_F(WaitTest, RankThatIsNeeded_IsStartedAgain) {
  kill(cluster_.Ranks(job_).at(1).pid(), SIGKILL);
  ExpectItGoesOn();
}

TEST_F(WaitTest, DaemonThatIsKilledAndBack_TrainsOn) {
  cluster_.KillWorker();
  cluster_.StartWorker();
  ExpectItGoesOn();
}

TEST(HoldTest, JobThatHasWaitedTooLong_IsQueuedAndGoesOnElsewhere) {
  const DataFolder data = MakeSmallData();
  Cluster cluster({.devices = 1});
  support::Process& lost = cluster.AddWorker("b", 1);
  ASSERT_EQ(cluster.AwaitEnd(cluster.Submit(Document(data, WaitingJob("whole"))).id()).phase(),
            v1::JOB_PHASE_SUCCEEDED);
  JobOptions options = WaitingJob("hit");
  options.recovery = "{ladder: [wait], hold: 1s}";
  const int64_t job = cluster.Submit(Document(data, options)).id();
  cluster.Await(job,
                [](const v1::JobStatus& status) { return status.last_checkpoint().step() > 0; });
  lost.Signal(SIGKILL);
  lost.Wait();
  const v1::JobStatus queued = cluster.Await(
      job, [](const v1::JobStatus& status) { return status.phase() == v1::JOB_PHASE_QUEUED; });
  EXPECT_THAT(queued.reason(), HasSubstr("not enough came back within 1s"));
  cluster.AddWorker("c", 1);
  const v1::JobStatus ended = cluster.AwaitEnd(job);
  ASSERT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason() << cluster.WorkerLog();
  ExpectSameCurves(MetricsOf(data, "hit"), MetricsOf(data, "whole"), kWaitSteps);
}

// Both replicas have all of the state, and no checkpoint was due: without the one that the other
// replica writes there would be nothing to go on from.
TEST(HoldTest, StateThatIsLeft_IsSavedBeforeTheDevicesAreFree) {
  const DataFolder data = MakeSmallData();
  Cluster cluster({.devices = 1});
  support::Process& lost = cluster.AddWorker("b", 1);
  const auto options = [](const std::string& name) {
    JobOptions job = WaitingJob(name);
    job.language = "ranks: 2";
    job.checkpoint = "{every: 100, directory: checkpoints-" + name + "}";
    job.recovery = "{ladder: [wait], hold: 1s}";
    return job;
  };
  ASSERT_EQ(cluster.AwaitEnd(cluster.Submit(Document(data, options("whole"))).id()).phase(),
            v1::JOB_PHASE_SUCCEEDED);
  const int64_t job = cluster.Submit(Document(data, options("hit"))).id();
  cluster.AwaitStep(job, 3);
  lost.Signal(SIGKILL);
  lost.Wait();
  const v1::JobStatus queued = cluster.Await(job, [](const v1::JobStatus& status) {
    return status.phase() == v1::JOB_PHASE_QUEUED || status.phase() == v1::JOB_PHASE_FAILED;
  });
  ASSERT_EQ(queued.phase(), v1::JOB_PHASE_QUEUED) << queued.reason();
  EXPECT_THAT(queued.reason(), Not(HasSubstr("done again")));
  EXPECT_GE(queued.last_checkpoint().step(), queued.last_step().step());
  cluster.AddWorker("c", 1);
  const v1::JobStatus ended = cluster.AwaitEnd(job);
  ASSERT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason() << cluster.WorkerLog();
  ExpectSameCurves(MetricsOf(data, "hit"), MetricsOf(data, "whole"), kWaitSteps);
}

}  // namespace
}  // namespace phalanx::e2e
