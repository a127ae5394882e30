// Ends before the last step: wished, and those of the daemon itself.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/agent/machine_harness.h"

namespace phalanx::agent {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

// Runs two processes of job-7, which writes checkpoints, and one of job-8, which does not.
class AgentEarlyEndTest : public testing::Test {
 protected:
  AgentEarlyEndTest() {
    h_.Welcome();
    AssignCommand assign = h_.AnAssign(1, {0, 1});
    assign.writes_checkpoints = true;
    h_.Command(1, assign);
    h_.DataReady(h_.last_request);
    for (const ProcessNumber process : {kP1, kP2}) {
      h_.Feed(ProcessStarted{process, absl::OkStatus()});
      h_.Feed(RankHelloReceived{process});
    }
    h_.RunJob(1, {2}, 2, 8);
    h_.ConfirmAll();
  }
  std::vector<std::string> Stop(uint64_t number) {
    return h_.Command(number, StopCommand{JobId{7}, Epoch{1}, absl::Seconds(2), "the job ended"});
  }

  Harness h_;
};

TEST_F(AgentEarlyEndTest, Wish_IsForAllRanksOfItsEpoch) {
  EXPECT_THAT(h_.Command(3, WishCommand{JobId{7}, Epoch{1}, "end"}),
              ElementsAre("Wish p1 end", "Wish p2 end", "Result 3 OK"));
  EXPECT_THAT(h_.Command(4, WishCommand{JobId{7}, Epoch{2}, "end"}),
              ElementsAre("Result 4 ABORTED"));
}

TEST_F(AgentEarlyEndTest, PrepareStandby_IsForAllRanksThatRunItsEpoch) {
  EXPECT_THAT(h_.Command(3, PrepareStandbyCommand{JobId{7}, Epoch{1}, "set"}),
              ElementsAre("PrepareStandby p1 set", "PrepareStandby p2 set", "Result 3 OK"));
  EXPECT_THAT(h_.Command(4, PrepareStandbyCommand{JobId{7}, Epoch{2}, "set"}),
              ElementsAre("Result 4 ABORTED"));
}

TEST_F(AgentEarlyEndTest, BeginEpoch_IsForAllRanksOfItsEpoch_Once) {
  EXPECT_THAT(h_.Command(3, BeginEpochCommand{JobId{7}, Epoch{1}, "here"}),
              ElementsAre("BeginEpoch p1 here", "BeginEpoch p2 here", "Result 3 OK"));
  EXPECT_THAT(h_.Command(4, BeginEpochCommand{JobId{7}, Epoch{1}, "here"}),
              ElementsAre("Result 4 OK"));
  EXPECT_THAT(h_.Command(5, BeginEpochCommand{JobId{7}, Epoch{2}, "here"}),
              ElementsAre("Result 5 ABORTED"));
}

TEST_F(AgentEarlyEndTest, Termination_LeavesRanksThatWriteCheckpoints_UntilTheyAreStopped) {
  EXPECT_THAT(h_.Feed(TerminationRequested{}),
              ElementsAre("Heartbeat [job-7/1@0,job-8/1@0] draining", "Quit p3"));
  h_.Exited(3, 0, 0);
  EXPECT_THAT(h_.Command(3, WishCommand{JobId{7}, Epoch{1}, "end"}),
              ElementsAre("Wish p1 end", "Wish p2 end", "Result 3 OK"));
  // A rank that has ended well still publishes.
  EXPECT_THAT(h_.Command(4, PublishCommand{JobId{7}, Epoch{1}, 2, "it"}),
              ElementsAre("Publish p1 it", "Result 4 OK"));
  EXPECT_THAT(h_.Command(5, WriteIncidentCommand{JobId{7}, Epoch{1}, 2, "that"}),
              ElementsAre("WriteIncident p1 that", "Result 5 OK"));
  EXPECT_THAT(Stop(6), ElementsAre("Quit p1", "Quit p2"));
  h_.Exited(1, 0, 0);
  h_.Exited(2, 0, 0);
  EXPECT_THAT(h_.ConfirmAll(), ElementsAre("CloseSession s1"));
  EXPECT_THAT(h_.Break(absl::OkStatus()), ElementsAre("Exit"));
}

TEST_F(AgentEarlyEndTest, RanksThatNobodyStops_AreEndedWithinTheGrace) {
  h_.Feed(TerminationRequested{});
  h_.Exited(3, 0, 0);
  EXPECT_THAT(h_.Advance(absl::Seconds(24)), Not(Contains(HasSubstr("Quit"))));
  EXPECT_THAT(h_.Advance(absl::Seconds(1)), IsSupersetOf({"Quit p1", "Quit p2"}));
  EXPECT_THAT(h_.Advance(absl::Seconds(2)), IsSupersetOf({"Terminate p1", "Terminate p2"}));
  EXPECT_THAT(h_.Advance(absl::Seconds(3)), IsSupersetOf({"Kill p1", "Kill p2"}));
  EXPECT_THAT(h_.Advance(absl::Seconds(3)), Contains("Exit"));
}

TEST_F(AgentEarlyEndTest, TerminationTwice_KillsAtOnce) {
  h_.Feed(TerminationRequested{});
  EXPECT_THAT(h_.Feed(TerminationRequested{}), ElementsAre("Kill p1", "Kill p2", "Kill p3"));
}

TEST_F(AgentEarlyEndTest, TerminationWithoutACoordinator_WaitsForNothing) {
  h_.Break();
  EXPECT_THAT(h_.Feed(TerminationRequested{}), ElementsAre("Quit p1", "Quit p2", "Quit p3"));
}

// A coordinator that comes back is told again, and says what it wants.
TEST_F(AgentEarlyEndTest, CoordinatorThatIsAwayMeanwhile_IsWaitedFor) {
  h_.Feed(TerminationRequested{});
  h_.Exited(3, 0, 0);
  h_.Break();
  EXPECT_THAT(h_.Welcome(10), Contains("Heartbeat [job-7/1@0] draining"));
  EXPECT_THAT(h_.Command(1, WishCommand{JobId{7}, Epoch{1}, "end"}), Contains("Wish p1 end"));
}

}  // namespace
}  // namespace phalanx::agent
