// Jobs that are to leave their devices and whose state cannot be saved: they stay, with all of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "tests/unit/coordinator/machine/harness.h"
#include "tests/unit/coordinator/machine/recovering.h"

namespace phalanx::coordinator {
namespace {

using job::JobPhase;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class UnsavedTest : public RecoveringTest {
 protected:
  UnsavedTest() : RecoveringTest(PatientOptions()) { node_ = h_.Open("n", 2); }

  static JobRequestPtr Asking(const std::string& name, int32_t priority = 0) {
    JobRequest request = *AJobThatRecovers(name, 2);
    request.checkpoints = request.preemptible = true;
    request.priority = priority;
    request.steps = 100;
    return std::make_shared<const JobRequest>(std::move(request));
  }
  absl::Status Suspend(JobId job) {
    h_.Feed(SuspensionRequested{Token{++token_}, job, /*suspended=*/true, /*by=*/"olga"});
    return h_.answers.at(token_).status();
  }
  void Drain(const NodeName& node) {
    h_.Feed(NodeMarkRequested{Token{++token_}, node, NodeMark{.drains = true}});
  }
  // Its ranks end the epoch with the step; rank 1 cannot write its part.
  void FailToSave(JobId job, int64_t step, int64_t epoch = 1) {
    h_.Report(node_, job, 0, RankCheckpointPart{step, {.file = "rank-0", .digest = "d"}}, epoch);
    h_.Report(
        node_, job, 1,
        RankEvent{kCheckpointFailed, absl::StrCat("step ", step, ": /c: No space left on device")},
        epoch);
    EndAt(job, step, epoch);
  }
  void EndAt(JobId job, int64_t step, int64_t epoch = 1) {
    for (const int32_t rank : {0, 1}) {
      h_.Report(node_, job, rank, RankSucceeded{.step = step, .early = true}, epoch);
      h_.Report(node_, job, rank, Quiet(step, rank), epoch);
    }
  }
  void Save(JobId job, int64_t step, int64_t epoch) {
    for (const int32_t rank : {0, 1}) {
      h_.Report(node_, job, rank,
                RankCheckpointPart{step, {.file = absl::StrCat("rank-", rank), .digest = "d"}},
                epoch);
    }
    EndAt(job, step, epoch);
    h_.Report(node_, job, 0, RankCheckpointPublished{step, absl::StrCat("/c/", step), ""}, epoch);
  }
  // They train on behind the step in the epoch, and do another one.
  void ExpectTrainsOn(JobId job, int64_t step, int64_t epoch) {
    ASSERT_EQ(h_.Phase(job), JobPhase::kRunning);
    ASSERT_EQ(h_.State(job).epoch, Epoch{epoch});
    ASSERT_FALSE(BegunBehind().empty());
    EXPECT_EQ(BegunBehind().back(), step);
    h_.Ready(node_, job, 0, 2, epoch);
    h_.commands.clear();
    Step(job, step + 1, epoch);
    EXPECT_THAT(Lost(job), IsEmpty());
    EXPECT_THAT(h_.State(job).recoveries, IsEmpty()) << "nothing was lost";
    EXPECT_FALSE(h_.State(job).ending.has_value());
  }

  uint64_t token_ = 1'000'000;  // beside those of the harness
};

TEST_F(UnsavedTest, SuspendedJobWhoseStateCannotBeSaved_TrainsOnAndSaysWhy) {
  const JobId job = h_.Run(node_, Asking("a"));
  ASSERT_TRUE(Suspend(job).ok());
  FailToSave(job, 7);
  const std::string why =
      "suspended by olga, and its state cannot be saved: rank 1: step 7: /c: No space left on "
      "device; it trains on: phalanx suspend job-1 asks again";
  EXPECT_THAT(Events(job, kEndGivenUp), ElementsAre(why));
  EXPECT_EQ(h_.views[job]->reason, "trains on 2 on n; " + why);
  EXPECT_FALSE(h_.views[job]->suspended);
  ExpectTrainsOn(job, 7, 2);
  EXPECT_THAT(h_.Commands<Wish>(node_), IsEmpty());
}

TEST_F(UnsavedTest, SuspendedOnceMore_LeavesWhenItsStateIsSaved) {
  const JobId job = h_.Run(node_, Asking("a"));
  ASSERT_TRUE(Suspend(job).ok());
  FailToSave(job, 7);
  ExpectTrainsOn(job, 7, 2);
  ASSERT_TRUE(Suspend(job).ok());
  EXPECT_THAT(h_.Commands<Wish>(node_), SizeIs(1));
  Save(job, 9, 2);
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_THAT(h_.State(job).reason, HasSubstr("it goes on behind step 9"));
}

TEST_F(UnsavedTest, CheckpointThatCannotBePublished_IsNotSavedEither) {
  const JobId job = h_.Run(node_, Asking("a"));
  ASSERT_TRUE(Suspend(job).ok());
  for (const int32_t rank : {0, 1})
    h_.Report(node_, job, rank, RankCheckpointPart{7, {.file = "part", .digest = "d"}});
  EndAt(job, 7);
  ASSERT_EQ(h_.Phase(job), JobPhase::kRunning);
  h_.Report(node_, job, 0, RankCheckpointPublished{7, "", "/c: No space left on device"});
  EXPECT_THAT(Events(job, kEndGivenUp), SizeIs(1));
  ExpectTrainsOn(job, 7, 2);
}

TEST_F(UnsavedTest, DrainedNode_AsksAgainAfterAWhile) {
  const JobId job = h_.Run(node_, Asking("a"));
  Drain("n");
  ASSERT_THAT(h_.Commands<Wish>(node_), SizeIs(1));
  FailToSave(job, 7);
  EXPECT_THAT(
      Events(job, kEndGivenUp),
      ElementsAre(HasSubstr("node n is drained, and its state cannot be saved: rank 1: step "
                            "7: /c: No space left on device; it trains on, and is asked "
                            "again after 2m")));
  ExpectTrainsOn(job, 7, 2);
  h_.Advance(Harness::Options().save_retry_delay - absl::Seconds(1));
  Step(job, 9, 2);
  EXPECT_THAT(h_.Commands<Wish>(node_), IsEmpty());
  h_.Advance(absl::Seconds(1));
  Step(job, 10, 2);
  EXPECT_THAT(h_.Commands<Wish>(node_), SizeIs(1));
  Save(job, 11, 2);
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued);
}

TEST_F(UnsavedTest, LargerPriority_AsksAgainAfterAWhile) {
  const JobId low = h_.Run(node_, Asking("low"));
  const JobId high = h_.Submit(Asking("high", 1));
  ASSERT_THAT(h_.Commands<Wish>(node_), SizeIs(1));
  FailToSave(low, 7);
  EXPECT_THAT(Events(low, kEndGivenUp), SizeIs(1));
  ExpectTrainsOn(low, 7, 2);
  EXPECT_THAT(h_.Commands<Wish>(node_), IsEmpty());
  EXPECT_EQ(h_.Phase(high), JobPhase::kQueued);
  h_.Advance(Harness::Options().save_retry_delay);
  Step(low, 9, 2);
  EXPECT_THAT(h_.Commands<Wish>(node_), SizeIs(1));
  Save(low, 10, 2);
  h_.Answer<StopRanks>(node_);
  EXPECT_EQ(h_.Phase(high), JobPhase::kStarting);
}

TEST_F(UnsavedTest, CoordinatorThatDiesBeforeTheNextEpochIsOrdered_OrdersItWhenItIsBack) {
  const JobId job = h_.Run(node_, Asking("a"));
  ASSERT_TRUE(Suspend(job).ok());
  h_.plans_held = true;
  FailToSave(job, 7);
  ASSERT_THAT(Events(job, kEndGivenUp), SizeIs(1));
  h_.plans_held = false;
  h_.Restart();
  node_ = h_.Open("n", 2, 1, {RunningAssignment{job, Epoch{1}}}, 100);
  h_.Advance(Harness::Options().end_grace / 4);  // parts may be said again
  for (const int32_t rank : {0, 1}) h_.Report(node_, job, rank, Quiet(7, rank));
  ExpectTrainsOn(job, 7, 2);
}

TEST_F(UnsavedTest, RankThatDiedBehindItsLastStep_IsALossLikeAnother) {
  const JobId job = h_.Run(node_, Asking("a"));
  ASSERT_TRUE(Suspend(job).ok());
  for (const int32_t rank : {0, 1})
    h_.Report(node_, job, rank, RankCheckpointPart{7, {.file = "part", .digest = "d"}});
  EndAt(job, 7);
  h_.Report(node_, job, 1, kKilled);
  h_.Report(node_, job, 0, RankCheckpointPublished{7, "", "/c: No space left on device"});
  ASSERT_EQ(h_.Phase(job), JobPhase::kRunning);
  EXPECT_THAT(Lost(job), ElementsAre(Rank{1}));
  EXPECT_EQ(BegunBehind().back(), 7);
  EXPECT_THAT(h_.State(job).recoveries, SizeIs(1));
}

TEST_F(UnsavedTest, RankThatDiesWhileTheNextEpochIsPlanned_IsALossLikeAnother) {
  const JobId job = h_.Run(node_, Asking("a"));
  ASSERT_TRUE(Suspend(job).ok());
  h_.plans_held = true;
  FailToSave(job, 7);
  h_.Report(node_, job, 1, kKilled);
  h_.plans_held = false;
  h_.Feed(DeadlineReached{});
  ASSERT_EQ(h_.Phase(job), JobPhase::kRunning);
  EXPECT_THAT(Lost(job), ElementsAre(Rank{1}));
  EXPECT_EQ(BegunBehind().back(), 7);
  EXPECT_THAT(h_.State(job).recoveries, SizeIs(1));
}

TEST_F(UnsavedTest, JobWhoseWorkerStops_GoesBackToTheQueueAsEver) {
  const JobId job = h_.Run(node_, Asking("a"));
  Step(job, 4, 1);
  h_.Feed(HeartbeatReceived{.session = node_, .draining = true});
  ASSERT_THAT(h_.Commands<Wish>(node_), SizeIs(1));
  FailToSave(job, 7);
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_THAT(h_.State(job).reason, HasSubstr("/c: No space left on device"));
  EXPECT_THAT(Events(job, kEndGivenUp), IsEmpty());
}

// Its ranks may still be at the disk, and have no other epoch until they are not.
TEST_F(UnsavedTest, RanksThatHaveNotEndedInTime_AreStoppedAsEver) {
  const JobId job = h_.Run(node_, Asking("a"));
  ASSERT_TRUE(Suspend(job).ok());
  h_.Advance(Harness::Options().end_grace);
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_THAT(Events(job, kEndGivenUp), IsEmpty());
}

// Behind the last step: what the others have is enough to write its checkpoint again.
class LastCheckpointTest : public RecoveringTest {
 protected:
  LastCheckpointTest() {
    node_ = h_.Open("n", 3);
    JobRequest request = *AJobThatRecovers("a", 3);
    request.checkpoints = true;
    job_ = h_.Run(node_, std::make_shared<const JobRequest>(std::move(request)));
  }
  void DoneBy(const std::vector<int32_t>& ranks, int64_t epoch) {
    for (const int32_t rank : ranks) {
      const std::string file = absl::StrCat("rank-", rank);
      h_.Report(node_, job_, rank, RankCheckpointPart{10, {.file = file, .digest = "d"}}, epoch);
      h_.Report(node_, job_, rank, RankSucceeded{.step = 10}, epoch);
      h_.Report(node_, job_, rank, Quiet(10, rank), epoch);
    }
  }

  JobId job_;
};

TEST_F(LastCheckpointTest, DeathOfWhoWasToPublishIt_HasTheOthersWriteItAgain) {
  DoneBy({0, 1, 2}, 1);
  h_.Report(node_, job_, 0, kKilled);
  ASSERT_EQ(h_.Phase(job_), JobPhase::kRunning);
  EXPECT_THAT(Events(job_, kCheckpointFailed),
              ElementsAre("step 10: rank 0 has not published it, and it was killed by signal 9 "
                          "(SIGKILL)"));
  ASSERT_EQ(h_.State(job_).epoch, Epoch{2});
  EXPECT_THAT(Lost(job_), ElementsAre(Rank{0}));
  EXPECT_THAT(BegunBehind(), ElementsAre(10));
  EXPECT_THAT(h_.State(job_).recoveries, SizeIs(1)) << "the budget bounds how often";
  for (const int32_t rank : {1, 2}) h_.Report(node_, job_, rank, RankReady{}, 2);
  DoneBy({1, 2}, 2);
  h_.Report(node_, job_, 1, RankCheckpointPublished{10, "/c/10", ""}, 2);
  EXPECT_EQ(h_.Phase(job_), JobPhase::kSucceeded);
}

TEST_F(LastCheckpointTest, DiskThatTakesNone_FailsTheJob_ThoughNobodyIsGone) {
  DoneBy({0, 1, 2}, 1);
  h_.Report(node_, job_, 0, RankCheckpointPublished{10, "", "no space"});
  EXPECT_EQ(h_.Phase(job_), JobPhase::kFailed);
}

}  // namespace
}  // namespace phalanx::coordinator
