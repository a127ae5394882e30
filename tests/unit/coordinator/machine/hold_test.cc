// The time that a job waits for what is lost is over.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/machine/recovering.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using job::JobPhase;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// One rank on each of two nodes, of which b goes away for good behind step 5.
class HoldTest : public RecoveringTest {
 protected:
  JobId TrainAndLoseB(const std::string& text = "needs every rank", int64_t checkpoint = 3) {
    node_ = h_.Open("a", 1);
    b_ = h_.Open("b", 1);
    JobRequest request = *AJobThatRecovers("two nodes", 2);
    request.waits = request.checkpoints = true;
    request.hold = absl::Seconds(30);
    request.begins_anew = begins_anew_;
    request.budget.without_progress = without_progress_;
    request.document.text = text;
    const JobId job = h_.Submit(std::make_shared<const JobRequest>(std::move(request)));
    for (const SessionId node : {node_, b_}) h_.Prepare(node);
    for (const SessionId node : {node_, b_}) h_.Answer<Assign>(node);
    h_.Report(node_, job, 0, RankReady{});
    h_.Report(b_, job, 1, RankReady{});
    if (checkpoint > 0) {
      Step(job, checkpoint, 1);
      const RankCheckpointPart part{checkpoint, {.file = "part", .bytes = 1}, 0.5};
      h_.Report(node_, job, 0, part);
      h_.Report(b_, job, 1, part);
      h_.Report(node_, job, 0, RankCheckpointPublished{checkpoint, "/c/before", ""});
    }
    Step(job, 5, 1);
    h_.commands.clear();
    h_.Feed(SessionClosed{b_});
    return job;
  }
  void Pass(absl::Duration duration) {
    for (absl::Duration passed; passed < duration; passed += absl::Seconds(1)) {
      h_.Advance(absl::Seconds(1));
      h_.Feed(HeartbeatReceived{.session = node_});
    }
  }
  // It is lost, and the time to wait for it is over.
  void EndTheHold() { Pass(absl::Seconds(46)); }
  // The layout in which it is to be saved is still being planned.
  void EndTheHoldWithoutAPlan() {
    Pass(absl::Seconds(40));
    h_.plans_held = true;
    Pass(absl::Seconds(6));
    ASSERT_THAT(h_.plans, SizeIs(1));
  }
  void AnswerThePlan() {
    h_.plans_held = false;
    h_.AnswerPlans();
    h_.Commit();
  }
  // The epoch that saves begins as one, and finds no state to save; the job was cancelled.
  void EndWithoutState(JobId job) {
    ASSERT_EQ(h_.State(job).epoch, Epoch{2});
    EXPECT_TRUE(h_.State(job).ends);
    h_.Report(node_, job, 0, Quiet(5));
    ASSERT_THAT(BegunBehind(), ElementsAre(5));
    EXPECT_TRUE(h_.Commands<BeginEpoch>(node_)[0].second.ends);
    h_.Report(node_, job, 0, RankError{.kind = FailureKind::kStateLost, .message = "no home"}, 2);
    ASSERT_EQ(h_.Phase(job), JobPhase::kCancelled);
    EXPECT_EQ(h_.State(job).reason, "cancelled on request; rank 0: no home");
  }
  // It is back, and its rank is to be in epoch 2.
  void ComeBack() {
    Pass(absl::Seconds(20));
    b_ = h_.Open("b", 1, /*incarnation=*/2);
    h_.Prepare(b_);
  }
  SessionId b_;
  bool begins_anew_ = false;
  int32_t without_progress_ = 3;
};

TEST_F(HoldTest, TimeThatIsOver_SavesWhatIsLeftBeforeTheDevicesAreFree) {
  const JobId job = TrainAndLoseB();
  EndTheHold();
  ASSERT_THAT(Events(job, "EndWished"),
              ElementsAre("not enough came back within 30s: its state is saved before its devices "
                          "are free"));
  const auto assigned = h_.Commands<Assign>(node_);
  ASSERT_THAT(assigned, SizeIs(1));
  EXPECT_THAT(assigned[0].second.layout->lost, ElementsAre(Rank{1}));
  h_.Report(node_, job, 0, Quiet(5));
  ASSERT_THAT(BegunBehind(), ElementsAre(5));
  EXPECT_TRUE(h_.Commands<BeginEpoch>(node_)[0].second.ends);
  h_.Report(node_, job, 0, RankReady{}, 2);
  h_.Report(node_, job, 0, RankCheckpointPart{5, {.file = "part", .bytes = 1}, 0.5}, 2);
  h_.Report(node_, job, 0, RankSucceeded{.step = 5, .early = true}, 2);
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning) << "the checkpoint is not published";
  h_.Report(node_, job, 0, RankCheckpointPublished{5, "/c/saved", ""}, 2);
  ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_EQ(h_.State(job).reason,
            "not enough came back within 30s: its devices are free, and it waits for others, to go "
            "on behind step 5");
  EXPECT_EQ(h_.State(job).last_checkpoint->path, "/c/saved");
  ASSERT_THAT(h_.Commands<StopRanks>(node_), SizeIs(1));
  // It begins anew with it, and may be ended by its user as ever.
  h_.Answer<StopRanks>(node_);
  b_ = h_.Open("b", 1, /*incarnation=*/2);
  for (const SessionId node : {node_, b_}) h_.Prepare(node);
  EXPECT_EQ(h_.Commands<Assign>(b_).back().second.checkpoint->path, "/c/saved");
  EXPECT_FALSE(h_.State(job).ending.has_value());
}

TEST_F(HoldTest, StateThatIsNotLeft_IsGivenUpAndTheStepsAreTold) {
  const JobId job = TrainAndLoseB();
  EndTheHold();
  h_.Report(node_, job, 0, Quiet(5));
  h_.Report(node_, job, 0, RankError{.kind = FailureKind::kStateLost, .message = "no home of 3"},
            2);
  ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_EQ(h_.State(job).reason,
            "not enough came back within 30s: its devices are free, and it waits for others, to go "
            "on behind step 3; 2 steps since are done again: rank 0: no home of 3");
}

TEST_F(HoldTest, LossMeanwhile_IsTheEndOfIt) {
  const JobId job = TrainAndLoseB();
  EndTheHold();
  h_.Report(node_, job, 0, RankExited{.signal = 9, .log_tail = "its last line"});
  ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_THAT(h_.State(job).reason,
              EndsWith("2 steps since are done again: rank 0 on node a was killed by signal 9 "
                       "(SIGKILL)"));
}

TEST_F(HoldTest, WhatDoesNotFitWhatIsLeft_IsNotSaved) {
  const JobId job = TrainAndLoseB("fits whole");
  EndTheHold();
  ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_THAT(h_.State(job).reason, HasSubstr("2 steps since are done again: rank 0 needs 2 GiB"));
}

TEST_F(HoldTest, SavingThatTakesTooLong_IsGivenUp) {
  const JobId job = TrainAndLoseB();
  EndTheHold();
  h_.Report(node_, job, 0, Quiet(5));
  Pass(Harness::Options().end_grace - absl::Seconds(2));
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
  Pass(absl::Seconds(2));
  ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_THAT(h_.State(job).reason, HasSubstr("behind step 3; 2 steps since are done again: its "
                                              "ranks had not all ended 2m later"));
}

// A daemon does not list ranks that it is ending.
TEST_F(HoldTest, StreamThatBreaksWhileRanksEnd_FreesNothing) {
  const JobId job = TrainAndLoseB("fits whole");
  EndTheHold();
  ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  h_.Feed(SessionClosed{node_});
  node_ = h_.Open("a", 1);
  b_ = h_.Open("b", 1, /*incarnation=*/2);
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued) << "their memory is not free";
  h_.Answer<StopRanks>(node_);
  EXPECT_EQ(h_.Phase(job), JobPhase::kStarting);
}

TEST_F(HoldTest, WithoutACheckpointBefore_TheSavedOneIsTheFirst) {
  const JobId job = TrainAndLoseB("needs every rank", /*checkpoint=*/0);
  EndTheHold();
  h_.Report(node_, job, 0, Quiet(5));
  EXPECT_THAT(BegunBehind(), ElementsAre(5));
  h_.Report(node_, job, 0, RankError{.kind = FailureKind::kStateLost, .message = "no home"}, 2);
  ASSERT_EQ(h_.Phase(job), JobPhase::kFailed);
  EXPECT_THAT(h_.State(job).failure->message,
              HasSubstr("there is no checkpoint to start again from: rank 0: no home"));
}

// One that restarts over and over would let it wait for ever.
TEST_F(HoldTest, CoordinatorThatRestarts_DoesNotLetItWaitAnew) {
  const JobId job = TrainAndLoseB("fits whole");
  Pass(absl::Seconds(36));
  ASSERT_THAT(Events(job, "Waiting"), SizeIs(1));
  h_.Restart();
  node_ = h_.Open("a", 1, 1, {{job, Epoch{1}}}, 9);
  h_.Report(node_, job, 0, Quiet(5));
  const size_t told = Events(job, "Waiting").size();
  // Until b is missed, and as long once more: it has time to find the new coordinator.
  Pass(2 * Harness::Options().heartbeat_timeout - absl::Seconds(2));
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
  Pass(absl::Seconds(4));
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_THAT(Events(job, "Waiting"), SizeIs(told)) << "nothing new has happened";
}

// What was waited for came back, and the time of that wait counts no more.
TEST_F(HoldTest, WaitThatIsOver_IsNoPartOfTheNext) {
  const JobId job = TrainAndLoseB("fits whole");
  Pass(absl::Seconds(20));
  ASSERT_THAT(Events(job, "Waiting"), SizeIs(1));
  h_.Restart();
  node_ = h_.Open("a", 1, 1, {{job, Epoch{1}}}, 9);
  b_ = h_.Open("b", 1, 1, {{job, Epoch{1}}}, 9);
  Step(job, 6, 1);
  for (int second = 0; second < 40; ++second) {
    h_.Advance(absl::Seconds(1));
    for (const SessionId node : {node_, b_}) h_.Feed(HeartbeatReceived{.session = node});
  }
  h_.Feed(SessionClosed{b_});
  Pass(absl::Seconds(16));
  ASSERT_EQ(h_.Phase(job), JobPhase::kRunning);
  Pass(absl::Seconds(20));
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning) << "it holds for 30 s";
  Pass(absl::Seconds(12));
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued);
}

TEST_F(HoldTest, BeforeTheFirstCheckpointOfSeveral_ItIsQueuedToBeginAnew) {
  begins_anew_ = true;
  const JobId job = TrainAndLoseB("fits whole", /*checkpoint=*/0);
  EndTheHold();
  ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_THAT(
      h_.State(job).reason,
      HasSubstr("to go on behind step 0; 5 steps since are done again: rank 0 needs 2 GiB"));
}

TEST_F(HoldTest, CancelMeanwhile_EndsTheJobWithTheCheckpoint) {
  const JobId job = TrainAndLoseB();
  EndTheHold();
  ASSERT_TRUE(h_.Cancel(job, /*checkpoint=*/true).ok());
  h_.Report(node_, job, 0, Quiet(5));
  h_.Report(node_, job, 0, RankReady{}, 2);
  h_.Report(node_, job, 0, RankCheckpointPart{5, {.file = "part", .bytes = 1}, 0.5}, 2);
  h_.Report(node_, job, 0, RankSucceeded{.step = 5, .early = true}, 2);
  h_.Report(node_, job, 0, RankCheckpointPublished{5, "/c/saved", ""}, 2);
  EXPECT_EQ(h_.Phase(job), JobPhase::kCancelled);
  EXPECT_THAT(h_.State(job).reason, HasSubstr("checkpoint /c/saved"));
}

TEST_F(HoldTest, CoordinatorThatRestartsWhileItIsSaved_GoesOn) {
  const JobId job = TrainAndLoseB();
  EndTheHold();
  h_.Report(node_, job, 0, Quiet(5));
  h_.Restart();
  node_ = h_.Open("a", 1, 1, {{job, Epoch{2}}}, 9);
  ASSERT_THAT(BegunBehind(), ElementsAre(5));
  EXPECT_TRUE(h_.Commands<BeginEpoch>(node_)[0].second.ends);
  h_.Report(node_, job, 0, RankCheckpointPart{5, {.file = "part", .bytes = 1}, 0.5}, 2);
  h_.Report(node_, job, 0, RankSucceeded{.step = 5, .early = true}, 2);
  h_.Report(node_, job, 0, RankCheckpointPublished{5, "/c/saved", ""}, 2);
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued);
}

// Its plan was not stored: who is lost is known of the wish.
TEST_F(HoldTest, CoordinatorThatRestartsBeforeItsPlanIsMade_PlansAgainAndSaves) {
  const JobId job = TrainAndLoseB();
  EndTheHoldWithoutAPlan();
  h_.Restart();
  ASSERT_THAT(h_.plans, SizeIs(1));
  EXPECT_THAT(h_.plans[0].lost, ElementsAre(Rank{1}));
  EXPECT_TRUE(h_.plans[0].any_rung);
  AnswerThePlan();
  h_.Advance(absl::Seconds(10));  // a daemon takes its time to find the new coordinator
  node_ = h_.Open("a", 1, 1, {{job, Epoch{1}}}, 9);
  ASSERT_THAT(h_.Commands<Assign>(node_), SizeIs(1));
  EXPECT_THAT(h_.Commands<Assign>(node_)[0].second.layout->lost, ElementsAre(Rank{1}));
  h_.Report(node_, job, 0, Quiet(5));
  ASSERT_THAT(BegunBehind(), ElementsAre(5));
  EXPECT_TRUE(h_.Commands<BeginEpoch>(node_)[0].second.ends);
  h_.Report(node_, job, 0, RankCheckpointPart{5, {.file = "part", .bytes = 1}, 0.5}, 2);
  h_.Report(node_, job, 0, RankSucceeded{.step = 5, .early = true}, 2);
  h_.Report(node_, job, 0, RankCheckpointPublished{5, "/c/saved", ""}, 2);
  ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_THAT(h_.State(job).reason, HasSubstr("to go on behind step 5"));
}

// What it waits for may still come back.
TEST_F(HoldTest, CancelWhileItWaits_HasItsGraceAlsoWhenTheHoldIsOver) {
  const JobId job = TrainAndLoseB();
  Pass(absl::Seconds(40));
  ASSERT_TRUE(h_.Cancel(job, /*checkpoint=*/true).ok());
  Pass(absl::Seconds(10));
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
  Pass(Harness::Options().end_grace);
  EXPECT_EQ(h_.Phase(job), JobPhase::kCancelled);
  EXPECT_THAT(h_.State(job).reason, HasSubstr("its ranks had not all ended 2m later"));
}

// What was lost on the way to an epoch that never began is known of the wish, too.
TEST_F(HoldTest, CoordinatorThatRestartsBehindALossOnTheWayBack_PlansAgain) {
  const JobId job = TrainAndLoseB();
  ComeBack();
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  b_ = h_.Replace("b", 1, /*incarnation=*/3);
  h_.Report(node_, job, 0, Quiet(5));
  EXPECT_THAT(BegunBehind(), IsEmpty());
  Pass(absl::Seconds(25));
  h_.plans_held = true;
  Pass(absl::Seconds(6));
  ASSERT_THAT(h_.plans, SizeIs(1));
  h_.Restart();
  ASSERT_THAT(h_.plans, SizeIs(1));
  EXPECT_THAT(h_.plans[0].lost, ElementsAre(Rank{1}));
  EXPECT_TRUE(h_.plans[0].any_rung);
}

// No step is to come of it, so none is missed.
TEST_F(HoldTest, SavingWithoutAStepSinceTheRecoveryBefore_IsNoStall) {
  without_progress_ = 0;
  const JobId job = TrainAndLoseB();
  ComeBack();
  h_.Report(node_, job, 0, Quiet(5));
  ASSERT_THAT(BegunBehind(), ElementsAre(5));
  h_.Feed(SessionClosed{b_});
  EndTheHold();
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  h_.Report(node_, job, 0, Quiet(5), 2);
  ASSERT_THAT(BegunBehind(), ElementsAre(5, 5));
  EXPECT_TRUE(h_.Commands<BeginEpoch>(node_)[1].second.ends);
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
}

// The layout in which it is saved is one that may not train.
TEST_F(HoldTest, CancelWhileItIsPlanned_LeavesItTheEndOfItsEpoch) {
  const JobId job = TrainAndLoseB();
  EndTheHoldWithoutAPlan();
  ASSERT_TRUE(h_.Cancel(job, /*checkpoint=*/true).ok());
  AnswerThePlan();
  EndWithoutState(job);
}

TEST_F(HoldTest, CoordinatorThatRestartsBehindACancel_LeavesItTheEndOfItsEpoch) {
  const JobId job = TrainAndLoseB();
  EndTheHoldWithoutAPlan();
  ASSERT_TRUE(h_.Cancel(job, /*checkpoint=*/true).ok());
  h_.Restart();
  ASSERT_THAT(h_.plans, SizeIs(1));
  node_ = h_.Open("a", 1, 1, {{job, Epoch{1}}}, 9);
  AnswerThePlan();
  EndWithoutState(job);
}

// What it costs is that the job is queued.
TEST_F(HoldTest, SavingAndTheQueueBehindIt_AreOneRecovery) {
  const JobId job = TrainAndLoseB();
  EndTheHold();
  h_.Report(node_, job, 0, Quiet(5));
  EXPECT_THAT(h_.State(job).recoveries, IsEmpty());
  h_.Report(node_, job, 0, RankCheckpointPart{5, {.file = "part", .bytes = 1}, 0.5}, 2);
  h_.Report(node_, job, 0, RankSucceeded{.step = 5, .early = true}, 2);
  h_.Report(node_, job, 0, RankCheckpointPublished{5, "/c/saved", ""}, 2);
  ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_THAT(h_.State(job).recoveries, SizeIs(1));
}

}  // namespace
}  // namespace phalanx::coordinator
