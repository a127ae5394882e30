// For how long all ranks of a node stand in waits for others, as heartbeats say.
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/agent/machine_harness.h"

namespace phalanx::agent {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class MachineWaitTest : public testing::Test {
 protected:
  MachineWaitTest() {
    h_.Welcome();
    h_.RunJob(1, {0, 1});
    h_.Feed(RankProgressed{kP1, Epoch{1}, 4});
    h_.Feed(RankProgressed{kP2, Epoch{1}, 4});
  }
  void See(ProcessNumber process, bool waits) {
    h_.Feed(ProcessRan{.process = process, .waits = waits});
  }
  void SeeBothWait() {
    See(kP1, true);
    See(kP2, true);
  }
  std::vector<std::string> Heartbeat() {
    std::vector<std::string> said = h_.ConfirmAll();
    for (std::string& line : h_.Advance(absl::Seconds(1))) said.push_back(std::move(line));
    return said;
  }

  Harness h_;
};

TEST_F(MachineWaitTest, AllRanksWait_HeartbeatSaysForHowLong) {
  SeeBothWait();
  EXPECT_THAT(Heartbeat(), Contains("Heartbeat [job-7/1@4]"));
  h_.Advance(absl::Seconds(1));
  SeeBothWait();
  EXPECT_THAT(Heartbeat(), Contains("Heartbeat [job-7/1@4 waits 2s]"));
}

TEST_F(MachineWaitTest, OneThatHasBegunToWaitLater_IsWhatCounts) {
  See(kP1, true);
  h_.Advance(absl::Seconds(2));
  SeeBothWait();
  h_.Advance(absl::Seconds(1));
  SeeBothWait();
  EXPECT_THAT(Heartbeat(), Contains("Heartbeat [job-7/1@4 waits 1s]"));
}

TEST_F(MachineWaitTest, OneThatDoesNotWait_LeavesNothingToSay) {
  See(kP1, true);
  h_.Advance(absl::Seconds(2));
  See(kP1, true);
  See(kP2, false);
  EXPECT_THAT(Heartbeat(), Contains("Heartbeat [job-7/1@4]"));
}

TEST_F(MachineWaitTest, AnotherWait_CountsFromItsBegin) {
  SeeBothWait();
  h_.Advance(absl::Seconds(2));
  See(kP1, true);
  See(kP2, false);  // it is at something else than it was
  h_.Advance(absl::Seconds(1));
  SeeBothWait();
  h_.Advance(absl::Seconds(1));
  SeeBothWait();
  EXPECT_THAT(Heartbeat(), Contains("Heartbeat [job-7/1@4 waits 1s]"));
}

// It may be stopped: how long that lasts is judged elsewhere.
TEST_F(MachineWaitTest, ProcessThatIsNotSeenToRun_WaitsNoLonger) {
  SeeBothWait();
  h_.Advance(absl::Seconds(2));
  SeeBothWait();
  h_.Advance(absl::Seconds(2));
  See(kP1, true);
  EXPECT_THAT(Heartbeat(), Contains("Heartbeat [job-7/1@4 waits 2s]"));
}

TEST_F(MachineWaitTest, RankThatIsDone_IsNotWaitedFor) {
  h_.Feed(RankReported{kP2, Epoch{1}, ReportKind::kOther, "done", RankOutcome::kSucceeded});
  See(kP1, true);
  h_.Advance(absl::Seconds(2));
  See(kP1, true);
  See(kP2, false);
  EXPECT_THAT(Heartbeat(), Contains("Heartbeat [job-7/1@4 waits 2s]"));
}

// The driver takes its memory apart, and may make the others wait.
TEST_F(MachineWaitTest, BesideOneThatIsStillToBeReaped_NothingIsSaid) {
  h_.RunJob(1, {2}, 2, 8);
  SeeBothWait();
  h_.Advance(absl::Seconds(2));
  SeeBothWait();
  h_.Feed(ProcessDied{ProcessNumber{3}});
  EXPECT_THAT(Heartbeat(), Not(Contains(HasSubstr("waits"))));
}

// The driver may never be done with it.
TEST_F(MachineWaitTest, BesideOneThatIsNeverReaped_WaitsCountBehindAMinute) {
  h_.RunJob(1, {2}, 2, 8);
  h_.Feed(ProcessDied{ProcessNumber{3}});
  for (int second = 0; second < 58; ++second) {
    SeeBothWait();
    EXPECT_THAT(Heartbeat(), Not(Contains(HasSubstr("waits")))) << second;
  }
  for (int second = 58; second < 64; ++second) {
    SeeBothWait();
    Heartbeat();
  }
  SeeBothWait();
  EXPECT_THAT(Heartbeat(), Contains(HasSubstr("[job-7/1@4 waits ")));
}

TEST_F(MachineWaitTest, DeadRankOfTheEpochBeforeThatIsNeverReaped_KeepsNobodysWaitForEver) {
  h_.Feed(ProcessDied{kP2});
  h_.Command(2, h_.AnAssign(2, {0}));
  h_.Feed(EpochStopped{kP1, Epoch{1}});
  for (int second = 0; second < 64; ++second) {
    See(kP1, true);
    Heartbeat();
  }
  See(kP1, true);
  EXPECT_THAT(Heartbeat(), Contains(HasSubstr("[job-7/2@0 waits ")));
}

// Who was stopped did not wait, and what the others waited for was he.
TEST_F(MachineWaitTest, ProcessThatWasStopped_HasNotWaitedMeanwhile) {
  SeeBothWait();
  h_.Advance(absl::Seconds(2));
  SeeBothWait();
  for (int second = 0; second < 10; ++second) {
    h_.Advance(absl::Seconds(1));
    See(kP2, true);
  }
  See(kP1, true);
  EXPECT_THAT(Heartbeat(), Contains("Heartbeat [job-7/1@4 waits 2s]"));
}

TEST_F(MachineWaitTest, WorkerThatWasStopped_KnowsOfNoWaitMeanwhile) {
  SeeBothWait();
  h_.Advance(absl::Seconds(2));
  SeeBothWait();
  h_.now += absl::Seconds(12);
  h_.Feed(Stalled{absl::Seconds(12)});
  SeeBothWait();
  EXPECT_THAT(Heartbeat(), Contains("Heartbeat [job-7/1@4 waits 2s]"));
}

TEST_F(MachineWaitTest, WhileOneStarts_NothingIsSaid) {
  SeeBothWait();
  h_.Advance(absl::Seconds(2));
  SeeBothWait();
  h_.Command(2, h_.AnAssign(2, {0, 1}));  // they are to leave their epoch
  h_.Feed(EpochStopped{kP1, Epoch{1}});   // and the first runs the next one
  EXPECT_THAT(Heartbeat(), Not(Contains(HasSubstr("waits"))));
}

}  // namespace
}  // namespace phalanx::agent
