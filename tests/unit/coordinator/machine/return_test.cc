// Ranks that were left out come back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/machine/recovering.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using job::JobPhase;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class ReturnTest : public RecoveringTest {
 protected:
  // Rank 1 was killed behind step 3, and is on its way back: ranks 0 and 2 train in epoch 2, behind
  // step 4, while those of epoch 3 connect.
  JobId TrainWhileOneReturns() {
    const JobId job = Train();
    h_.Report(node_, job, 1, kKilled);
    GoOver(job, {0, 2}, 3, 1, {0, 2});
    Step(job, 4, 2);
    h_.Prepare(node_);
    EXPECT_EQ(h_.State(job).epoch, Epoch{3});
    return job;
  }
};

TEST_F(ReturnTest, KilledRank_IsBackAfterAStepWithoutIt) {
  const JobId job = Train();
  Step(job, 3, 1);
  h_.Report(node_, job, 1, kKilled);
  GoOver(job, {0, 2}, 3, 1, {0, 2});
  ASSERT_EQ(h_.State(job).epoch, Epoch{2}) << "no step has been decided without it";
  h_.plans_held = true;
  h_.commands.clear();
  Step(job, 4, 2);
  ASSERT_THAT(h_.Commands<PrepareData>(node_), SizeIs(1)) << "a process warms up first";
  EXPECT_THAT(h_.plans, IsEmpty());
  h_.Prepare(node_);
  ASSERT_THAT(h_.plans, SizeIs(1));
  EXPECT_THAT(h_.plans[0].returned, ElementsAre(Rank{1}));
  Step(job, 5, 2);  // the others train on
  EXPECT_THAT(h_.plans, SizeIs(1));
  h_.plans_held = false;
  h_.AnswerPlans();
  h_.Commit();
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_THAT(Lost(job), IsEmpty());
  const Assign assigned = h_.Commands<Assign>(node_).back().second;
  EXPECT_TRUE(assigned.goes_on);
  EXPECT_TRUE(assigned.beside);
  // They train on until all are connected, however long that takes.
  h_.Advance(absl::Seconds(10));
  h_.Feed(HeartbeatReceived{.session = node_});
  h_.Advance(absl::Seconds(10));
  Step(job, 6, 2);
  EXPECT_THAT(BegunBehind(), IsEmpty());
  EXPECT_EQ(h_.views[job]->last_step->step, 6);
  GoOver(job, {0, 2}, 6, 2, {0, 1, 2});
  EXPECT_THAT(BegunBehind(), ElementsAre(6));
  EXPECT_THAT(Events(job, "Returned"), ElementsAre(HasSubstr("rank 1 came back; step 7 redone")));
  EXPECT_THAT(Events(job, "Recovered"), SizeIs(1));
  EXPECT_THAT(h_.State(job).recoveries, SizeIs(1)) << "coming back is no recovery";
}

// They left it once all were connected, and none of them had begun the next one.
TEST_F(ReturnTest, RanksThatLeaveBehindAStep_DoNoneAgain) {
  const JobId job = TrainWhileOneReturns();
  for (const int32_t rank : {0, 2}) {
    RankQuiet quiet = Quiet(5, rank);
    quiet.begun = 5;
    h_.Report(node_, job, rank, quiet, 2);
  }
  for (const int32_t rank : {0, 1, 2}) h_.Report(node_, job, rank, RankReady{}, 3);
  EXPECT_THAT(BegunBehind(), ElementsAre(3, 5));
  EXPECT_THAT(h_.Explain(job), Contains(HasSubstr("incident 1 had the verdict: RankKilled")))
      << "who came back has none";
  EXPECT_THAT(Events(job, "Returned"),
              ElementsAre(AllOf(HasSubstr("rank 1 came back"), Not(HasSubstr("redone")))));
}

TEST_F(ReturnTest, RankThatIsLostThreeTimesOnItsWayBack_StaysOut) {
  const JobId job = Train();
  h_.Report(node_, job, 1, kKilled);
  GoOver(job, {0, 2}, 3, 1, {0, 2});
  int64_t epoch = 2, step = 4;
  for (int i = 0; i < 3; ++i, ++step, epoch += 2) {
    Step(job, step, epoch);
    h_.Prepare(node_);
    ASSERT_EQ(h_.State(job).epoch, Epoch{epoch + 1}) << "time " << i;
    GoOver(job, {0, 2}, step, epoch, {});
    h_.Report(node_, job, 1, kKilled, epoch + 1);
    ASSERT_EQ(h_.State(job).epoch, Epoch{epoch + 2});
    GoOver(job, {0, 2}, step, epoch + 1, {0, 2});
  }
  Step(job, step, epoch);
  Step(job, step + 1, epoch);
  EXPECT_EQ(h_.State(job).epoch, Epoch{epoch});
  EXPECT_THAT(Lost(job), ElementsAre(Rank{1}));
}

// What is wrong may be wrong on its node alone.
TEST_F(ReturnTest, RankThatCannotReadItsDataOnItsWayBack_StaysOutAndTheOthersGoOn) {
  const JobId job = Train();
  h_.Report(node_, job, 1, kKilled);
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, Quiet(3, rank));
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, RankReady{}, 2);
  Step(job, 4, 2);
  h_.Prepare(node_);
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, Quiet(4, rank), 2);
  h_.Report(node_, job, 1,
            RankError{.kind = FailureKind::kDataUnavailable, .message = "no such file"}, 3);
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
  EXPECT_EQ(h_.State(job).epoch, Epoch{4});
  EXPECT_THAT(h_.State(job).layout->lost, ElementsAre(Rank{1}));
}

TEST_F(ReturnTest, DeviceThatFailed_StaysOut) {
  const JobId job = Train();
  h_.Report(node_, job, 1, RankError{.kind = FailureKind::kDeviceFailed, .message = "XID 79"});
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  GoOver(job, {0, 2}, 3, 1, {0, 2});
  Step(job, 4, 2);
  EXPECT_EQ(h_.State(job).epoch, Epoch{2});
}

// What a new process of its node has to read first.
TEST_F(ReturnTest, NodeWithAnotherProcess_PreparesTheDataFirst) {
  const SessionId a = h_.Open("a", 2);
  SessionId b = h_.Open("b", 1);
  const JobId job = h_.Submit(AJobThatRecovers("two nodes", 3));
  h_.Prepare(a);
  h_.Prepare(b);
  h_.Ready(a, job, 0, 2);
  h_.Report(b, job, 2, RankReady{});
  ASSERT_EQ(h_.Phase(job), JobPhase::kRunning);
  b = h_.Replace("b", 1, 2);
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  node_ = a;
  GoOver(job, {0, 1}, 3, 1, {0, 1});
  h_.commands.clear();
  Step(job, 4, 2);
  ASSERT_THAT(h_.Commands<PrepareData>(b), SizeIs(1));
  EXPECT_THAT(h_.plans, IsEmpty());
  Step(job, 5, 2);
  EXPECT_THAT(h_.Commands<PrepareData>(b), SizeIs(1)) << "once";
  h_.Prepare(b);
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_THAT(Lost(job), IsEmpty());
  EXPECT_THAT(h_.Commands<Assign>(b), SizeIs(1));
}

TEST_F(ReturnTest, RanksThatTheJobBeganWithout_AreNotTaken) {
  node_ = h_.Open("n", 3);
  JobRequest request = *AJobThatRecovers("a", 3);
  request.lost = {Rank{2}};
  const JobId job = h_.Run(node_, std::make_shared<const JobRequest>(std::move(request)));
  Step(job, 3, 1);
  EXPECT_EQ(h_.State(job).epoch, Epoch{1});
  EXPECT_THAT(h_.plans, IsEmpty());
}

TEST_F(ReturnTest, LossWhileTheOthersStillTrain_StopsThemAtOnce) {
  const JobId job = TrainWhileOneReturns();
  h_.Report(node_, job, 2, kKilled, 2);
  ASSERT_EQ(h_.State(job).epoch, Epoch{4});
  EXPECT_FALSE(h_.Commands<Assign>(node_).back().second.beside);
  EXPECT_THAT(Lost(job), ElementsAre(Rank{2}));
  h_.Report(node_, job, 0, Quiet(5), 2);
  EXPECT_THAT(BegunBehind(), Contains(5));
}

// The others have done nothing wrong.
TEST_F(ReturnTest, RankThatIsNotConnectedInTime_StaysOutAndNobodyElseIsLost) {
  const JobId job = TrainWhileOneReturns();
  const absl::Duration patience = Harness::Options().connect_timeout;
  for (absl::Duration passed; passed < patience; passed += absl::Seconds(5)) {
    h_.Advance(absl::Seconds(5));
    h_.Feed(HeartbeatReceived{.session = node_});
  }
  ASSERT_EQ(h_.State(job).epoch, Epoch{4});
  EXPECT_FALSE(h_.Commands<Assign>(node_).back().second.beside) << "all stop now";
  EXPECT_THAT(Lost(job), ElementsAre(Rank{1}));
  h_.commands.clear();
  GoOver(job, {0, 2}, 9, 2, {});
  EXPECT_THAT(BegunBehind(), ElementsAre(9));
  EXPECT_THAT(Lost(job), ElementsAre(Rank{1}));
}

// It has no state, so nobody waits for it to say where that stands.
TEST_F(ReturnTest, CoordinatorThatRestartsOnTheWay_AsksOnlyThoseThatTrained) {
  const JobId job = TrainWhileOneReturns();
  h_.Restart();
  node_ = h_.Open("n", 3, 1, {{job, Epoch{2}}, {job, Epoch{3}}}, 9);
  // They train on until all are connected.
  for (int i = 0; i < 20; ++i) {
    h_.Advance(absl::Seconds(5));
    h_.Feed(HeartbeatReceived{.session = node_});
  }
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  h_.Report(node_, job, 0, Quiet(6), 2);
  EXPECT_THAT(BegunBehind(), IsEmpty());
  h_.Report(node_, job, 2, Quiet(6, 2), 2);
  EXPECT_THAT(BegunBehind(), ElementsAre(6));
}

// One that was left out before and one that all wait for come back together: nobody trains on.
TEST_F(ReturnTest, CoordinatorThatRestartsWhileAllWait_KnowsThatNobodyTrains) {
  node_ = h_.Open("n", 3);
  JobRequest request = *AJobThatRecovers("a", 3);
  request.waits = true;
  const JobId job = h_.Run(node_, std::make_shared<const JobRequest>(std::move(request)));
  h_.Report(node_, job, 1, kKilled);
  GoOver(job, {0, 2}, 3, 1, {0, 2});
  h_.plans_held = true;
  h_.Report(node_, job, 2, kKilled, 2);
  ASSERT_THAT(h_.plans, SizeIs(1));
  const uint64_t number = h_.plans[0].number;
  h_.plans.clear();
  h_.Feed(PlanComputed{number, absl::FailedPreconditionError("no replica is left")});
  ASSERT_THAT(h_.plans, SizeIs(1));
  EXPECT_THAT(h_.plans[0].returned, ElementsAre(Rank{1}));
  h_.plans_held = false;
  h_.AnswerPlans();
  h_.Commit();
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_THAT(h_.State(job).recoveries, SizeIs(2)) << "two were lost, whoever came back with them";
  EXPECT_FALSE(h_.State(job).beside);
  h_.Restart();
  node_ = h_.Open("n", 3, 1, {{job, Epoch{2}}, {job, Epoch{3}}}, 20);
  h_.Report(node_, job, 0, Quiet(3), 2);
  for (int i = 0; i < 6; ++i) {
    h_.Advance(absl::Seconds(5));
    h_.Feed(HeartbeatReceived{.session = node_});
  }
  EXPECT_THAT(Events(job, "RankFailed").back(),
              HasSubstr("rank 2 has not left epoch 2 within 5s, "));
}

// Who trains without it did so a moment ago.
TEST_F(ReturnTest, RanksThatDoNotFindEachOther_GoOnWithoutWhoCameBack) {
  const JobId job = TrainWhileOneReturns();
  h_.Report(node_, job, 0, RankError{.kind = FailureKind::kPeerLost, .message = "who"}, 3);
  h_.Advance(absl::Seconds(1));
  ASSERT_EQ(h_.State(job).epoch, Epoch{4});
  EXPECT_THAT(Lost(job), ElementsAre(Rank{1}));
  EXPECT_FALSE(h_.Commands<Assign>(node_).back().second.beside);
  h_.commands.clear();
  GoOver(job, {0, 2}, 5, 2, {});
  EXPECT_THAT(BegunBehind(), ElementsAre(5));
}

// Nor were they to stop at all but for that.
TEST_F(ReturnTest, ThoseThatTrainedAndDoNotFindEachOtherBehindAReturn_TryUntilTheyDo) {
  const JobId job = TrainWhileOneReturns();
  for (int64_t epoch = 3; epoch < 3 + 2 * kTriesMax; ++epoch) {
    ASSERT_EQ(h_.State(job).epoch, Epoch{epoch});
    h_.Report(node_, job, 0, RankError{.kind = FailureKind::kPeerLost, .message = "who"}, epoch);
    // Less and less often.
    for (int second = 0; second < 40 && h_.State(job).epoch == Epoch{epoch}; ++second)
      h_.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning) << h_.State(job).reason;
  EXPECT_THAT(Lost(job), ElementsAre(Rank{1}));
  EXPECT_THAT(h_.State(job).recoveries, SizeIs(1)) << "of the loss before";
}

// Nor is it the word of one that is not there against one that is.
TEST_F(ReturnTest, WhoTrainsAndIsAccusedByWhoCameBack_IsNotLost) {
  const JobId job = TrainWhileOneReturns();
  h_.Report(node_, job, 1,
            RankError{.kind = FailureKind::kPeerLost, .accused = 0, .message = "not met"}, 3);
  h_.Advance(absl::Seconds(1));
  ASSERT_EQ(h_.State(job).epoch, Epoch{4});
  EXPECT_THAT(Lost(job), ElementsAre(Rank{1}));
  h_.commands.clear();
  GoOver(job, {0, 2}, 5, 2, {});
  EXPECT_THAT(BegunBehind(), ElementsAre(5));
}

// What connects them goes by its daemon, which may be away for a moment.
TEST_F(ReturnTest, NodeThatTrainsAndIsAway_IsNotLostOfBeingAccused) {
  node_ = h_.Open("a", 1);
  SessionId b = h_.Open("b", 1);
  const JobId job = h_.Submit(AJobThatRecovers("two nodes", 2));
  for (const SessionId node : {node_, b}) h_.Prepare(node);
  for (const SessionId node : {node_, b}) h_.Answer<Assign>(node);
  h_.Report(node_, job, 0, RankReady{});
  h_.Report(b, job, 1, RankReady{});
  Step(job, 3, 1);
  b = h_.Replace("b", 1, /*incarnation=*/2);
  GoOver(job, {0}, 3, 1, {0});
  Step(job, 4, 2);
  h_.Prepare(b);
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  h_.Feed(SessionClosed{node_});
  h_.Report(b, job, 1,
            RankError{.kind = FailureKind::kPeerLost, .accused = 0, .message = "not met"}, 3);
  EXPECT_EQ(h_.State(job).epoch, Epoch{3}) << "it waits for more";
  h_.Advance(absl::Seconds(1));
  ASSERT_EQ(h_.State(job).epoch, Epoch{4});
  EXPECT_THAT(Lost(job), ElementsAre(Rank{1}));
}

TEST_F(ReturnTest, LossWhileTheReturnIsPlanned_GoesFirst) {
  const JobId job = Train();
  h_.Report(node_, job, 1, kKilled);
  GoOver(job, {0, 2}, 3, 1, {0, 2});
  h_.plans_held = true;
  Step(job, 4, 2);
  h_.Prepare(node_);
  h_.Report(node_, job, 2, kKilled, 2);
  ASSERT_THAT(h_.plans, SizeIs(2));
  EXPECT_THAT(h_.plans[1].lost, ElementsAre(Rank{2}));
  EXPECT_THAT(h_.plans[1].returned, IsEmpty());
}

TEST_F(ReturnTest, RankThatIsLostAgain_WarmsUpAgain) {
  const JobId job = TrainWhileOneReturns();
  GoOver(job, {0, 2}, 4, 2, {0, 1, 2});
  Step(job, 5, 3);
  h_.Report(node_, job, 1, kKilled, 3);
  GoOver(job, {0, 2}, 5, 3, {0, 2});
  h_.commands.clear();
  Step(job, 6, 4);
  EXPECT_THAT(h_.Commands<PrepareData>(node_), SizeIs(1));
  EXPECT_EQ(h_.State(job).epoch, Epoch{4});
  h_.Prepare(node_);
  EXPECT_EQ(h_.State(job).epoch, Epoch{5});
}

// Their node starts others for the epoch that they were to go to.
TEST_F(ReturnTest, RanksThatExitOnTheirWayToAnEpoch_DoNotFreeItsDevices) {
  const JobId job = Train();
  h_.Report(node_, job, 1, kKilled);
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  h_.plans_held = true;
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, kKilled, 1);
  ASSERT_TRUE(h_.Cancel(job).ok());
  EXPECT_EQ(h_.Free("n"), 0);
  h_.Answer<StopRanks>(node_);
  EXPECT_EQ(h_.Free("n"), 3);
}

// Ranks 0 and 1 on a, 2 on b, which makes ready for it when 1 is lost, too.
class WarmingElsewhereTest : public ReturnTest {
 protected:
  void SetUp() override {
    node_ = h_.Open("a", 2);
    b_ = h_.Open("b", 1);
    job_ = h_.Submit(AJobThatRecovers("two nodes", 3));
    for (const SessionId node : {node_, b_}) h_.Prepare(node);
    for (const SessionId node : {node_, b_}) h_.Answer<Assign>(node);
    for (const int32_t rank : {0, 1}) h_.Report(node_, job_, rank, RankReady{});
    h_.Report(b_, job_, 2, RankReady{});
    Step(job_, 3, 1);
    h_.Report(b_, job_, 2, kKilled);
    GoOver(job_, {0, 1}, 3, 1, {0, 1});
    h_.commands.clear();
    Step(job_, 4, 2);
    ASSERT_THAT(h_.Commands<PrepareData>(b_), SizeIs(1));
    h_.Report(node_, job_, 1, kKilled, 2);
    ASSERT_EQ(h_.State(job_).epoch, Epoch{3});
  }

  SessionId b_;
  JobId job_;
};

TEST_F(WarmingElsewhereTest, Devices_AreFreeOnceTheStopIsAnswered_WhateverEpochCameSince) {
  ASSERT_TRUE(h_.Cancel(job_).ok());
  EXPECT_EQ(h_.Free("b"), 0);
  h_.Answer<StopRanks>(b_);
  EXPECT_EQ(h_.Free("b"), 1);
}

TEST_F(WarmingElsewhereTest, DevicesOfANodeThatIsLost_WaitForNoAnswer) {
  ASSERT_TRUE(h_.Cancel(job_).ok());
  h_.Feed(SessionClosed{b_});
  EXPECT_EQ(h_.Free("b"), 0);
  h_.Advance(CoordinatorOptions().heartbeat_timeout + absl::Seconds(1));
  EXPECT_EQ(h_.Free("b"), 1);
}

// Its daemon is still ending it when the job ends.
TEST_F(ReturnTest, DeviceOfARankThatWasLeftOut_IsFreeOnceTheStopIsAnswered) {
  node_ = h_.Open("a", 2);
  const SessionId b = h_.Open("b", 1);
  const JobId job = h_.Submit(AJobThatRecovers("two nodes", 3));
  for (const SessionId node : {node_, b}) h_.Prepare(node);
  for (const SessionId node : {node_, b}) h_.Answer<Assign>(node);
  for (const int32_t rank : {0, 1}) h_.Report(node_, job, rank, RankReady{});
  h_.Report(b, job, 2, RankReady{});
  Step(job, 3, 1);
  h_.Report(b, job, 2, RankError{.kind = FailureKind::kRankHung, .message = "it hangs"});
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  ASSERT_TRUE(h_.Cancel(job).ok());
  EXPECT_EQ(h_.Free("b"), 0);
  h_.Answer<StopRanks>(b);
  EXPECT_EQ(h_.Free("b"), 1);
}

// A coordinator before this one may have had others started for them.
TEST_F(ReturnTest, ExitsThatARestartedCoordinatorIsTold_DoNotFreeDevices) {
  const JobId job = Train();
  h_.Report(node_, job, 1, kKilled);
  GoOver(job, {0, 2}, 3, 1, {0, 2});
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  h_.Restart();
  node_ = h_.Open("n", 3, 1, {{job, Epoch{2}}}, 9);
  h_.plans_held = true;
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, kKilled, 2);
  ASSERT_TRUE(h_.Cancel(job).ok());
  EXPECT_EQ(h_.Free("n"), 0);
  h_.Answer<StopRanks>(node_);
  EXPECT_EQ(h_.Free("n"), 3);
}

}  // namespace
}  // namespace phalanx::coordinator
