// Devices that idle take over from lost ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/machine/recovering.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using job::JobPhase;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Three ranks on four devices of one node.
class SpareTest : public RecoveringTest {
 protected:
  JobId TrainBesideASpare() {
    node_ = h_.Open("n", 4);
    JobRequest request = *AJob("a", 4, "a spare");
    request.world = 3;
    request.recovers = request.rejoins = true;
    const JobId job = h_.Submit(std::make_shared<const JobRequest>(std::move(request)));
    h_.Prepare(node_);
    h_.Answer<Assign>(node_);
    h_.Ready(node_, job, 0, 3);
    EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
    Step(job, 5, 1);
    h_.commands.clear();
    return job;
  }
  // Ranks that were not lost leave `epoch` behind `step`; all are ready in the next one.
  void GoOver(JobId job, const std::vector<int32_t>& left, int64_t step, int64_t epoch) {
    for (const int32_t rank : left) h_.Report(node_, job, rank, Quiet(step, rank), epoch);
    for (const int32_t rank : {0, 1, 2}) h_.Report(node_, job, rank, RankReady{}, epoch + 1);
  }
  void ExpectASpareTookOver(JobId job) {
    Step(job, 6, 2);
    EXPECT_THAT(h_.incidents[job].back()->lost, ElementsAre(1));
    EXPECT_THAT(h_.incidents[job].back()->returned, ElementsAre(1));
    EXPECT_THAT(Events(job, "Recovered"), ElementsAre(HasSubstr("a spare takes over rank 1")));
    EXPECT_THAT(Events(job, "Returned"), IsEmpty());
  }
};

TEST_F(SpareTest, LostRank_GoesOnOnTheDeviceThatIdled) {
  const JobId job = TrainBesideASpare();
  h_.Report(node_, job, 1, RankDied{});
  const auto assigned = h_.Commands<Assign>(node_);
  ASSERT_THAT(assigned, SizeIs(1));
  EXPECT_THAT(assigned[0].second.layout->nodes.front().devices, ElementsAre(0, 3, 2, 1));
  EXPECT_THAT(assigned[0].second.layout->lost, ElementsAre(Rank{3}));
  // Of the process that is gone, not of the one that takes over.
  h_.Report(node_, job, 1, kKilled);
  EXPECT_EQ(h_.State(job).epoch, Epoch{2});
  GoOver(job, {0, 2}, 5, 1);
  EXPECT_THAT(BegunBehind(), ElementsAre(5));
  EXPECT_THAT(Events(job, "Recovered"), ElementsAre(HasSubstr("a spare takes over rank 1")));
  EXPECT_THAT(Events(job, "Returned"), IsEmpty());
}

// The layout lacks the place of the spare, which nobody has lost.
TEST_F(SpareTest, CoordinatorThatRestartsOnTheWay_TellsOfTheSpare) {
  const JobId job = TrainBesideASpare();
  h_.Report(node_, job, 1, RankDied{});
  h_.Restart();
  node_ = h_.Open("n", 4, 1, {{job, Epoch{2}}}, 100);
  GoOver(job, {0, 2}, 5, 1);
  ExpectASpareTookOver(job);
}

TEST_F(SpareTest, CoordinatorThatRestartsOnceTheEpochHasBegun_TellsOfTheSpare) {
  const JobId job = TrainBesideASpare();
  h_.Report(node_, job, 1, RankDied{});
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, Quiet(5, rank), 1);
  h_.Restart();
  node_ = h_.Open("n", 4, 1, {{job, Epoch{2}}}, 100);
  ExpectASpareTookOver(job);
}

TEST_F(SpareTest, DeviceThatIsBack_IsTheSpareOfTheNextLossAndNobodyStopsForIt) {
  const JobId job = TrainBesideASpare();
  h_.Report(node_, job, 1, RankDied{});
  GoOver(job, {0, 2}, 5, 1);
  Step(job, 6, 2);
  EXPECT_THAT(h_.Commands<PrepareData>(node_), IsEmpty());
  h_.plans_held = true;
  h_.Report(node_, job, 2, RankDied{}, 2);
  ASSERT_THAT(h_.plans, SizeIs(1));
  EXPECT_THAT(h_.plans[0].lost, ElementsAre(Rank{2}));
  EXPECT_THAT(h_.plans[0].returned, ElementsAre(Rank{3}));
  h_.plans_held = false;
  h_.AnswerPlans();
  h_.Commit();
  EXPECT_THAT(h_.State(job).layout->nodes.front().devices, ElementsAre(0, 3, 1, 2));
  GoOver(job, {0, 1}, 6, 2);
  EXPECT_THAT(Events(job, "Recovered"), SizeIs(2));
}

TEST_F(SpareTest, DeviceThatFailed_IsNoSpare) {
  const JobId job = TrainBesideASpare();
  h_.Report(node_, job, 1,
            RankError{.kind = FailureKind::kDeviceFailed, .message = "it fell off the bus"});
  GoOver(job, {0, 2}, 5, 1);
  Step(job, 6, 2);
  h_.plans_held = true;
  h_.Report(node_, job, 2, RankDied{}, 2);
  ASSERT_THAT(h_.plans, SizeIs(1));
  EXPECT_THAT(h_.plans[0].returned, IsEmpty());
}

// It is lost while the others wait for it.
TEST_F(SpareTest, SpareThatDiesOnItsWay_IsALossOfItsOwn) {
  const JobId job = TrainBesideASpare();
  h_.Report(node_, job, 1, RankDied{});
  h_.Report(node_, job, 1, RankDied{}, 2);
  EXPECT_EQ(h_.State(job).epoch, Epoch{3});
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, Quiet(5, rank));
  EXPECT_THAT(BegunBehind(), ElementsAre(5));
}

// The spare is of a node of its own. The coordinator dies, so does rank 1, and the spare's node is
// the last to come back to the next coordinator.
class AwaitedSpareTest : public SpareTest {
 protected:
  JobId LoseARankMeanwhile() {
    node_ = h_.Open("n", 3);
    const SessionId spare = h_.Open("s", 1);
    JobRequest request = *AJob("a", 4, "a spare");
    request.world = 3;
    request.recovers = request.rejoins = true;
    const JobId job = h_.Submit(std::make_shared<const JobRequest>(std::move(request)));
    for (const SessionId node : {node_, spare}) h_.Prepare(node);
    for (const SessionId node : {node_, spare}) h_.Answer<Assign>(node);
    h_.Ready(node_, job, 0, 3);
    Step(job, 5, 1);
    h_.Restart();
    node_ = h_.Open("n", 3, 1, {{job, Epoch{1}}}, 3);
    Step(job, 5, 1);
    h_.Report(node_, job, 1, RankDied{});
    return job;
  }
};

TEST_F(AwaitedSpareTest, NodeThatHasNotComeBackYet_IsCountedOnAndToldOnceItHas) {
  const JobId job = LoseARankMeanwhile();
  EXPECT_EQ(h_.State(job).epoch, Epoch{2});
  EXPECT_THAT(h_.State(job).layout->lost, ElementsAre(Rank{3}));
  const SessionId spare = h_.Open("s", 1, 1, {}, 2);
  const auto assigned = h_.Commands<Assign>(spare);
  ASSERT_THAT(assigned, SizeIs(1));
  EXPECT_EQ(assigned[0].second.epoch, Epoch{2});
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, Quiet(5, rank));
  EXPECT_THAT(BegunBehind(), ElementsAre(5));
}

// The process of rank 1 is gone, not its device: it takes the rank again.
TEST_F(AwaitedSpareTest, NodeThatDoesNotComeBack_IsALossOfItsOwn) {
  const JobId job = LoseARankMeanwhile();
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, Quiet(5, rank));
  for (int i = 0; i < 4 && h_.State(job).epoch == Epoch{2}; ++i) {
    h_.Advance(absl::Seconds(5));
    h_.Feed(HeartbeatReceived{.session = node_});
  }
  EXPECT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_THAT(h_.State(job).layout->lost, ElementsAre(Rank{3}));
  EXPECT_THAT(h_.State(job).layout->nodes.front().devices, ElementsAre(0, 1, 2));
  const auto assigned = h_.Commands<Assign>(node_);
  ASSERT_FALSE(assigned.empty());
  EXPECT_EQ(assigned.back().second.epoch, Epoch{3});
}

}  // namespace
}  // namespace phalanx::coordinator
