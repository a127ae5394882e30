// What is left of a job cannot go on by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "core/plan/derivation.h"
#include "tests/unit/coordinator/machine/recovering.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using job::JobPhase;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class WaitTest : public RecoveringTest {
 protected:
  JobId TrainOn(const std::function<void(JobRequest&)>& alter) {
    node_ = h_.Open("n", 2);
    JobRequest request = *AJobThatRecovers("a", 2);
    request.waits = request.restarts = true;
    alter(request);
    const JobId job = h_.Run(node_, std::make_shared<const JobRequest>(std::move(request)));
    h_.commands.clear();
    return job;
  }
  // No layout without a rank can be.
  JobId TrainIndivisible() {
    return TrainOn([](JobRequest& request) { request.document.text = "needs every rank"; });
  }
  // The same of a rank on each of two nodes.
  JobId TrainIndivisibleOn(SessionId first, SessionId second) {
    JobRequest request = *AJobThatRecovers("two nodes", 2);
    request.waits = true;
    request.document.text = "needs every rank";
    const JobId job = h_.Submit(std::make_shared<const JobRequest>(std::move(request)));
    int32_t rank = 0;
    for (const SessionId node : {first, second}) h_.Prepare(node);
    for (const SessionId node : {first, second}) h_.Report(node, job, rank++, RankReady{});
    return job;
  }
};

TEST_F(WaitTest, RankThatIsNeeded_IsStartedAgainAndTheOthersWaitForIt) {
  const JobId job = TrainIndivisible();
  Step(job, 3, 1);
  h_.Report(node_, job, 1, kKilled);
  ASSERT_THAT(Events(job, "Waiting"), ElementsAre(HasSubstr("up to 10m for rank 1")));
  EXPECT_THAT(Events(job, "Verdict"), ElementsAre(HasSubstr("RankKilled"))) << "while it waits";
  ASSERT_EQ(h_.Phase(job), JobPhase::kRunning);
  // Its node has another process for it.
  EXPECT_EQ(h_.State(job).epoch, Epoch{2});
  EXPECT_THAT(h_.State(job).layout->lost, IsEmpty());
  EXPECT_THAT(h_.Commands<Assign>(node_), SizeIs(1));
  h_.Report(node_, job, 0, Quiet(3));
  EXPECT_THAT(BegunBehind(), ElementsAre(3));
}

// What is left may be too little for the job's state.
TEST_F(WaitTest, LayoutThatDoesNotFit_IsNotTheEnd) {
  const JobId job = TrainOn([](JobRequest& request) { request.document.text = "fits whole"; });
  h_.Report(node_, job, 1, kKilled);
  EXPECT_THAT(Events(job, "Waiting"), ElementsAre(HasSubstr("rank 0 needs 2 GiB")));
  EXPECT_EQ(h_.State(job).epoch, Epoch{2}) << "its node has another process for it";
}

// Of a network that heals: its processes live, and know where their state stands.
TEST_F(WaitTest, NodeThatWasOutOfReachAndIsBack_IsAskedWhereItsStateStands) {
  const JobId job = TrainIndivisible();
  Step(job, 3, 1);
  h_.Feed(SessionClosed{node_});
  h_.Advance(absl::Seconds(20));
  ASSERT_THAT(Events(job, "Waiting"), SizeIs(1));
  h_.commands.clear();
  node_ = h_.Open("n", 2, 1, {{job, Epoch{1}}}, 2);
  h_.Prepare(node_);
  ASSERT_THAT(h_.Commands<Assign>(node_), SizeIs(1));
  EXPECT_THAT(BegunBehind(), IsEmpty()) << "nobody has said anything";
  h_.Report(node_, job, 0, Quiet(5));
  EXPECT_THAT(BegunBehind(), IsEmpty());
  h_.Report(node_, job, 1, Quiet(6, 1));
  EXPECT_THAT(BegunBehind(), ElementsAre(6));
}

// Its processes were not ended, and were once taken for new ones that know of no step.
TEST_F(WaitTest, NodeThatIsDrainedByForceAndTakesJobsAgain_IsAskedWhereItsStateStands) {
  const JobId job = TrainIndivisible();
  Step(job, 3, 1);
  const NodeMark drains{.drains = true, .reason = "new fan"};
  h_.Feed(NodeMarkRequested{Token{1'000'000}, "n", drains, "ops", /*force=*/true});
  ASSERT_THAT(Events(job, "Waiting"), SizeIs(1));
  h_.commands.clear();
  h_.Feed(NodeMarkRequested{Token{1'000'001}, "n", std::nullopt, "ops"});
  h_.Prepare(node_);
  ASSERT_THAT(h_.Commands<Assign>(node_), SizeIs(1));
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
  EXPECT_THAT(BegunBehind(), IsEmpty()) << "nobody has said anything";
  h_.Report(node_, job, 0, Quiet(5));
  h_.Report(node_, job, 1, Quiet(6, 1));
  EXPECT_THAT(BegunBehind(), ElementsAre(6));
}

// Its worker has ended them: nothing is to be heard of who comes back.
TEST_F(WaitTest, NodeThatHasEndedItsProcesses_IsNotAsked) {
  const JobId job = TrainIndivisible();
  Step(job, 3, 1);
  for (const int32_t rank : {0, 1}) h_.Report(node_, job, rank, RankExited{.expected = true});
  ASSERT_THAT(Events(job, "Waiting"), SizeIs(1));
  h_.Prepare(node_);
  EXPECT_THAT(BegunBehind(), ElementsAre(3));
}

TEST_F(WaitTest, NodeThatWasOutOfReachAndIsBackWithoutItsProcesses_IsNotAsked) {
  const JobId job = TrainIndivisible();
  Step(job, 3, 1);
  h_.Feed(SessionClosed{node_});
  h_.Advance(absl::Seconds(20));
  h_.commands.clear();
  node_ = h_.Open("n", 2, /*incarnation=*/2);
  h_.Prepare(node_);
  EXPECT_THAT(BegunBehind(), ElementsAre(3));
}

// Its ranks would refuse the layout, and the job would end as VersionMismatch.
TEST_F(WaitTest, NodeThatIsBackWithAWorkerTooOldForTheLayout_IsAwaitedUntilItHasANewerOne) {
  node_ = h_.Open("a", 1);
  const SessionId b = h_.Open("b", 1);
  const JobId job = TrainIndivisibleOn(node_, b);
  ASSERT_EQ(h_.Phase(job), JobPhase::kRunning);
  Step(job, 3, 1);
  h_.Feed(SessionClosed{b});
  const SessionId older = h_.OpenOf(plan::kOldestDerivation, "b", 1, /*incarnation=*/2);
  ASSERT_THAT(Events(job, "Waiting"), SizeIs(1));
  EXPECT_THAT(h_.Commands<PrepareData>(older), IsEmpty());
  EXPECT_THAT(h_.Commands<Assign>(older), IsEmpty());
  const SessionId newer = h_.Replace("b", 1, /*incarnation=*/3);
  h_.Prepare(newer);
  EXPECT_THAT(h_.Commands<Assign>(newer), SizeIs(1));
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
}

TEST_F(WaitTest, NodeThatStaysAway_EndsTheJobWhenTheTimeIsOver) {
  const SessionId a = h_.Open("a", 1), b = h_.Open("b", 1);
  const JobId job = TrainIndivisibleOn(a, b);
  ASSERT_EQ(h_.Phase(job), JobPhase::kRunning);
  h_.Feed(SessionClosed{b});
  for (int i = 0; i < 6; ++i) {
    h_.Advance(absl::Seconds(4));
    h_.Feed(HeartbeatReceived{.session = a});
  }
  EXPECT_EQ(h_.views[job]->reason, "waits for rank 1");
  for (int i = 0; i < 160; ++i) {
    h_.Advance(absl::Seconds(4));
    h_.Feed(HeartbeatReceived{.session = a});
  }
  ASSERT_EQ(h_.Phase(job), JobPhase::kFailed);
  EXPECT_THAT(h_.State(job).failure->message, HasSubstr("not enough came back within 10m"));
}

// Its node was told to make ready for ranks that had exited, and has processes of them again.
TEST_F(WaitTest, ProcessesThatWereStartedAgain_KeepTheirDevicesUntilTheyAreGone) {
  const SessionId a = h_.Open("a", 1), b = h_.Open("b", 1);
  JobRequest request = *AJobThatRecovers("two nodes", 2);
  request.waits = true;
  request.hold = absl::Minutes(1);
  request.document.text = "needs every rank";
  const JobId job = h_.Submit(std::make_shared<const JobRequest>(std::move(request)));
  h_.Prepare(a);
  h_.Prepare(b);
  h_.Report(a, job, 0, RankReady{});
  h_.Report(b, job, 1, RankReady{});
  ASSERT_EQ(h_.Phase(job), JobPhase::kRunning);
  h_.Feed(SessionClosed{a});
  const auto let_pass = [&](int seconds) {
    for (int second = 0; second < seconds; ++second) {
      h_.Advance(absl::Seconds(1));
      h_.Feed(HeartbeatReceived{.session = b});
    }
  };
  let_pass(30);
  h_.commands.clear();
  h_.Report(b, job, 1, kKilled);
  ASSERT_THAT(h_.Commands<PrepareData>(b), SizeIs(1));
  h_.Prepare(b);
  h_.store_held = true;  // the disk takes nothing when the time is over
  let_pass(60);
  ASSERT_EQ(h_.Phase(job), JobPhase::kFailed);
  EXPECT_THAT(h_.Commands<StopRanks>(b), IsEmpty());
  EXPECT_EQ(h_.Free("b"), 0);
  h_.store_held = false;
  h_.Commit();
  EXPECT_EQ(h_.Free("b"), 0);
  h_.Answer<StopRanks>(b);
  EXPECT_EQ(h_.Free("b"), 1);
}

// As long as it has what to start again from.
TEST_F(WaitTest, TimeThatIsOver_FreesTheDevicesAndQueuesTheJobAgain) {
  const JobId job = TrainOn([](JobRequest& request) {
    request.document.text = "needs every rank";
    request.checkpoints = true;
    request.hold = absl::Seconds(30);
  });
  Step(job, 6, 1);
  for (const int32_t rank : {0, 1}) {
    h_.Report(node_, job, rank,
              RankCheckpointPart{6, {.file = absl::StrCat("rank-", rank), .bytes = 1}, 0.5});
  }
  h_.Report(node_, job, 0, RankCheckpointPublished{6, "/c/step-6", ""});
  h_.Feed(SessionClosed{node_});
  for (int i = 0; i < 60 && h_.Phase(job) == JobPhase::kRunning; ++i) h_.Advance(absl::Seconds(1));
  ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_THAT(h_.views[job]->reason, HasSubstr("within 30s"));
  // A coordinator that restarts has it in its queue as well.
  h_.Restart();
  ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  // Ranks that were out of reach are ended before the devices are used again.
  h_.commands.clear();
  node_ = h_.Open("n", 2, 1, {{job, Epoch{1}}});
  ASSERT_THAT(h_.Commands<StopRanks>(node_), SizeIs(1));
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued);
  h_.Answer<StopRanks>(node_);
  h_.Prepare(node_);
  ASSERT_EQ(h_.Phase(job), JobPhase::kStarting);
  EXPECT_EQ(h_.State(job).epoch, Epoch{2});
  ASSERT_THAT(h_.Commands<PrepareData>(node_), SizeIs(1));
  EXPECT_FALSE(h_.Commands<PrepareData>(node_)[0].second.choose_checkpoint);
  ASSERT_THAT(h_.Commands<Assign>(node_), SizeIs(1));
  EXPECT_EQ(h_.Commands<Assign>(node_)[0].second.checkpoint->path, "/c/step-6");
  h_.Report(node_, job, 0, RankReady{}, 2);
  h_.Report(node_, job, 1, RankReady{}, 2);
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
}

// It has a checkpoint of its own to begin with, and nothing has trained since.
TEST_F(WaitTest, LossWhileItStartsAgain_IsNoReasonToFail) {
  const JobId job = TrainOn([](JobRequest& request) {
    request.document.text = "needs every rank";
    request.checkpoints = true;
    request.hold = absl::Seconds(30);
    request.budget.total = 3;
  });
  for (const int32_t rank : {0, 1})
    h_.Report(node_, job, rank, RankCheckpointPart{6, {.file = "part", .bytes = 1}, 0.5});
  h_.Report(node_, job, 0, RankCheckpointPublished{6, "/c/step-6", ""});
  h_.Feed(SessionClosed{node_});
  h_.Advance(absl::Seconds(60));
  ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  node_ = h_.Open("n", 2, /*incarnation=*/2);
  int64_t epoch = 2;
  for (; h_.State(job).recoveries.size() < 3; ++epoch) {
    h_.Prepare(node_);
    ASSERT_EQ(h_.Phase(job), JobPhase::kStarting);
    ASSERT_EQ(h_.Commands<Assign>(node_).back().second.checkpoint->path, "/c/step-6");
    h_.Report(node_, job, 1, kKilled, epoch);
    ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
    EXPECT_EQ(h_.State(job).reason,
              "rank 1 on node n was killed by signal 9 (SIGKILL) before it trained again: it waits "
              "for devices");
    h_.Answer<StopRanks>(node_);
  }
  EXPECT_GT(epoch, 2);
  h_.Prepare(node_);
  h_.Report(node_, job, 1, kKilled, epoch);
  ASSERT_EQ(h_.Phase(job), JobPhase::kFailed);
  EXPECT_THAT(h_.State(job).failure->message, HasSubstr("recovery.budget.total allows: 3 times"));
}

TEST_F(WaitTest, LossWhileItStartsForTheFirstTime_IsTheEnd) {
  node_ = h_.Open("n", 2);
  JobRequest request = *AJobThatRecovers("a", 2);
  request.waits = request.checkpoints = true;
  const JobId job = h_.Submit(std::make_shared<const JobRequest>(std::move(request)));
  h_.Prepare(node_);
  h_.Report(node_, job, 1, kKilled);
  EXPECT_EQ(h_.Phase(job), JobPhase::kFailed);
}

// Other devices, or the same a little later, may do better.
TEST_F(WaitTest, StartThatTakesTooLongAfterTheQueue_IsTriedAgainAFewTimes) {
  const JobId job = TrainOn([](JobRequest& request) {
    request.document.text = "needs every rank";
    request.checkpoints = true;
    request.hold = absl::Seconds(30);
    request.budget = {.total = 9, .without_progress = 2, .window = absl::Minutes(5)};
  });
  for (const int32_t rank : {0, 1})
    h_.Report(node_, job, rank, RankCheckpointPart{6, {.file = "part", .bytes = 1}, 0.5});
  h_.Report(node_, job, 0, RankCheckpointPublished{6, "/c/step-6", ""});
  h_.Feed(SessionClosed{node_});
  h_.Advance(absl::Seconds(60));
  ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  node_ = h_.Open("n", 2, /*incarnation=*/2);
  const auto pass = [&](absl::Duration duration) {
    for (absl::Duration passed; passed < duration; passed += absl::Seconds(5)) {
      h_.Advance(absl::Seconds(5));
      h_.Feed(HeartbeatReceived{.session = node_});
    }
  };
  ASSERT_EQ(h_.Phase(job), JobPhase::kStarting);
  h_.commands.clear();
  pass(Harness::Options().prepare_timeout);
  EXPECT_EQ(h_.State(job).failed_starts, 1);
  EXPECT_THAT(h_.Commands<PrepareData>(node_), SizeIs(1)) << "it is on the same devices again";
  h_.Prepare(node_);
  pass(Harness::Options().start_timeout);
  ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_THAT(h_.State(job).reason, HasSubstr("ranks 0, 1 before it trained again"));
  h_.Answer<StopRanks>(node_);
  h_.Prepare(node_);
  const int64_t epoch = h_.State(job).epoch.value;
  h_.Report(node_, job, 0,
            RankError{.kind = FailureKind::kCheckpointUnavailable, .message = "no such file"},
            epoch);
  ASSERT_EQ(h_.Phase(job), JobPhase::kFailed);
  EXPECT_THAT(h_.State(job).failure->message,
              HasSubstr("rank 0: no such file; 2 starts before it failed, too, which is all that "
                        "recovery.budget.without_progress allows"));
}

// The plan is stored, its assignment went with the coordinator: nobody is stopped for it.
TEST_F(WaitTest, CoordinatorThatRestartsOnTheWayBack_Assigns) {
  const JobId job = TrainOn([](JobRequest&) {});
  h_.Report(node_, job, 1, kKilled);
  h_.Report(node_, job, 0, Quiet(0));
  h_.Report(node_, job, 0, RankError{.kind = FailureKind::kStateLost, .message = "no home"}, 2);
  h_.Restart();
  node_ = h_.Open("n", 2, 1, {{job, Epoch{2}}}, 4);
  EXPECT_THAT(h_.Commands<StopRanks>(node_), IsEmpty());
  const auto assigned = h_.Commands<Assign>(node_);
  ASSERT_THAT(assigned, SizeIs(1));
  EXPECT_EQ(assigned[0].second.epoch, Epoch{3});
  EXPECT_FALSE(assigned[0].second.goes_on);
}

// Whoever is lost on the way back is left out, and nothing of the state before is asked for.
TEST_F(WaitTest, LossOnTheWayBack_GoesBackToTheSameCheckpoint) {
  node_ = h_.Open("n", 3);
  JobRequest request = *AJobThatRecovers("a", 3);
  request.restarts = true;
  const JobId job = h_.Run(node_, std::make_shared<const JobRequest>(std::move(request)));
  h_.commands.clear();
  h_.Report(node_, job, 1, kKilled);
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, Quiet(0, rank));
  h_.plans_held = true;
  h_.Report(node_, job, 0, RankError{.kind = FailureKind::kStateLost, .message = "no home"}, 2);
  h_.Report(node_, job, 2, RankError{.kind = FailureKind::kStateLost, .message = "no home"}, 2);
  h_.Report(node_, job, 2, kKilled, 2);
  ASSERT_THAT(h_.plans, SizeIs(2)) << "the first one is dropped";
  EXPECT_THAT(h_.plans[1].lost, ElementsAre(Rank{2}));
  h_.plans_held = false;
  h_.AnswerPlans();
  h_.Commit();
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_FALSE(h_.State(job).goes_on());
  EXPECT_THAT(h_.State(job).layout->lost, ElementsAre(Rank{1}, Rank{2}));
  h_.Report(node_, job, 0, RankReady{}, 3);
  EXPECT_THAT(Events(job, "Recovered"), SizeIs(1));
}

// A job of three ranks that went back to its beginning, in epoch 3, without rank 1.
class WayBackTest : public WaitTest {
 protected:
  void SetUp() override {
    node_ = h_.Open("m", 2);
    other_ = h_.Open("n", 1);
    JobRequest request = *AJobThatRecovers("a", 3);
    request.restarts = true;
    job_ = h_.Submit(std::make_shared<const JobRequest>(std::move(request)));
    for (const SessionId session : {node_, other_}) h_.Prepare(session);
    h_.Ready(node_, job_, 0, 2);
    h_.Ready(other_, job_, 2, 3);
    h_.Report(node_, job_, 1, kKilled);
    h_.Report(node_, job_, 0, Quiet(0));
    h_.Report(other_, job_, 2, Quiet(0, 2));
    h_.Report(node_, job_, 0, RankError{.kind = FailureKind::kStateLost, .message = "no home"}, 2);
    ASSERT_EQ(h_.State(job_).epoch, Epoch{3});
    ASSERT_FALSE(h_.State(job_).goes_on());
  }
  bool GoesBack() {
    const auto& recovery = h_.machine().jobs().at(job_).recovery;
    return recovery.has_value() && recovery->goes_back;
  }
  // Rank 0, of which nothing was heard, is lost.
  void LoseFirst() { h_.Report(node_, job_, 0, kKilled, 3); }

  SessionId other_;
  JobId job_;
};

// Of whose first rank nothing is heard.
TEST_F(WayBackTest, StepThatAHeartbeatTellsOf_IsNotThrownAway) {
  h_.Feed(HeartbeatReceived{.session = other_, .progress = {{job_, Epoch{3}, 1}}});
  EXPECT_FALSE(GoesBack()) << "all were connected";
  LoseFirst();
  ASSERT_EQ(h_.State(job_).epoch, Epoch{4});
  EXPECT_TRUE(h_.State(job_).goes_on());
}

TEST_F(WayBackTest, StepThatARankKnowsWhichLeaves_IsNotThrownAway) {
  h_.Report(other_, job_, 2, RankReady{}, 3);
  h_.Report(other_, job_, 2, Quiet(1, 2), 3);
  EXPECT_FALSE(GoesBack());
  LoseFirst();
  ASSERT_EQ(h_.State(job_).epoch, Epoch{4});
  EXPECT_TRUE(h_.State(job_).goes_on());
  EXPECT_EQ(h_.State(job_).start->step(), 1);
}

// It may be of what was given up.
TEST_F(WayBackTest, StepOfARankThatWasNotReady_IsNotAskedFor) {
  h_.Report(other_, job_, 2, Quiet(1, 2), 3);
  EXPECT_TRUE(GoesBack());
  LoseFirst();
  ASSERT_EQ(h_.State(job_).epoch, Epoch{4});
  EXPECT_FALSE(h_.State(job_).goes_on());
}

TEST_F(WayBackTest, StepThatIsReported_IsNotThrownAway) {
  h_.Feed(
      RankReported{other_, job_, Epoch{3}, 2, StepReport{.step = 1, .epoch = Epoch{3}}, Behind(1)});
  EXPECT_FALSE(GoesBack());
}

}  // namespace
}  // namespace phalanx::coordinator
