// Jobs that leave their devices in order: on request, or for a larger priority.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/coordinator/machine/harness.h"
#include "tests/unit/coordinator/machine/recovering.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using job::JobPhase;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class LeaveTest : public testing::Test {
 protected:
  LeaveTest() : h_(PatientOptions()), node_(h_.Open("n", 2)) {}

  static JobRequestPtr Asking(const std::string& name, int32_t priority = 0,
                              bool checkpoints = true) {
    JobRequest request = *AJob(name, 2);
    request.checkpoints = checkpoints;
    request.preemptible = true;
    request.priority = priority;
    return std::make_shared<const JobRequest>(std::move(request));
  }
  absl::Status SetSuspended(JobId job, bool suspended) {
    h_.Feed(SuspensionRequested{Token{++token_}, job, suspended});
    return h_.answers.at(token_).status();
  }
  absl::Status Suspend(JobId job) { return SetSuspended(job, true); }
  absl::Status Resume(JobId job) { return SetSuspended(job, false); }
  // Its ranks end at the step, and have published a checkpoint of it.
  void Save(JobId job, int64_t step, int64_t epoch = 1) {
    for (const int32_t rank : {0, 1}) {
      h_.Report(node_, job, rank,
                RankCheckpointPart{step, {.file = absl::StrCat("rank-", rank), .digest = "d"}},
                epoch);
      h_.Report(node_, job, rank, RankSucceeded{.step = step, .early = true}, epoch);
    }
    h_.Report(node_, job, 0, RankCheckpointPublished{step, absl::StrCat("/c/", step), ""}, epoch);
  }
  std::vector<std::string> Events(JobId job, const std::string& type) {
    std::vector<std::string> messages;
    for (const JobEvent& event : h_.events[job]) {
      if (event.type == type) messages.push_back(event.message);
    }
    return messages;
  }
  // Where its new epoch begins.
  std::string CheckpointOfTheNextEpoch() {
    h_.Prepare(node_);
    const auto assigned = h_.Commands<Assign>(node_);
    if (assigned.empty() || !assigned.back().second.checkpoint.has_value()) return "";
    return assigned.back().second.checkpoint->path;
  }

  Harness h_;
  SessionId node_;
  uint64_t token_ = 1'000'000;  // beside those of the harness
};

TEST_F(LeaveTest, Suspend_SavesTheStateFreesTheDevices_AndResumeGoesOnFromThere) {
  const JobId job = h_.Run(node_, Asking("a"));
  ASSERT_TRUE(Suspend(job).ok());
  EXPECT_THAT(h_.Commands<Wish>(node_), SizeIs(1));
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
  EXPECT_TRUE(h_.views[job]->suspended);
  EXPECT_EQ(h_.State(job).reason,
            "suspended on request: its state is saved before its devices are free");
  Save(job, 7);
  ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_EQ(h_.State(job).reason,
            "suspended on request: it goes on behind step 7 once it is resumed");
  EXPECT_THAT(h_.Explain(job), Contains("phalanx resume job-1 lets it go on"));
  h_.Answer<StopRanks>(node_);
  EXPECT_EQ(h_.Free("n"), 2);
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued) << "it waits for somebody, not for devices";
  EXPECT_THAT(h_.State(job).recoveries, IsEmpty()) << "nothing was lost";
  ASSERT_TRUE(Resume(job).ok());
  EXPECT_EQ(h_.Phase(job), JobPhase::kStarting);
  EXPECT_FALSE(h_.views[job]->suspended);
  EXPECT_EQ(CheckpointOfTheNextEpoch(), "/c/7");
  EXPECT_THAT(Events(job, "Suspended"), SizeIs(1));
  EXPECT_THAT(Events(job, "Resumed"), ElementsAre("on request"));
}

TEST_F(LeaveTest, Suspension_HoldsOverARestart) {
  const JobId job = h_.Run(node_, Asking("a"));
  ASSERT_TRUE(Suspend(job).ok());
  Save(job, 7);
  h_.Restart();
  node_ = h_.Open("n", 2, /*incarnation=*/2);
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_EQ(h_.Free("n"), 2);
  ASSERT_TRUE(Resume(job).ok());
  EXPECT_EQ(h_.Phase(job), JobPhase::kStarting);
}

TEST_F(LeaveTest, SuspendAndResume_AreIdempotent) {
  const JobId job = h_.Run(node_, Asking("a"));
  ASSERT_TRUE(Resume(job).ok());
  ASSERT_TRUE(Suspend(job).ok());
  ASSERT_TRUE(Suspend(job).ok());
  EXPECT_THAT(h_.Commands<Wish>(node_), SizeIs(1));
  EXPECT_THAT(Events(job, "Suspended"), SizeIs(1));
}

TEST_F(LeaveTest, QueuedJob_IsPassedOverUntilItIsResumed) {
  const JobId running = h_.Run(node_, Asking("runs"));
  const JobId first = h_.Submit(Asking("first")), second = h_.Submit(Asking("second"));
  ASSERT_TRUE(Suspend(first).ok());
  ASSERT_TRUE(h_.Cancel(running).ok());
  h_.Answer<StopRanks>(node_);
  EXPECT_EQ(h_.Phase(first), JobPhase::kQueued);
  EXPECT_EQ(h_.Phase(second), JobPhase::kStarting);
  ASSERT_TRUE(h_.Cancel(second).ok());
  ASSERT_TRUE(Resume(first).ok());
  EXPECT_EQ(h_.Phase(first), JobPhase::kStarting);
}

TEST_F(LeaveTest, JobThatStarts_LeavesAtOnce) {
  const JobId job = h_.Submit(Asking("a"));
  ASSERT_EQ(h_.Phase(job), JobPhase::kStarting);
  ASSERT_TRUE(Suspend(job).ok());
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_EQ(h_.Free("n"), 2);
}

// However often: recovery.budget is for what fails.
TEST_F(LeaveTest, JobTooLargeForAllNodes_SaysThatItIsSuspended_NotWhatItNeeds) {
  const JobId job = h_.Submit(AJob("large", 3));
  ASSERT_THAT(h_.views[job]->reason, HasSubstr("needs 3 devices"));
  h_.Feed(SuspensionRequested{Token{++token_}, job, /*suspended=*/true, /*by=*/"olga"});
  EXPECT_EQ(h_.views[job]->reason, "suspended by olga");
  ASSERT_TRUE(Resume(job).ok());
  EXPECT_THAT(h_.views[job]->reason, HasSubstr("needs 3 devices"));
}

TEST_F(LeaveTest, JobThatStartsAgainAndIsSuspended_HasLostNothing) {
  const JobId job = h_.Run(node_, Asking("a"));
  ASSERT_TRUE(Suspend(job).ok());
  Save(job, 7);
  h_.Answer<StopRanks>(node_);
  for (int time = 0; time < 2; ++time) {
    ASSERT_TRUE(Resume(job).ok());
    ASSERT_EQ(h_.Phase(job), JobPhase::kStarting);
    ASSERT_TRUE(Suspend(job).ok());
    ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  }
  EXPECT_THAT(h_.State(job).recoveries, IsEmpty());
  EXPECT_EQ(h_.State(job).failed_starts, 0);
}

// Its node took longer for that than the job took elsewhere to have a checkpoint.
TEST_F(LeaveTest, ChoiceForAStartBefore_DoesNotTakeTheJobsOwnCheckpoint) {
  const SessionId first = node_;
  const JobId job = h_.Submit(Asking("a"));
  ASSERT_THAT(h_.Commands<PrepareData>(first), SizeIs(1));
  EXPECT_TRUE(h_.Commands<PrepareData>(first)[0].second.choose_checkpoint);
  CommandFinished late{.session = first,
                       .command_number = h_.Commands<PrepareData>(first)[0].first,
                       .data_digest = "data"};
  late.choice.emplace();  // there was none: the job begins with its first step
  ASSERT_TRUE(Suspend(job).ok());
  const JobId other = h_.Submit(Asking("b"));  // there now
  node_ = h_.Open("o", 2);
  ASSERT_TRUE(Resume(job).ok());
  h_.Prepare(node_);
  h_.Answer<Assign>(node_);
  h_.Ready(node_, job, 0, 2, /*epoch=*/2);
  ASSERT_EQ(h_.Phase(job), JobPhase::kRunning);
  ASSERT_TRUE(Suspend(job).ok());
  Save(job, 7, /*epoch=*/2);
  h_.Answer<StopRanks>(node_);
  ASSERT_TRUE(h_.Cancel(other).ok());
  ASSERT_TRUE(Resume(job).ok());
  ASSERT_EQ(h_.State(job).placement->front().node, "n");
  h_.Feed(late);
  h_.Prepare(first);
  ASSERT_THAT(h_.Commands<Assign>(first), SizeIs(1));
  const Assign assigned = h_.Commands<Assign>(first)[0].second;
  ASSERT_TRUE(assigned.checkpoint.has_value());
  EXPECT_EQ(assigned.checkpoint->path, "/c/7");
}

TEST_F(LeaveTest, ResumeWhileTheStateIsSaved_GoesOnFromIt) {
  const JobId job = h_.Run(node_, Asking("a"));
  ASSERT_TRUE(Suspend(job).ok());
  ASSERT_TRUE(Resume(job).ok());
  Save(job, 7);
  h_.Answer<StopRanks>(node_);
  EXPECT_EQ(h_.Phase(job), JobPhase::kStarting);
  EXPECT_EQ(CheckpointOfTheNextEpoch(), "/c/7");
}

TEST_F(LeaveTest, StateThatIsNotSavedInTime_IsToldAndTheStepsAreDoneAgain) {
  const JobId job = h_.Run(node_, Asking("a"));
  h_.Report(node_, job, 0, StepReport{.step = 4, .epoch = Epoch{1}});
  ASSERT_TRUE(Suspend(job).ok());
  h_.Advance(Harness::Options().end_grace);
  ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_THAT(h_.State(job).reason, HasSubstr("behind step 0 once it is resumed; 4 steps since"));
}

TEST_F(LeaveTest, JobWithoutCheckpoints_IsNotSuspended) {
  const JobId job = h_.Run(node_, Asking("a", 0, /*checkpoints=*/false));
  const absl::Status refused = Suspend(job);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("job-1 has no checkpoint section"));
  EXPECT_FALSE(h_.State(job).suspended);
}

TEST_F(LeaveTest, JobThatHasEnded_IsNeitherSuspendedNorResumed) {
  const JobId job = h_.Run(node_, Asking("a"));
  ASSERT_TRUE(h_.Cancel(job).ok());
  EXPECT_EQ(Suspend(job).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Resume(job).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Suspend(JobId{9}).code(), absl::StatusCode::kNotFound);
}

TEST_F(LeaveTest, SuspendedJob_CanBeCancelled) {
  const JobId job = h_.Submit(Asking("a"));
  ASSERT_TRUE(Suspend(job).ok());
  ASSERT_TRUE(h_.Cancel(job).ok());
  EXPECT_EQ(h_.Phase(job), JobPhase::kCancelled);
  EXPECT_THAT(h_.archived, ElementsAre(job));
}

TEST_F(LeaveTest, TimeLimit_DoesNotCountWhatAJobIsSuspendedFor) {
  JobRequest request = *Asking("a");
  request.time_limit = absl::Hours(2);
  const JobId job = h_.Run(node_, std::make_shared<const JobRequest>(std::move(request)));
  h_.Advance(absl::Hours(1));
  ASSERT_TRUE(Suspend(job).ok());
  Save(job, 7);
  h_.Answer<StopRanks>(node_);
  h_.Advance(absl::Hours(5));
  ASSERT_TRUE(Resume(job).ok());
  h_.Prepare(node_);
  h_.Ready(node_, job, 0, 2, 2);
  h_.Advance(absl::Minutes(59));
  EXPECT_FALSE(h_.State(job).ending.has_value());
  h_.Advance(absl::Minutes(1));
  EXPECT_TRUE(h_.State(job).ending.has_value());
}

TEST_F(LeaveTest, LargerPriority_PreemptsAndThePreemptedGoesOnAfterIt) {
  const JobId low = h_.Run(node_, Asking("low"));
  const JobId high = h_.Submit(Asking("high", 1));
  EXPECT_THAT(h_.Commands<Wish>(node_), SizeIs(1));
  EXPECT_THAT(h_.State(low).reason, HasSubstr("job-2, of a larger priority, needs its devices"));
  Save(low, 7);
  EXPECT_EQ(h_.Phase(low), JobPhase::kQueued);
  h_.Answer<StopRanks>(node_);
  EXPECT_EQ(h_.Phase(high), JobPhase::kStarting);
  EXPECT_EQ(h_.Phase(low), JobPhase::kQueued);
  ASSERT_TRUE(h_.Cancel(high).ok());
  EXPECT_EQ(h_.Phase(low), JobPhase::kStarting);
  EXPECT_EQ(CheckpointOfTheNextEpoch(), "/c/7") << "no step is done again";
}

TEST_F(LeaveTest, DevicesWhoseRanksAreStillEnding_PreemptNobodyElse) {
  const JobId low = h_.Run(node_, Asking("low"));
  const SessionId other = h_.Open("m", 2);
  h_.Run(other, Asking("middle", 1));
  const JobId high = h_.Submit(Asking("high", 2));
  ASSERT_THAT(h_.Commands<Wish>(node_), SizeIs(1));
  Save(low, 7);
  ASSERT_EQ(h_.Phase(low), JobPhase::kQueued);
  ASSERT_EQ(h_.Phase(high), JobPhase::kQueued);
  EXPECT_THAT(h_.Commands<Wish>(other), IsEmpty()) << "what low had is enough";
  h_.Answer<StopRanks>(node_);
  EXPECT_EQ(h_.Phase(high), JobPhase::kStarting);
}

TEST_F(LeaveTest, SamePriority_DoesNotPreempt) {
  h_.Run(node_, Asking("runs", 1));
  h_.Submit(Asking("same", 1));
  h_.Submit(Asking("smaller", 0));
  EXPECT_THAT(h_.Commands<Wish>(node_), IsEmpty());
}

TEST_F(LeaveTest, JobsThatAreNotPreemptible_OrHaveNoCheckpoints_Stay) {
  JobRequest request = *Asking("a");
  request.preemptible = false;
  h_.Run(node_, std::make_shared<const JobRequest>(request));
  const SessionId other = h_.Open("m", 2);
  h_.Run(other, Asking("b", 0, /*checkpoints=*/false));
  const JobId high = h_.Submit(Asking("high", 5));
  EXPECT_EQ(h_.Phase(high), JobPhase::kQueued);
  EXPECT_THAT(h_.Commands<Wish>(node_), IsEmpty());
  EXPECT_THAT(h_.Commands<Wish>(other), IsEmpty());
}

// Three ranks, behind step 4 when they are asked to leave; rank 1 is lost before they have.
class LossOnTheWayOutTest : public LeaveTest {
 protected:
  JobId TrainAndSuspend(const std::string& text = "text", int64_t checkpoint = 0) {
    node_ = h_.Open("three", 3);
    JobRequest request = *AJobThatRecovers("a", 3);
    request.checkpoints = request.waits = request.restarts = true;
    request.document.text = text;
    const JobId job = h_.Run(node_, std::make_shared<const JobRequest>(std::move(request)));
    for (const int32_t rank : {0, 1, 2}) {
      if (checkpoint != 0) h_.Report(node_, job, rank, Part(checkpoint));
    }
    if (checkpoint != 0)
      h_.Report(node_, job, 0, RankCheckpointPublished{checkpoint, "/c/before", ""});
    h_.Feed(
        RankReported{node_, job, Epoch{1}, 0, StepReport{.step = 4, .epoch = Epoch{1}}, Behind(4)});
    EXPECT_TRUE(Suspend(job).ok());
    return job;
  }
  static RankCheckpointPart Part(int64_t step) { return {step, {.file = "part", .bytes = 1}, 0.5}; }
  void SaveWithTheOthers(JobId job, int64_t step) {
    for (const int32_t rank : {0, 2}) {
      h_.Report(node_, job, rank, Part(step), 2);
      h_.Report(node_, job, rank, RankSucceeded{.step = step, .early = true}, 2);
    }
    h_.Report(node_, job, 0, RankCheckpointPublished{step, "/c/saved", ""}, 2);
  }
};

TEST_F(LossOnTheWayOutTest, Recovers_AndLeavesWithTheStateSaved) {
  const JobId job = TrainAndSuspend();
  h_.Advance(Harness::Options().end_grace - absl::Seconds(1));
  h_.Report(node_, job, 1, kKilled);
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, Quiet(4, rank));
  h_.Advance(absl::Minutes(1));
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning) << "it has the time for its state anew";
  h_.commands.clear();
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, RankReady{}, 2);
  const auto wishes = h_.Commands<Wish>(node_);
  ASSERT_THAT(wishes, SizeIs(1));
  EXPECT_EQ(wishes[0].second.epoch, Epoch{2});
  h_.Advance(Harness::Options().end_grace - absl::Seconds(1));
  SaveWithTheOthers(job, 5);
  ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_EQ(h_.State(job).reason,
            "suspended on request: it goes on behind step 5 once it is resumed");
  EXPECT_THAT(h_.State(job).recoveries, SizeIs(1)) << "the loss counts, the suspension does not";
}

TEST_F(LossOnTheWayOutTest, RecoveryThatTakesLongerThanTheGrace_IsNotCutShort) {
  const JobId job = TrainAndSuspend();
  h_.Report(node_, job, 1, kKilled);
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, Quiet(4, rank));
  h_.Advance(2 * Harness::Options().end_grace);
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, RankReady{}, 2);
  SaveWithTheOthers(job, 5);
  EXPECT_THAT(h_.State(job).reason, HasSubstr("it goes on behind step 5"));
}

TEST_F(LossOnTheWayOutTest, WhatCannotGoOn_SavesWhatIsLeftAndDoesNotWaitForTheRest) {
  const JobId job = TrainAndSuspend("needs every rank");
  h_.Report(node_, job, 1, RankError{.kind = FailureKind::kDeviceFailed, .message = "xid 79"});
  h_.Advance(Harness::Options().end_grace);
  ASSERT_TRUE(h_.State(job).ends);
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, Quiet(4, rank));
  SaveWithTheOthers(job, 4);
  ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_EQ(h_.State(job).reason,
            "suspended on request: it goes on behind step 4 once it is resumed");
  EXPECT_TRUE(h_.State(job).suspended);
  EXPECT_THAT(h_.State(job).recoveries, SizeIs(1));
}

TEST_F(LossOnTheWayOutTest, StateThatIsLost_GoesBackToTheCheckpointOnceItIsResumed) {
  const JobId job = TrainAndSuspend("text", /*checkpoint=*/3);
  h_.Report(node_, job, 0, RankError{.kind = FailureKind::kStateLost, .message = "no home of 3"});
  ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_EQ(h_.State(job).reason,
            "suspended on request: it goes on behind step 3 once it is resumed; 1 step since are "
            "done again: rank 0: no home of 3");
}

TEST_F(LossOnTheWayOutTest, CoordinatorThatWasAway_GivesTheStateItsTimeAnew) {
  const JobId job = TrainAndSuspend();
  h_.Restart(/*clock_set=*/absl::Hours(1));
  node_ = h_.Open("three", 3, 1, {RunningAssignment{job, Epoch{1}}});
  h_.Advance(absl::Minutes(1));
  ASSERT_EQ(h_.Phase(job), JobPhase::kRunning);
  for (const int32_t rank : {0, 1, 2}) {
    h_.Report(node_, job, rank, Part(5));
    h_.Report(node_, job, rank, RankSucceeded{.step = 5, .early = true});
  }
  h_.Report(node_, job, 0, RankCheckpointPublished{5, "/c/5", ""});
  ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_THAT(h_.State(job).reason, HasSubstr("it goes on behind step 5"));
}

}  // namespace
}  // namespace phalanx::coordinator
