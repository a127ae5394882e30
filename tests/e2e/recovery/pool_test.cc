// A node in reserve: a job that loses a node trains on without it, and is whole again on devices of
// the reserve.
#include <signal.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/recovery/trouble.h"

namespace phalanx::e2e {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

JobOptions PoolJob(const std::string& name) {
  return {.name = name,
          .steps = kForEver,
          .precision = "fp64",
          .vision = "",
          .language = "ranks: 4",
          .batch = 7,
          .learning_rate = kSmallLearningRate,
          .minimum_learning_rate = kSmallLearningRate,
          .output = name};
}

// Four ranks on two nodes, and a third one in reserve.
class PoolTest : public testing::Test {
 protected:
  PoolTest()
      : data_(MakeSmallData()),
        cluster_(
            {.devices = 2,
             .coordinator_flags = {"--heartbeat-interval", "200ms", "--heartbeat-timeout", "2s"}}) {
    there_ = &cluster_.AddWorker("there", 2);
    cluster_.AddWorker("spares", 2);
    EXPECT_EQ(cluster_.Phalanx({"reserve", "spares", "--reason", "for everybody"}).exit_code, 0);
  }
  std::vector<int64_t> JobsOn(const std::string& name) {
    for (const v1::NodeStatus& node : cluster_.Nodes()) {
      if (node.name() == name) return {node.device_jobs().begin(), node.device_jobs().end()};
    }
    return {};
  }

  DataFolder data_;
  Cluster cluster_;
  support::Process* there_ = nullptr;
};

TEST_F(PoolTest, NodeThatIsLost_IsReplacedByOneInReserve_AndTheLossesAreTheSame) {
  EXPECT_THAT(cluster_.Phalanx({"nodes"}).out, HasSubstr("Ready, reserved: for everybody"));
  const int64_t job = cluster_.Submit(Document(data_, PoolJob("hit"))).id();
  cluster_.AwaitStep(job, 5);
  EXPECT_THAT(JobsOn("spares"), Each(0));
  there_->Signal(SIGKILL);
  cluster_.Await(job, [this, job](const v1::JobStatus&) {
    return !MessagesOf(cluster_, job, "Returned").empty();
  });
  EXPECT_THAT(MessagesOf(cluster_, job, "Recovered"), HasSubstr("dp 4 -> "));
  EXPECT_THAT(MessagesOf(cluster_, job, "DeviceLent"),
              AllOf(HasSubstr("rank 2 goes on on device 0 of node spares"),
                    HasSubstr("rank 3 goes on on device 1 of node spares")));
  EXPECT_THAT(MessagesOf(cluster_, job, "Returned"), HasSubstr("dp 2 -> 4"));
  EXPECT_THAT(JobsOn("spares"), Each(job));
  const int64_t whole_again = cluster_.Get(job).last_step().step();
  cluster_.AwaitStep(job, whole_again + 5);
  // The run without a failure has the node that was in reserve.
  EXPECT_EQ(cluster_.Phalanx({"unreserve", "spares"}).exit_code, 0);
  ExpectCurvesOfAnUndisturbedRun(cluster_, data_, PoolJob("hit"), job, whole_again + 5);
}

TEST_F(PoolTest, LentDevices_AreInReserveAgainWhenTheJobEnds) {
  const int64_t job = cluster_.Submit(Document(data_, PoolJob("hit"))).id();
  cluster_.AwaitStep(job, 5);
  there_->Signal(SIGKILL);
  cluster_.Await(job, [this, job](const v1::JobStatus&) {
    return !MessagesOf(cluster_, job, "Returned").empty();
  });
  cluster_.AddWorker("there", 2);
  cluster_.Cancel(job);
  cluster_.AwaitEnd(job);
  // The nodes of before are enough for another one, and the reserve is not touched.
  const int64_t next = cluster_.Submit(Document(data_, PoolJob("next"))).id();
  cluster_.AwaitStep(next, 1);
  EXPECT_THAT(JobsOn("spares"), Each(0));
  EXPECT_THAT(JobsOn("there"), Each(next));
}

}  // namespace
}  // namespace phalanx::e2e
