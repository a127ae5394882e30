// Jobs in which all ranks wait and nobody gets any further.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

class ProgressTest : public testing::Test {
 protected:
  ProgressTest() : h_(PatientOptions()) {}

  // Ranks 0 and 1 on one node, 2 and 3 on another.
  void Train(bool recovers = true) {
    a_ = h_.Open("a", 2);
    b_ = h_.Open("b", 2);
    JobRequest request = *AJob("j", 4);
    request.recovers = recovers;
    request.steps = 1000;
    job_ = h_.Submit(std::make_shared<const JobRequest>(std::move(request)));
    h_.Prepare(a_);
    h_.Prepare(b_);
    Ready();
  }
  void Ready() {
    const int64_t epoch = h_.State(job_).epoch.value;
    h_.Ready(a_, job_, 0, 2, epoch);
    h_.Ready(b_, job_, 2, 4, epoch);
  }
  void Steps(int64_t count, absl::Duration each = absl::Milliseconds(100)) {
    for (int64_t i = 0; i < count; ++i) {
      h_.Advance(each);
      const Epoch epoch = h_.State(job_).epoch;
      h_.Feed(RankReported{
          a_, job_, epoch, 0,
          StepReport{.step = ++step_, .seconds = absl::ToDoubleSeconds(each), .epoch = epoch},
          Behind(step_)});
    }
  }
  // What a daemon says of its ranks.
  void Say(SessionId node, absl::Duration waits) {
    h_.Feed(HeartbeatReceived{
        .session = node,
        .progress = {{.job = job_, .epoch = h_.State(job_).epoch, .step = step_, .waits = waits}}});
  }
  void BothSay(absl::Duration waits) {
    Say(a_, waits);
    Say(b_, waits);
  }
  // So much time passes, in which all ranks wait.
  void BothWait(absl::Duration time) {
    h_.Advance(time);
    BothSay(time);
  }
  void BeQuiet(int32_t first, int32_t end, int64_t epoch = 1) {
    for (int32_t rank = first; rank < end; ++rank)
      h_.Report(rank < 2 ? a_ : b_, job_, rank, Quiet(step_, rank), epoch);
  }
  int64_t epoch() const { return h_.State(job_).epoch.value; }
  std::vector<std::string> Events(absl::string_view type) {
    std::vector<std::string> messages;
    for (const JobEvent& event : h_.events[job_]) {
      if (event.type == type) messages.push_back(event.message);
    }
    return messages;
  }

  Harness h_;
  SessionId a_, b_;
  JobId job_;
  int64_t step_ = 0;
};

TEST_F(ProgressTest, AllRanksWaitForLong_TheSameRanksBeginAgain) {
  Train();
  Steps(20);
  h_.commands.clear();
  h_.Advance(absl::Milliseconds(9'900));
  BothSay(absl::Milliseconds(9'900));
  EXPECT_EQ(epoch(), 1);
  h_.Advance(absl::Milliseconds(100));
  Say(a_, absl::Seconds(10));
  EXPECT_EQ(epoch(), 1) << "of the others nothing is known";
  Say(b_, absl::Seconds(10));
  EXPECT_EQ(epoch(), 2);
  EXPECT_THAT(h_.State(job_).layout->lost, IsEmpty());
  EXPECT_THAT(h_.Commands<Assign>(a_), SizeIs(1));
  EXPECT_THAT(h_.Commands<Assign>(b_), SizeIs(1));
  EXPECT_THAT(Events("NoProgress"),
              ElementsAre("no step was decided behind step 20 for 10s: all ranks wait for each "
                          "other or for their devices"));
  BeQuiet(0, 3);
  EXPECT_THAT(h_.Explain(job_), Contains("nobody in it got any further: ranks 3 have still to say "
                                         "where their state stands"));
  BeQuiet(3, 4);
  Ready();
  EXPECT_THAT(Events("Recovered"), ElementsAre(HasSubstr("step 21 redone")));
  EXPECT_THAT(Events("Verdict"), ElementsAre(HasSubstr("NoProgress (likely): ")));
  Steps(1);
  EXPECT_EQ(h_.Phase(job_), JobPhase::kRunning);
  EXPECT_THAT(h_.State(job_).recoveries, SizeIs(1)) << "it counts in the budget";
}

// It works, waits for data or storage, writes a checkpoint, evaluates: whatever it is.
TEST_F(ProgressTest, SomeRankDoesNotWait_NobodyIsJudged) {
  Train();
  Steps(20);
  for (int minute = 1; minute <= 30; ++minute) {
    h_.Advance(absl::Minutes(1));
    Say(a_, absl::Minutes(minute));
    Say(b_, absl::ZeroDuration());
  }
  EXPECT_EQ(epoch(), 1);
  EXPECT_EQ(h_.Phase(job_), JobPhase::kRunning);
}

// Each waited for long, but not at the same time as the other.
TEST_F(ProgressTest, WaitsOfDifferentTimes_CountWhereTheyMeet) {
  Train();
  Steps(20);
  h_.Advance(absl::Seconds(10));
  Say(a_, absl::Seconds(10));
  h_.Advance(absl::Seconds(2));
  Say(b_, absl::Seconds(10));
  EXPECT_EQ(epoch(), 1) << "eight seconds of both are known";
  h_.Advance(absl::Seconds(1));
  Say(a_, absl::Seconds(13));
  EXPECT_EQ(epoch(), 2);
}

TEST_F(ProgressTest, WaitThatIsOver_CountsNoMore) {
  Train();
  Steps(20);
  h_.Advance(absl::Seconds(12));
  Say(a_, absl::Seconds(12));
  Say(a_, absl::ZeroDuration());
  Say(b_, absl::Seconds(12));
  EXPECT_EQ(epoch(), 1);
}

TEST_F(ProgressTest, StepMeanwhile_EndsAllWaits) {
  Train();
  Steps(20);
  h_.Advance(absl::Seconds(12));
  Say(a_, absl::Seconds(12));
  Steps(1);
  Say(b_, absl::Seconds(12));
  BothSay(absl::Seconds(12));
  EXPECT_EQ(epoch(), 1);
}

// How long that lasts is judged elsewhere.
TEST_F(ProgressTest, NodeThatIsNotHeard_IsNotKnownToWait) {
  Train();
  Steps(20);
  h_.Advance(absl::Seconds(20));
  Say(a_, absl::Seconds(20));
  h_.Advance(absl::Seconds(7));
  Say(b_, absl::Seconds(27));
  EXPECT_EQ(epoch(), 1);
  Say(a_, absl::Seconds(27));
  EXPECT_EQ(epoch(), 2);
}

TEST_F(ProgressTest, SlowSteps_MayTakeTenTimesAsLong) {
  Train();
  Steps(20, absl::Seconds(3));
  BothWait(absl::Seconds(29));
  EXPECT_EQ(epoch(), 1);
  h_.Advance(absl::Seconds(1));
  BothSay(absl::Seconds(30));
  EXPECT_EQ(epoch(), 2);
}

TEST_F(ProgressTest, FirstStepsOfAnEpoch_MayTakeAMinute) {
  Train();
  Steps(7);
  BothWait(absl::Seconds(59));
  EXPECT_EQ(epoch(), 1);
  h_.Advance(absl::Seconds(1));
  BothSay(absl::Seconds(60));
  EXPECT_EQ(epoch(), 2);
}

// A device is back: the epoch before trained on until all ranks of this one were connected.
TEST_F(ProgressTest, StepsOfTheEpochBefore_AreNotTheFirstOfThisOne) {
  Train();
  Steps(20);
  h_.Report(b_, job_, 3, kKilled);
  ASSERT_EQ(epoch(), 2);
  for (int i = 0; i < 20; ++i) {
    h_.Feed(RankReported{a_, job_, Epoch{1}, 0,
                         StepReport{.step = ++step_, .seconds = 0.1, .epoch = Epoch{1}},
                         Behind(step_)});
  }
  BeQuiet(0, 3);
  h_.Ready(a_, job_, 0, 2, 2);
  h_.Ready(b_, job_, 2, 3, 2);
  BothWait(absl::Seconds(59));
  EXPECT_EQ(epoch(), 2);
  h_.Advance(absl::Seconds(1));
  BothSay(absl::Seconds(60));
  EXPECT_EQ(epoch(), 3);
}

// Half of the ranks do the whole of a step.
TEST_F(ProgressTest, FewerRanks_MayTakeLongerByAsMuch) {
  Train();
  Steps(20, absl::Seconds(10));
  h_.Report(b_, job_, 2, kKilled);
  h_.Report(b_, job_, 3, kKilled);
  ASSERT_EQ(epoch(), 3);
  BeQuiet(0, 2);
  h_.Ready(a_, job_, 0, 2, 3);
  h_.Advance(absl::Seconds(199));
  Say(a_, absl::Seconds(199));
  EXPECT_EQ(epoch(), 3);
  Steps(1, absl::Seconds(20));
  h_.Advance(absl::Seconds(199));
  Say(a_, absl::Seconds(199));
  EXPECT_EQ(epoch(), 3);
  h_.Advance(absl::Seconds(1));
  Say(a_, absl::Seconds(200));
  EXPECT_EQ(epoch(), 4);
}

TEST_F(ProgressTest, StepsThatCameAtOnceBehindARestart_WereNoShorter) {
  Train();
  Steps(20, absl::Seconds(15));
  h_.Restart();
  a_ = h_.Open("a", 2, 1, {{job_, Epoch{1}}}, 2);
  b_ = h_.Open("b", 2, 1, {{job_, Epoch{1}}}, 2);
  for (int i = 0; i < 200; ++i) {  // done while nobody listened
    h_.Feed(RankReported{a_, job_, Epoch{1}, 0,
                         StepReport{.step = ++step_, .seconds = 15, .epoch = Epoch{1}},
                         Behind(step_)});
  }
  BothWait(absl::Seconds(149));
  EXPECT_EQ(epoch(), 1);
  h_.Advance(absl::Seconds(1));
  BothSay(absl::Seconds(150));
  EXPECT_EQ(epoch(), 2);
}

TEST_F(ProgressTest, BeforeTheFirstStepOfAll_NothingIsLong) {
  Train();
  BothWait(absl::Hours(1));
  EXPECT_EQ(epoch(), 1);
}

TEST_F(ProgressTest, OutputThatWaits_IsNoStandstill) {
  Train();
  Steps(20);
  h_.Report(a_, job_, 0, RankEvent{kOutputWaiting, "the disk is full"});
  BothWait(absl::Seconds(12));
  EXPECT_EQ(epoch(), 1);
}

TEST_F(ProgressTest, RankThatAccusesAnother_IsJudgedFirst) {
  Train();
  Steps(20);
  h_.Advance(absl::Seconds(12));
  h_.Report(b_, job_, 2, RankError{.kind = FailureKind::kPeerLost, .accused = 1});
  BothSay(absl::Seconds(12));
  EXPECT_EQ(epoch(), 1);
  h_.Advance(absl::Seconds(1));
  EXPECT_THAT(h_.State(job_).layout->lost, ElementsAre(Rank{1}));
  EXPECT_THAT(Events("NoProgress"), IsEmpty());
}

TEST_F(ProgressTest, JobThatRecovers_IsNotJudged) {
  Train();
  Steps(20);
  h_.Report(b_, job_, 3, kKilled);
  EXPECT_EQ(epoch(), 2);
  h_.Advance(absl::Seconds(3));
  BothSay(absl::Minutes(2));
  EXPECT_EQ(epoch(), 2);
}

// What was said before may have come long ago.
TEST_F(ProgressTest, CoordinatorThatDoesNotRun_AsksAnew) {
  Train();
  Steps(20);
  h_.Advance(absl::Seconds(12));
  Say(a_, absl::Seconds(12));
  h_.Stall(absl::Seconds(2));
  Say(b_, absl::Seconds(14));
  EXPECT_EQ(epoch(), 1);
  // It has not listened for so long, which nobody is to blame for.
  h_.Advance(absl::Seconds(1));
  BothSay(absl::Seconds(15));
  EXPECT_EQ(epoch(), 2);
}

TEST_F(ProgressTest, CoordinatorThatStartsAgain_KnowsAStepByItsRecord) {
  Train();
  Steps(60);
  h_.Restart();
  a_ = h_.Open("a", 2, 1, {{job_, Epoch{1}}}, 2);
  b_ = h_.Open("b", 2, 1, {{job_, Epoch{1}}}, 2);
  BothWait(absl::Seconds(59));
  EXPECT_EQ(epoch(), 1);
  h_.Advance(absl::Seconds(1));
  BothSay(absl::Seconds(60));
  EXPECT_EQ(epoch(), 2);
}

TEST_F(ProgressTest, WhoDoesNotLeaveTheEpoch_IsNamedAndLeftOut) {
  Train();
  Steps(20);
  BothWait(absl::Seconds(10));
  BeQuiet(0, 3);
  h_.Advance(absl::Milliseconds(4'900));
  EXPECT_EQ(epoch(), 2);
  h_.Advance(absl::Milliseconds(100));
  EXPECT_EQ(epoch(), 3);
  EXPECT_THAT(h_.State(job_).layout->lost, ElementsAre(Rank{3}));
  const Incident& incident = *h_.incidents[job_].back();
  EXPECT_EQ(incident.number, 1) << "it is the same";
  EXPECT_EQ(incident.cause.kind, FailureKind::kRankHung);
  EXPECT_EQ(incident.cause.rank, 3);
  EXPECT_EQ(incident.cause.message, "rank 3 has not left epoch 1 within 5s");
  EXPECT_THAT(incident.evidence,
              ElementsAre(HasSubstr("no step was decided behind step 20 for 10s"),
                          "rank 3 has not left epoch 1 within 5s"));
}

TEST_F(ProgressTest, WhoseDeviceDoesNotFinish_IsNamedAndLeftOut) {
  Train();
  Steps(20);
  BothWait(absl::Seconds(10));
  RankQuiet quiet = Quiet(step_, 2);
  quiet.context_ok = false;
  h_.Report(b_, job_, 2, quiet);
  EXPECT_EQ(epoch(), 3);
  EXPECT_THAT(h_.State(job_).layout->lost, ElementsAre(Rank{2}));
  EXPECT_EQ(h_.incidents[job_].back()->cause.kind, FailureKind::kDeviceFailed);
  EXPECT_EQ(h_.incidents[job_].back()->cause.rank, 2);
}

TEST_F(ProgressTest, JobWithoutALadder_FailsOfIt) {
  Train(/*recovers=*/false);
  Steps(20);
  BothWait(absl::Seconds(10));
  ASSERT_EQ(h_.Phase(job_), JobPhase::kFailed);
  EXPECT_EQ(h_.State(job_).failure->kind, FailureKind::kNoProgress);
  EXPECT_EQ(h_.State(job_).failure->rank, -1);
}

TEST_F(ProgressTest, JobThatNeverGetsAnyFurther_EndsWithAReason) {
  Train();
  Steps(20);
  const int32_t allowed = h_.State(job_).request->budget.without_progress;
  int32_t verdicts = 0;
  while (h_.Phase(job_) == JobPhase::kRunning && verdicts < 10) {
    const int64_t from = epoch();
    BothWait(absl::Seconds(60));
    ASSERT_EQ(epoch(), from + 1);
    ++verdicts;
    BeQuiet(0, 4, from);
    if (h_.Phase(job_) == JobPhase::kRunning) Ready();
  }
  ASSERT_EQ(h_.Phase(job_), JobPhase::kFailed);
  EXPECT_EQ(verdicts, allowed + 2) << "the first one comes behind steps";
  EXPECT_EQ(h_.State(job_).failure->kind, FailureKind::kNoProgress);
  EXPECT_THAT(h_.State(job_).failure->message,
              HasSubstr("no step was decided since the recovery before, 3 times in a row"));
}

}  // namespace
}  // namespace phalanx::coordinator
