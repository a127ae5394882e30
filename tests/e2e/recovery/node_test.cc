// More than one rank at once: a node with its daemon, the coordinator beside a rank, a node that
// was only away.
#include <signal.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/recovery/trouble.h"

namespace phalanx::e2e {
namespace {

using testing::HasSubstr;

// More than are done before a node notices what is asked of it.
constexpr int64_t kNodeSteps = 400;

JobOptions NodeJob(const std::string& name) {
  return {.name = name,
          .steps = kNodeSteps,
          .precision = "fp64",
          .vision = "",
          .language = "ranks: 6, tp: 2",
          .batch = 7,
          .output = name};
}

// Six ranks on three nodes: 0 and 1 on `here`, 4 and 5 on `there`.
class NodeTest : public testing::Test {
 protected:
  explicit NodeTest(std::vector<std::string> coordinator_flags = {})
      : data_(MakeSmallData()),
        cluster_({.devices = 2, .coordinator_flags = std::move(coordinator_flags)}) {
    cluster_.AddWorker("middle", 2);
    there_ = &cluster_.AddWorker("there", 2);
  }
  void TrainWhole() {
    const int64_t whole = cluster_.Submit(Document(data_, NodeJob("whole"))).id();
    ASSERT_EQ(cluster_.AwaitEnd(whole).phase(), v1::JOB_PHASE_SUCCEEDED);
  }
  void Train() {
    job_ = cluster_.Submit(Document(data_, NodeJob("hit"))).id();
    cluster_.AwaitStep(job_, 5);
  }
  void ExpectItGoesOn() {
    const v1::JobStatus ended = cluster_.AwaitEnd(job_);
    ASSERT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED)
        << ended.reason() << cluster_.CoordinatorLog() << cluster_.WorkerLog();
    ExpectSameCurves(MetricsOf(data_, "hit"), MetricsOf(data_, "whole"), kNodeSteps);
  }

  DataFolder data_;
  Cluster cluster_;
  support::Process* there_ = nullptr;
  int64_t job_ = 0;
};

TEST_F(NodeTest, NodeThatIsLost_TakesItsRanks_AndTheOthersGoOn) {
  TrainWhole();
  Train();
  there_->Signal(SIGKILL);
  ExpectItGoesOn();
  EXPECT_THAT(MessagesOf(cluster_, job_, "Recovered"), HasSubstr("without ranks 4, 5"));
}

TEST_F(NodeTest, TwoRanksAtOnce_AreLeftOutTogether) {
  TrainWhole();
  Train();
  const auto ranks = cluster_.Ranks(job_);
  for (const int32_t rank : {1, 2}) kill(ranks.at(rank).pid(), SIGKILL);
  ExpectItGoesOn();
}

TEST_F(NodeTest, NodeThatIsToldToStop_IsLeft_AndTheOthersGoOn) {
  TrainWhole();
  Train();
  there_->Signal(SIGTERM);
  EXPECT_EQ(there_->WaitExitCode(), 0);
  ExpectItGoesOn();
  EXPECT_THAT(MessagesOf(cluster_, job_, "Recovered"), HasSubstr("without ranks 4, 5"));
}

TEST_F(NodeTest, CoordinatorThatDiesBesideARank_GoesOnWhereItsJournalEnds) {
  TrainWhole();
  Train();
  kill(cluster_.Ranks(job_).at(3).pid(), SIGKILL);
  cluster_.KillCoordinator();
  cluster_.StartCoordinator();
  ExpectItGoesOn();
}

class AwayTest : public NodeTest {
 protected:
  AwayTest() : NodeTest({"--heartbeat-interval", "200ms", "--heartbeat-timeout", "2s"}) {}
};

// Its ranks are of an epoch that is over, and write nothing of it.
TEST_F(AwayTest, NodeThatComesBackAfterItWasLeftOut_ObeysTheNewEpoch) {
  TrainWhole();
  Train();
  const auto ranks = cluster_.Ranks(job_);
  there_->Signal(SIGSTOP);
  for (const int32_t rank : {4, 5}) ranks.at(rank).Stop();
  const v1::JobStatus without = cluster_.Await(job_, [](const v1::JobStatus& status) {
    return status.epoch() > 1 && status.last_step().epoch() == status.epoch();
  });
  there_->Signal(SIGCONT);
  for (const int32_t rank : {4, 5}) kill(ranks.at(rank).pid(), SIGCONT);
  for (const int32_t rank : {4, 5}) EXPECT_TRUE(ranks.at(rank).AwaitEnd()) << "rank " << rank;
  ExpectItGoesOn();
  EXPECT_GE(without.epoch(), 2);
}

}  // namespace
}  // namespace phalanx::e2e
