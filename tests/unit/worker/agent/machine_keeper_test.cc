// Copies of state on a node that has no work any more: transcripts of the machine.
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/agent/machine_harness.h"

namespace phalanx::agent {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

constexpr ProcessNumber kKeeper{2};

// The only rank of this node, 2, has died, and the others go on without it.
class AgentKeeperTest : public testing::Test {
 protected:
  AgentKeeperTest() {
    h_.Welcome();
    h_.RunJob(1, {0});
    h_.ConfirmAll();
    h_.Exited(1, 0, 9);
    h_.ConfirmAll();
  }
  std::vector<std::string> Assign(uint64_t number, int64_t epoch, std::set<int32_t> keepers) {
    AssignCommand assign = h_.AnAssign(epoch, {0});
    assign.goes_on = true;
    assign.without_work = {2};
    assign.keepers = std::move(keepers);
    return h_.Command(number, std::move(assign));
  }
  void StartKeeper() {
    Assign(2, 3, {2});
    h_.Feed(ProcessStarted{kKeeper, absl::OkStatus()});
    h_.Feed(RankHelloReceived{kKeeper});
    h_.ConfirmAll();
  }

  Harness h_;
};

TEST_F(AgentKeeperTest, PlaceThatIsToGiveCopies_HasAProcessWithoutADevice) {
  EXPECT_THAT(Assign(2, 3, {1, 2}),
              IsSupersetOf({"StartProcess p2 job-7/3 rank 2 device -1", "Result 2 OK"}));
  h_.ConfirmAll();
  EXPECT_THAT(h_.Feed(ProcessStarted{kKeeper, absl::OkStatus()}), IsEmpty());
  h_.Command(3, RendezvousCommand{JobId{7}, Epoch{3}, "table"});
  EXPECT_THAT(h_.Feed(RankHelloReceived{kKeeper}),
              ElementsAre("RunEpoch p2 job-7/3 rank 2 device -1 keeps", "Rendezvous p2 table"));
  EXPECT_THAT(h_.Feed(RankReported{kKeeper, Epoch{3}, ReportKind::kOther, "copies"}),
              ElementsAre("Report job-7/3 rank 2 copies"));
  EXPECT_THAT(h_.Command(4, BeginEpochCommand{JobId{7}, Epoch{3}, "step 7"}),
              ElementsAre("BeginEpoch p2 step 7", "Result 4 OK"));
  h_.ConfirmAll();
  // It is no rank, so nobody hears of its end.
  h_.Feed(ProcessDied{kKeeper});
  EXPECT_THAT(h_.Exited(2, 0, 0), IsEmpty());
  EXPECT_EQ(h_.machine.Figures().rank_ends.at("done"), 1);
  EXPECT_EQ(h_.machine.Figures().rank_ends.at("exited"), 0);
}

// As by a coordinator that has started since, and did not know before that this node is back.
TEST_F(AgentKeeperTest, PlaceThatTheSameAssignmentNamesLater_HasItsProcess) {
  EXPECT_THAT(Assign(2, 3, {}), Each(Not(HasSubstr("StartProcess"))));
  EXPECT_THAT(Assign(3, 3, {2}),
              IsSupersetOf({"StartProcess p2 job-7/3 rank 2 device -1", "Result 3 OK"}));
  EXPECT_THAT(Assign(4, 3, {2}), Each(Not(HasSubstr("StartProcess"))));
}

TEST_F(AgentKeeperTest, PlacesOfOtherNodes_AreNotItsBusiness) {
  EXPECT_THAT(Assign(2, 3, {0, 1}), Each(Not(HasSubstr("StartProcess"))));
}

TEST_F(AgentKeeperTest, OneThatEndsBadly_IsDoneWithout) {
  StartKeeper();
  EXPECT_THAT(h_.Exited(2, 0, 11),
              ElementsAre(HasSubstr("job-7/3 rank 2 fault: it gives no copies of state")));
}

TEST_F(AgentKeeperTest, OneThatCannotBeStarted_IsDoneWithout) {
  Assign(2, 3, {2});
  EXPECT_THAT(h_.Feed(ProcessStarted{kKeeper, absl::UnavailableError("no memory to fork")}),
              ElementsAre(HasSubstr("fault: it gives no copies of state: no memory to fork")));
}

TEST_F(AgentKeeperTest, OneThatSaysNothing_IsKilled) {
  Assign(2, 3, {2});
  h_.Feed(ProcessStarted{kKeeper, absl::OkStatus()});
  const std::vector<std::string> lines = h_.Advance(absl::Seconds(121));
  EXPECT_THAT(lines, Contains("Kill p2"));
  EXPECT_THAT(lines, Contains(HasSubstr("job-7/3 rank 2 fault RankHung: it said nothing within")));
}

TEST_F(AgentKeeperTest, AnotherAssignment_EndsIt) {
  StartKeeper();
  EXPECT_THAT(Assign(3, 4, {}), Contains(HasSubstr("Quit p2")));
}

TEST_F(AgentKeeperTest, StopOfTheJob_AwaitsItsEnd) {
  StartKeeper();
  EXPECT_THAT(h_.Command(3, StopCommand{JobId{7}, Epoch{3}, absl::Seconds(2), "the job ended"}),
              Each(Not(HasSubstr("Result 3"))));
  EXPECT_THAT(h_.Exited(2, 0, 0), Contains(HasSubstr("Result 3 OK")));
}

TEST_F(AgentKeeperTest, Device_IsFreeForOthersMeanwhile) {
  StartKeeper();
  const auto lines = h_.Command(3, h_.AnAssign(1, {0}, /*job=*/8));
  EXPECT_THAT(lines, Each(Not(HasSubstr("FAILED_PRECONDITION"))));
  EXPECT_THAT(h_.DataReady(h_.last_request),
              Contains(HasSubstr("StartProcess p3 job-8/1 rank 2 device 0")));
}

}  // namespace
}  // namespace phalanx::agent
