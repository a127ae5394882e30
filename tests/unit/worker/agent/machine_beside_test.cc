// Epochs whose ranks connect while they train in the one before: transcripts of the machine.
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/agent/machine_harness.h"

namespace phalanx::agent {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class AgentBesideTest : public testing::Test {
 protected:
  AgentBesideTest() {
    h_.Welcome();
    h_.RunJob(1, {0, 1});
    h_.ConfirmAll();
  }
  std::vector<std::string> Assign(uint64_t number, int64_t epoch, bool beside) {
    AssignCommand assign = h_.AnAssign(epoch, {0, 1});
    assign.goes_on = true;
    assign.beside = beside;
    return h_.Command(number, std::move(assign));
  }
  std::vector<std::string> Say(ProcessNumber process, int64_t epoch, std::string payload) {
    return h_.Feed(RankReported{process, Epoch{epoch}, ReportKind::kOther, std::move(payload)});
  }

  Harness h_;
};

TEST_F(AgentBesideTest, Processes_GoOverByThemselves) {
  EXPECT_THAT(Assign(2, 2, true),
              ElementsAre("RunEpoch p1 job-7/2 rank 2 device 0 beside",
                          "RunEpoch p2 job-7/2 rank 3 device 1 beside", "Result 2 OK"));
  // What is said of either epoch is passed on.
  EXPECT_THAT(Say(kP1, 2, "address"), ElementsAre("Report job-7/2 rank 2 address"));
  EXPECT_THAT(Say(kP1, 1, "step 7"), ElementsAre("Report job-7/1 rank 2 step 7"));
  EXPECT_THAT(h_.Command(3, RendezvousCommand{JobId{7}, Epoch{2}, "table"}),
              ElementsAre("Rendezvous p1 table", "Rendezvous p2 table", "Result 3 OK"));
  EXPECT_THAT(Say(kP1, 1, "quiet"), ElementsAre("Report job-7/1 rank 2 quiet"));
  EXPECT_THAT(h_.Feed(EpochStopped{kP1, Epoch{1}}), IsEmpty());
  EXPECT_THAT(Say(kP1, 1, "late"), IsEmpty());
  // Who is still on its way is told when it has come.
  EXPECT_THAT(h_.Command(4, BeginEpochCommand{JobId{7}, Epoch{2}, "step 7"}),
              ElementsAre("BeginEpoch p1 step 7", "Result 4 OK"));
  EXPECT_THAT(h_.Feed(EpochStopped{kP2, Epoch{1}}), ElementsAre("BeginEpoch p2 step 7"));
}

TEST_F(AgentBesideTest, LossMeanwhile_StopsThemForYetAnotherEpoch) {
  Assign(2, 2, true);
  EXPECT_THAT(Assign(3, 3, false),
              ::testing::IsSupersetOf({"StopEpoch p1 1", "StopEpoch p2 1", "Result 3 OK"}));
  EXPECT_THAT(h_.Feed(EpochStopped{kP1, Epoch{1}}),
              ElementsAre("RunEpoch p1 job-7/3 rank 2 device 0"));
  // Of the one between, whose turn did not come.
  EXPECT_THAT(h_.Feed(EpochStopped{kP1, Epoch{2}}), IsEmpty());
}

// The coordinator plans without it; those that are left have what they were given.
TEST_F(AgentBesideTest, DeathMeanwhile_StopsTheEpochOfTheOthers) {
  Assign(2, 2, true);
  EXPECT_THAT(h_.Feed(ProcessDied{kP1}), Contains("StopEpoch p2 1"));
  EXPECT_THAT(h_.Feed(EpochStopped{kP2, Epoch{1}}), IsEmpty());
  EXPECT_THAT(Say(kP2, 2, "lost its peer"), ElementsAre("Report job-7/2 rank 3 lost its peer"));
}

}  // namespace
}  // namespace phalanx::agent
