// Processes that do not run, or whose training stands still.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/agent/machine_harness.h"

namespace phalanx::agent {
namespace {

using ::testing::Contains;
using ::testing::IsSupersetOf;
using ::testing::Not;

// Steps of a tenth of a second, and it was seen to run just now.
void Train(Harness& h, absl::Duration step = absl::Milliseconds(100)) {
  h.Welcome();
  h.RunJob(1, {0, 1});
  for (int64_t i = 1; i <= 5; ++i) {
    h.now += step;
    h.Feed(RankProgressed{kP1, Epoch{1}, i});
  }
  h.Feed(ProcessRan{kP1});
  h.ConfirmAll();
}

TEST(AgentMachineTest, ProcessThatDoesNotRun_IsHung) {
  Harness h;
  Train(h);
  EXPECT_THAT(h.Advance(absl::Seconds(4.9)), Not(Contains("Kill p1")));
  EXPECT_THAT(
      h.Advance(absl::Seconds(0.2)),
      IsSupersetOf({"Report job-7/1 rank 2 fault RankHung: it has not run for long: somebody "
                    "has stopped it, or nobody lets it run: its worker ended it",
                    "StopEpoch p2 1", "Kill p1"}));
}

// It was looked at before its steps told how long they take.
TEST(AgentMachineTest, ProcessThatIsStoppedBehindItsFirstSteps_IsHungAsSoon) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0, 1});
  h.Feed(ProcessRan{kP1});
  for (int64_t i = 1; i <= 3; ++i) {
    h.now += absl::Milliseconds(100);
    h.Feed(RankProgressed{kP1, Epoch{1}, i});
  }
  h.ConfirmAll();
  EXPECT_THAT(h.Advance(absl::Seconds(4.9)), Not(Contains("Kill p1")));
  EXPECT_THAT(h.Advance(absl::Seconds(0.2)), Contains("Kill p1"));
}

// Before a second step, too: the first one says itself how long it took.
TEST(AgentMachineTest, ProcessThatStandsStillInItsSecondStep_IsHung) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0, 1});
  h.Feed(RankProgressed{kP1, Epoch{1}, 1, absl::Milliseconds(100)});
  h.Feed(ProcessRan{.process = kP1, .stands_still = true});
  h.ConfirmAll();
  EXPECT_THAT(h.Advance(absl::Seconds(4.9)), Not(Contains("Kill p1")));
  EXPECT_THAT(h.Advance(absl::Seconds(0.2)), Contains("Kill p1"));
}

TEST(AgentMachineTest, ProcessThatRunsNowAndThen_IsNotHung) {
  Harness h;
  Train(h);
  for (int i = 0; i < 10; ++i) {
    EXPECT_THAT(h.Advance(absl::Seconds(4.9)), Not(Contains("Kill p1")));
    h.Feed(ProcessRan{kP1});
  }
}

// It runs, and its training stands still where it waits for nobody.
TEST(AgentMachineTest, ProcessWhoseTrainingStandsStill_IsHung) {
  Harness h;
  Train(h);
  std::vector<std::string> said;
  for (int i = 0; i < 6; ++i) {
    for (std::string& line : h.Advance(absl::Seconds(1))) said.push_back(std::move(line));
    h.Feed(ProcessRan{.process = kP1, .stands_still = true});
  }
  for (std::string& line : h.Advance(absl::Seconds(1))) said.push_back(std::move(line));
  EXPECT_THAT(said, IsSupersetOf({"Report job-7/1 rank 2 fault RankHung: its training hangs: it "
                                  "works, for longer than any step took, at one and the same: "
                                  "its worker ended it",
                                  "Kill p1"}));
}

TEST(AgentMachineTest, ProcessWhoseTrainingGoesOnNowAndThen_IsNotHung) {
  Harness h;
  Train(h);
  for (int i = 0; i < 20; ++i) {
    EXPECT_THAT(h.Advance(absl::Seconds(2)), Not(Contains("Kill p1")));
    h.Feed(ProcessRan{.process = kP1, .stands_still = i % 2 == 0});
  }
}

// Its first step may take any time.
TEST(AgentMachineTest, ProcessThatHasDoneNoStep_MayStandStillForMinutes) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  for (int i = 0; i < 5; ++i) {
    h.Feed(ProcessRan{.process = kP1, .stands_still = true});
    EXPECT_THAT(h.Advance(absl::Minutes(1)), Not(Contains("Kill p1")));
  }
}

TEST(AgentMachineTest, ProcessOfSlowSteps_MayBeStoppedForLonger) {
  Harness h;
  Train(h, absl::Seconds(2));
  EXPECT_THAT(h.Advance(absl::Seconds(19)), Not(Contains("Kill p1")));
  EXPECT_THAT(h.Advance(absl::Seconds(2)), Contains("Kill p1"));
}

TEST(AgentMachineTest, ProcessThatIsNotSeenToRunWhileItStarts_IsHungLater) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  h.Feed(ProcessRan{kP1});
  EXPECT_THAT(h.Advance(absl::Seconds(29)), Not(Contains("Kill p1")));
  EXPECT_THAT(h.Advance(absl::Seconds(2)), Contains("Kill p1"));
}

// The driver may make it wait until it has taken the dead one's memory apart.
TEST(AgentMachineTest, TrainingThatStandsStillBesideOneThatIsStillToBeReaped_IsNotHungYet) {
  Harness h;
  Train(h);
  h.RunJob(1, {2}, 2, 8);
  h.Feed(ProcessRan{.process = kP1, .stands_still = true});
  h.ConfirmAll();
  h.Advance(absl::Seconds(4));
  h.Feed(ProcessDied{ProcessNumber{3}});
  h.ConfirmAll();
  EXPECT_THAT(h.Advance(absl::Seconds(29)), Not(Contains("Kill p1")));
  h.Exited(3, 0, 9);
  h.ConfirmAll();
  EXPECT_THAT(h.Advance(absl::Seconds(4.9)), Not(Contains("Kill p1")));
  EXPECT_THAT(h.Advance(absl::Seconds(0.2)), Contains("Kill p1"));
}

TEST(AgentMachineTest, TrainingThatStandsStillBesideOneThatIsNeverReaped_IsHungInTheEnd) {
  Harness h;
  Train(h);
  h.RunJob(1, {2}, 2, 8);
  h.Feed(ProcessDied{ProcessNumber{3}});
  h.Feed(ProcessRan{.process = kP1, .stands_still = true});
  h.ConfirmAll();
  EXPECT_THAT(h.Advance(absl::Seconds(59)), Not(Contains("Kill p1")));
  EXPECT_THAT(h.Advance(absl::Seconds(2)), Contains("Kill p1"));
}

// Each has its own time: others that stand still now and then give it no more.
TEST(AgentMachineTest, TrainingThatStandsStillBesideOneThatIsNeverReaped_IsHungWhateverOthersDo) {
  Harness h;
  Train(h);
  h.RunJob(1, {2}, 2, 8);
  h.Feed(ProcessDied{ProcessNumber{3}});
  h.Feed(ProcessRan{.process = kP1, .stands_still = true});
  h.ConfirmAll();
  std::vector<std::string> said;
  for (int i = 0; i < 16; ++i) {
    h.Feed(ProcessRan{.process = ProcessNumber{2}, .stands_still = i % 2 == 0});
    for (std::string& line : h.Advance(absl::Seconds(4))) said.push_back(std::move(line));
  }
  EXPECT_THAT(said, Contains("Kill p1"));
}

// Who does not run at all waits for no driver.
TEST(AgentMachineTest, ProcessThatDoesNotRunBesideOneThatIsStillToBeReaped_IsHung) {
  Harness h;
  Train(h);
  h.RunJob(1, {2}, 2, 8);
  h.Feed(ProcessDied{ProcessNumber{3}});
  h.Feed(ProcessRan{kP1});
  h.ConfirmAll();
  EXPECT_THAT(h.Advance(absl::Seconds(5.1)), Contains("Kill p1"));
}

TEST(AgentMachineTest, ProcessIsNotHung_WhileTheDaemonDoesNotRun) {
  Harness h;
  Train(h);
  h.now += absl::Minutes(1);
  EXPECT_THAT(h.Feed(Stalled{absl::Minutes(1)}), Not(Contains("Kill p1")));
  EXPECT_THAT(h.Feed(ProcessRan{kP1}), Not(Contains("Kill p1")));
}

}  // namespace
}  // namespace phalanx::agent
