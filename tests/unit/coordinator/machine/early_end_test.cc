// Ends before a job's last step: its ranks are told, and it ends behind their checkpoint.
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/unit/coordinator/machine/harness.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using job::JobPhase;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr absl::Duration kLimit = absl::Minutes(5), kGrace = absl::Minutes(2);

CoordinatorOptions EarlyEndOptions() {
  CoordinatorOptions options;
  options.heartbeat_timeout = absl::Hours(10);
  options.end_grace = kGrace;
  return options;
}

JobRequestPtr Limited(const std::string& name = "j", bool checkpoints = true,
                      absl::Duration limit = kLimit) {
  JobRequest request = *AJob(name, 4);
  request.time_limit = limit;
  request.checkpoints = checkpoints;
  return std::make_shared<const JobRequest>(std::move(request));
}

class EarlyEndTest : public testing::Test {
 protected:
  // Two ranks on each of two nodes.
  EarlyEndTest() : h_(EarlyEndOptions()), a_(h_.Open("a", 2)), b_(h_.Open("b", 2)) {}

  void Start(const JobRequestPtr& request = Limited()) {
    job_ = h_.Submit(request);
    h_.Prepare(a_);
    h_.Prepare(b_);
    h_.Answer<Assign>(a_);
    h_.Answer<Assign>(b_);
  }
  void Train(const JobRequestPtr& request = Limited()) {
    Start(request);
    h_.Ready(a_, job_, 0, 2);
    h_.Ready(b_, job_, 2, 4);
    ASSERT_EQ(h_.Phase(job_), JobPhase::kRunning);
  }
  void RestartAndComeBack() {
    h_.Restart();
    a_ = h_.Open("a", 2, 1, {{job_, Epoch{1}}}, 100);
    b_ = h_.Open("b", 2, 1, {{job_, Epoch{1}}}, 100);
  }
  SessionId NodeOf(int32_t rank) const { return rank < 2 ? a_ : b_; }
  void Write(int32_t rank, int64_t step) {
    h_.Report(NodeOf(rank), job_, rank,
              RankCheckpointPart{step, {.file = absl::StrCat("rank-", rank), .digest = "d"}});
  }
  void EndAt(int32_t rank, int64_t step) {
    h_.Report(NodeOf(rank), job_, rank, RankSucceeded{.step = step, .early = step < 10});
  }
  void AllEndAt(int64_t step) {
    for (int32_t rank = 0; rank < 4; ++rank) {
      Write(rank, step);
      EndAt(rank, step);
    }
  }
  void Publish(int64_t step, const std::string& error = "") {
    h_.Report(a_, job_, 0,
              RankCheckpointPublished{step, error.empty() ? absl::StrCat("/c/", step) : "", error});
  }
  size_t Wishes(SessionId session) { return h_.Commands<Wish>(session).size(); }
  FailureKind Kind() const { return h_.State(job_).failure->kind; }
  std::string Message() const { return h_.State(job_).failure->message; }

  Harness h_;
  SessionId a_, b_;
  JobId job_;
};

TEST_F(EarlyEndTest, TimeLimit_IsWishedOfAllNodesOnceStored_AndEndsBehindTheCheckpoint) {
  Train();
  h_.Advance(kLimit - absl::Seconds(1));
  EXPECT_EQ(Wishes(a_), 0u);
  h_.store_held = true;
  h_.Advance(absl::Seconds(1));
  EXPECT_EQ(Wishes(a_), 0u);
  h_.store_held = false;
  h_.Commit();
  EXPECT_EQ(Wishes(a_), 1u);
  EXPECT_EQ(Wishes(b_), 1u);
  EXPECT_EQ(h_.Phase(job_), JobPhase::kRunning);
  EXPECT_EQ(h_.State(job_).reason, "its time_limit of 5m is reached: it ends with a checkpoint");
  EXPECT_THAT(h_.Explain(job_), testing::Contains(h_.State(job_).reason));
  AllEndAt(7);
  EXPECT_EQ(h_.Phase(job_), JobPhase::kRunning) << "its checkpoint is not published";
  Publish(7);
  EXPECT_EQ(h_.Phase(job_), JobPhase::kFailed);
  EXPECT_EQ(Kind(), FailureKind::kTimeLimit);
  EXPECT_EQ(Message(),
            "its time_limit of 5m is reached; it ended with step 7 of 10, checkpoint /c/7");
  EXPECT_THAT(h_.Commands<StopRanks>(a_), SizeIs(1));
}

TEST_F(EarlyEndTest, TimeLimitOfAJobWithoutCheckpoints_EndsItAtOnce) {
  Train(Limited("j", /*checkpoints=*/false));
  h_.Report(b_, job_, 3, StepReport{.step = 4, .epoch = Epoch{1}});
  h_.Advance(kLimit);
  EXPECT_EQ(h_.Phase(job_), JobPhase::kFailed);
  EXPECT_EQ(Kind(), FailureKind::kTimeLimit);
  EXPECT_EQ(Message(),
            "its time_limit of 5m is reached; it had done 4 of 10 steps and has no checkpoint "
            "section");
  EXPECT_EQ(Wishes(a_), 0u);
}

TEST_F(EarlyEndTest, TimeLimitOfAJobThatStarts_EndsItAtOnce) {
  Start();
  h_.Advance(kLimit);
  EXPECT_EQ(h_.Phase(job_), JobPhase::kFailed);
  EXPECT_EQ(Message(), "its time_limit of 5m is reached; it had not begun to train");
}

TEST_F(EarlyEndTest, NoTimeLimit_IsNone) {
  Train(Limited("j", true, absl::InfiniteDuration()));
  h_.Advance(absl::Hours(9));
  EXPECT_EQ(h_.Phase(job_), JobPhase::kRunning);
  EXPECT_EQ(Wishes(a_), 0u);
}

TEST_F(EarlyEndTest, TimeLimit_CountsOnOverARestart) {
  Train();
  h_.Advance(kLimit / 2);
  RestartAndComeBack();
  h_.Advance(kLimit / 2 - absl::Seconds(1));
  EXPECT_EQ(Wishes(a_), 0u);
  h_.Advance(absl::Seconds(1));
  EXPECT_EQ(Wishes(a_), 1u);
  EXPECT_EQ(Wishes(b_), 1u);
}

TEST_F(EarlyEndTest, Wish_IsToldAgainAfterARestart_ToNodesThatAreNotDone) {
  Train();
  h_.Advance(kLimit);
  for (int32_t rank : {0, 1}) {
    Write(rank, 7);
    EndAt(rank, 7);
  }
  RestartAndComeBack();
  EXPECT_EQ(Wishes(a_), 0u);
  EXPECT_EQ(Wishes(b_), 1u);
  AllEndAt(7);
  Publish(7);
  EXPECT_EQ(Kind(), FailureKind::kTimeLimit);
  EXPECT_THAT(Message(), HasSubstr("it ended with step 7 of 10, checkpoint /c/7"));
}

TEST_F(EarlyEndTest, RanksThatDoNotEnd_AreEndedWhenTheGraceIsOver_AlsoOverARestart) {
  Train();
  for (int32_t rank = 0; rank < 4; ++rank) Write(rank, 3);
  Publish(3);
  h_.Advance(kLimit);
  Write(0, 7);
  EndAt(0, 7);
  h_.Advance(kGrace / 2);
  RestartAndComeBack();
  h_.Advance(kGrace / 2 - absl::Seconds(1));
  EXPECT_EQ(h_.Phase(job_), JobPhase::kRunning);
  h_.Advance(absl::Seconds(1));
  EXPECT_EQ(Kind(), FailureKind::kTimeLimit);
  EXPECT_EQ(Message(),
            "its time_limit of 5m is reached; its ranks had not all ended 2m later, without a "
            "checkpoint of their last step; the last one is /c/3");
}

// They have written it meanwhile, and say so once there is somebody to hear it.
TEST_F(EarlyEndTest, GraceThatEndsWithoutACoordinator_LeavesTimeToSayWhatWasDone) {
  Train();
  h_.Advance(kLimit);
  h_.Restart(2 * kGrace);
  h_.Advance(absl::Seconds(5));
  a_ = h_.Open("a", 2, 1, {{job_, Epoch{1}}}, 100);
  b_ = h_.Open("b", 2, 1, {{job_, Epoch{1}}}, 100);
  AllEndAt(7);
  Publish(7);
  EXPECT_EQ(Message(),
            "its time_limit of 5m is reached; it ended with step 7 of 10, checkpoint /c/7");
}

// What they ended with was written, and its turn to be published had not come. It was once given
// up, and the steps behind the checkpoint before were done again.
TEST_F(EarlyEndTest, RestartBeforeTheTurnOfTheLastCheckpoint_WaitsUntilItIsSaidAgain) {
  Train();
  h_.Advance(kLimit);
  for (int32_t rank = 0; rank < 4; ++rank) Write(rank, 3);
  AllEndAt(7);
  RestartAndComeBack();
  Publish(3);
  ASSERT_EQ(h_.Phase(job_), JobPhase::kRunning);
  for (int32_t rank = 0; rank < 4; ++rank) Write(rank, 7);
  Publish(7);
  EXPECT_EQ(Kind(), FailureKind::kTimeLimit);
  EXPECT_THAT(Message(), HasSubstr("it ended with step 7 of 10, checkpoint /c/7"));
}

TEST_F(EarlyEndTest, LastCheckpointThatNobodySaysAgain_IsWaitedForUntilTheGraceIsOver) {
  Train();
  h_.Advance(kLimit);
  for (int32_t rank = 0; rank < 4; ++rank) Write(rank, 3);
  AllEndAt(7);
  RestartAndComeBack();
  Publish(3);
  h_.Advance(kGrace);
  EXPECT_EQ(Kind(), FailureKind::kTimeLimit);
  EXPECT_THAT(Message(), HasSubstr("without a checkpoint"));
}

TEST_F(EarlyEndTest, RestartBeforeTheTurnOfTheCheckpointOfTheLastStep_WaitsUntilItIsSaidAgain) {
  Train();
  for (int32_t rank = 0; rank < 4; ++rank) Write(rank, 3);
  AllEndAt(10);
  RestartAndComeBack();
  Publish(3);
  ASSERT_EQ(h_.Phase(job_), JobPhase::kRunning);
  for (int32_t rank = 0; rank < 4; ++rank) Write(rank, 10);
  Publish(10);
  EXPECT_EQ(h_.Phase(job_), JobPhase::kSucceeded);
  EXPECT_EQ(h_.State(job_).checkpoint_step, 10);
}

TEST_F(EarlyEndTest, CheckpointOfTheLastStepThatNobodySaysAgain_IsWaitedForUntilItsTimeIsOver) {
  Train();
  for (int32_t rank = 0; rank < 4; ++rank) Write(rank, 3);
  AllEndAt(10);
  RestartAndComeBack();
  Publish(3);
  h_.Advance(kGrace / 8);
  ASSERT_EQ(h_.Phase(job_), JobPhase::kRunning);
  h_.Advance(kGrace / 8);
  EXPECT_EQ(h_.Phase(job_), JobPhase::kFailed);
  EXPECT_EQ(Kind(), FailureKind::kCheckpointUnavailable);
}

TEST_F(EarlyEndTest, CheckpointThatIsNotWhole_IsSaidAndEndsIt) {
  Train();
  h_.Advance(kLimit);
  for (int32_t rank = 0; rank < 4; ++rank) {
    if (rank != 2) Write(rank, 7);
    EndAt(rank, 7);
  }
  EXPECT_EQ(Kind(), FailureKind::kTimeLimit);
  EXPECT_THAT(Message(), HasSubstr("it ended with step 7 of 10, without a checkpoint: rank 2 "
                                   "(node b) has not reported its part"));
}

TEST_F(EarlyEndTest, CheckpointThatNobodyHasWritten_IsSaidAndEndsIt) {
  Train();
  h_.Advance(kLimit);
  for (int32_t rank = 0; rank < 4; ++rank) EndAt(rank, 7);
  EXPECT_THAT(Message(), HasSubstr("without a checkpoint: no rank has reported a part of it"));
}

TEST_F(EarlyEndTest, CheckpointThatARankCannotWrite_IsSaidAsTheRankSaysIt) {
  Train();
  h_.Advance(kLimit);
  for (int32_t rank = 0; rank < 4; ++rank) {
    if (rank == 1) {
      h_.Report(a_, job_, rank,
                RankEvent{"CheckpointFailed", "step 7: /c: No space left on device"});
    } else {
      Write(rank, 7);
    }
    EndAt(rank, 7);
  }
  EXPECT_THAT(Message(), HasSubstr("it ended with step 7 of 10, without a checkpoint: rank 1: "
                                   "step 7: /c: No space left on device"));
}

TEST_F(EarlyEndTest, CheckpointThatCouldNotBeWrittenBefore_IsNotWhyTheLastIsNotThere) {
  Train();
  h_.Report(a_, job_, 1, RankEvent{"CheckpointFailed", "step 3: /c: No space left on device"});
  h_.Advance(kLimit);
  for (int32_t rank = 0; rank < 4; ++rank) EndAt(rank, 7);
  EXPECT_THAT(Message(), HasSubstr("without a checkpoint: no rank has reported a part of it"));
}

TEST_F(EarlyEndTest, CheckpointThatCannotBePublished_IsSaidAndEndsIt) {
  Train();
  h_.Advance(kLimit);
  AllEndAt(7);
  Publish(7, "/c: No space left on device");
  EXPECT_THAT(Message(), HasSubstr("without a checkpoint: /c: No space left on device"));
}

TEST_F(EarlyEndTest, CheckpointThatIsNeverPublished_EndsItWithTheGrace) {
  Train();
  h_.Advance(kLimit);
  AllEndAt(7);
  h_.Advance(kGrace);
  EXPECT_EQ(Kind(), FailureKind::kTimeLimit);
  EXPECT_THAT(Message(), HasSubstr("without a checkpoint: rank 0 has not published it"));
}

TEST_F(EarlyEndTest, AllStepsDoneMeanwhile_IsSuccess) {
  Train();
  h_.Advance(kLimit);
  EXPECT_EQ(Wishes(a_), 1u);
  AllEndAt(10);
  Publish(10);
  EXPECT_EQ(h_.Phase(job_), JobPhase::kSucceeded);
}

TEST_F(EarlyEndTest, LimitWhileTheLastCheckpointIsPublished_IsSuccess) {
  Train();
  h_.Advance(kLimit - absl::Seconds(1));
  AllEndAt(10);
  h_.Advance(absl::Seconds(2));
  EXPECT_EQ(Wishes(a_), 0u);
  Publish(10);
  EXPECT_EQ(h_.Phase(job_), JobPhase::kSucceeded);
}

TEST_F(EarlyEndTest, EarlyEndThatNobodyWished_IsAFailure) {
  Train();
  EndAt(0, 7);
  EXPECT_EQ(Kind(), FailureKind::kRankError);
  EXPECT_EQ(Message(), "rank 0 ended at step 7 of 10");
}

TEST_F(EarlyEndTest, RanksThatEndAtDifferentSteps_AreAFailure) {
  Train();
  h_.Advance(kLimit);
  EndAt(0, 7);
  EndAt(1, 8);
  EXPECT_EQ(Kind(), FailureKind::kRankError);
  EXPECT_EQ(Message(), "rank 1 ended at step 8, others at step 7");
}

TEST_F(EarlyEndTest, NodeThatStops_IsLeftWithACheckpoint) {
  Train();
  for (int beat = 0; beat < 2; ++beat) h_.Feed(HeartbeatReceived{.session = b_, .draining = true});
  EXPECT_EQ(Wishes(a_), 1u);
  EXPECT_EQ(Wishes(b_), 1u);
  AllEndAt(7);
  Publish(7);
  EXPECT_EQ(h_.Phase(job_), JobPhase::kQueued);
  EXPECT_THAT(h_.State(job_).reason,
              HasSubstr("node b is drained: it goes on behind step 7 once it has devices again"));
}

TEST_F(EarlyEndTest, NodeThatStopsBeforeItsRanksTrain_IsLeftAtOnce) {
  Start();
  h_.Feed(HeartbeatReceived{.session = b_, .draining = true});
  EXPECT_EQ(h_.Phase(job_), JobPhase::kQueued);
  EXPECT_THAT(h_.State(job_).reason, HasSubstr("node b is drained: it waits for other devices"));
}

TEST_F(EarlyEndTest, NodeThatStops_EndsRanksOfOtherJobsItself) {
  Train(Limited("j", /*checkpoints=*/false));
  h_.Feed(HeartbeatReceived{.session = b_, .draining = true});
  EXPECT_EQ(h_.Phase(job_), JobPhase::kRunning);
  EXPECT_EQ(Wishes(b_), 0u);
  h_.Report(b_, job_, 2, RankExited{.expected = true});
  EXPECT_EQ(Kind(), FailureKind::kNodeStopped);
}

TEST_F(EarlyEndTest, NodeWhoseRanksAreDone_IsNotMissed) {
  Train();
  for (int32_t rank = 0; rank < 4; ++rank) Write(rank, 10);
  EndAt(2, 10);
  EndAt(3, 10);
  h_.Feed(HeartbeatReceived{.session = b_, .draining = true});
  EXPECT_EQ(Wishes(a_), 0u);
  EndAt(0, 10);
  EndAt(1, 10);
  Publish(10);
  EXPECT_EQ(h_.Phase(job_), JobPhase::kSucceeded);
}

TEST_F(EarlyEndTest, CancelWithACheckpoint_IsAnsweredAtOnceAndCancelsBehindIt) {
  Train();
  EXPECT_TRUE(h_.Cancel(job_, /*checkpoint=*/true).ok());
  EXPECT_TRUE(h_.Cancel(job_, /*checkpoint=*/true).ok());
  EXPECT_EQ(Wishes(a_), 1u);
  EXPECT_EQ(h_.Phase(job_), JobPhase::kRunning);
  AllEndAt(7);
  Publish(7);
  EXPECT_EQ(h_.Phase(job_), JobPhase::kCancelled);
  EXPECT_EQ(h_.State(job_).reason,
            "cancelled on request; it ended with step 7 of 10, checkpoint /c/7");
  EXPECT_FALSE(h_.State(job_).failure.has_value());
}

TEST_F(EarlyEndTest, CancelWithoutOneMeanwhile_EndsAtOnce) {
  Train();
  EXPECT_TRUE(h_.Cancel(job_, /*checkpoint=*/true).ok());
  EXPECT_TRUE(h_.Cancel(job_).ok());
  EXPECT_EQ(h_.Phase(job_), JobPhase::kCancelled);
}

TEST_F(EarlyEndTest, CancelWithACheckpointOfAJobThatHasNone_EndsAtOnce) {
  Start();
  const JobId queued = h_.Submit(Limited("queued"));
  for (const JobId job : {queued, job_}) {
    EXPECT_TRUE(h_.Cancel(job, /*checkpoint=*/true).ok());
    EXPECT_EQ(h_.Phase(job), JobPhase::kCancelled);
    EXPECT_EQ(h_.State(job).reason, "cancelled on request");
  }
}

TEST_F(EarlyEndTest, Stall_MovesTheGraceAndNotTheLimit) {
  Train();
  h_.Stall(kLimit);
  h_.Advance(absl::ZeroDuration());
  EXPECT_EQ(Wishes(a_), 1u);
  h_.Stall(kGrace);
  h_.Advance(absl::ZeroDuration());
  EXPECT_EQ(h_.Phase(job_), JobPhase::kRunning);
  AllEndAt(7);
  Publish(7);
  EXPECT_EQ(Kind(), FailureKind::kTimeLimit);
  EXPECT_THAT(h_.Commands<Wish>(b_), SizeIs(1));
}

TEST_F(EarlyEndTest, WishThatWasNotCarriedOut_IsSentAgainUnlessTheJobHasEnded) {
  Train();
  h_.Feed(SessionClosed{b_});
  EXPECT_TRUE(h_.Cancel(job_, /*checkpoint=*/true).ok());
  b_ = h_.Open("b", 2, 1, {{job_, Epoch{1}}}, 2);
  EXPECT_GE(Wishes(b_), 1u);
  h_.Feed(SessionClosed{b_});
  EXPECT_TRUE(h_.Cancel(job_).ok());
  b_ = h_.Open("b", 2, 1, {{job_, Epoch{1}}}, 2);
  EXPECT_THAT(h_.Commands<Wish>(b_), IsEmpty());
}

}  // namespace
}  // namespace phalanx::coordinator
