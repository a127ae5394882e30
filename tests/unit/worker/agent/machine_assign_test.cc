// Assignments and the data that they need: transcripts of the machine.
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
using ::testing::IsEmpty;
using ::testing::Not;

TEST(AgentMachineTest, Assign_WithDataReady_StartsAProcessADeviceAndRunsTheEpoch) {
  Harness h;
  h.Welcome();
  EXPECT_THAT(h.Command(1, h.AnAssign(1, {0, 2})), ElementsAre("PrepareData r1 job-7"));
  EXPECT_THAT(h.DataReady(1), ElementsAre("StartProcess p1 job-7/1 rank 2 device 0",
                                          "StartProcess p2 job-7/1 rank 3 device 2"));
  EXPECT_THAT(h.Feed(ProcessStarted{kP1, absl::OkStatus()}), IsEmpty());
  EXPECT_THAT(h.Feed(ProcessStarted{kP2, absl::OkStatus()}), ElementsAre("Result 1 OK"));
  EXPECT_THAT(h.Feed(RankHelloReceived{kP2}), ElementsAre("RunEpoch p2 job-7/1 rank 3 device 2"));
  EXPECT_THAT(h.Command(2, RendezvousCommand{JobId{7}, Epoch{1}, "table"}),
              ElementsAre("Rendezvous p2 table", "Result 2 OK"));
  // The slow one gets the same, in the same order.
  EXPECT_THAT(h.Feed(RankHelloReceived{kP1}),
              ElementsAre("RunEpoch p1 job-7/1 rank 2 device 0", "Rendezvous p1 table"));
}

TEST(AgentMachineTest, Assign_AfterPrepareDataOfTheSameDocument_DoesNotPrepareAgain) {
  Harness h;
  h.Welcome();
  EXPECT_THAT(h.Command(1, PrepareDataCommand{JobId{7}, {"text", "/jobs"}}),
              ElementsAre("PrepareData r1 job-7"));
  EXPECT_THAT(h.DataReady(1), ElementsAre("Result 1 OK"));
  EXPECT_THAT(h.Command(2, h.AnAssign(1, {0})),
              ElementsAre("StartProcess p1 job-7/1 rank 2 device 0"));
}

// The coordinator waits for all ranks of an epoch to leave it.
TEST(AgentMachineTest, ProcessThatIsStillStarting_HasNotRunTheEpochThatIsReplaced) {
  Harness h;
  h.Welcome();
  h.Command(1, h.AnAssign(1, {0, 2}));
  h.DataReady(1);
  h.Feed(RankHelloReceived{kP2});
  AssignCommand next = h.AnAssign(2, {0, 2});
  next.goes_on = true;
  const std::vector<std::string> said = h.Command(2, next);
  EXPECT_THAT(said, Contains("Report job-7/1 rank 2 never ran"));
  EXPECT_THAT(said, Not(Contains("Report job-7/1 rank 3 never ran"))) << "it says so itself";
  EXPECT_THAT(h.Feed(RankHelloReceived{kP1}), ElementsAre("RunEpoch p1 job-7/2 rank 2 device 0"));
}

TEST(AgentMachineTest, PrepareData_ThatFails_AnswersWithItsStatus) {
  Harness h;
  h.Welcome();
  h.Command(1, PrepareDataCommand{JobId{7}, {"text", "/jobs"}});
  EXPECT_THAT(h.DataReady(1, absl::InvalidArgumentError("bad shard")),
              ElementsAre("Result 1 INVALID_ARGUMENT"));
}

TEST(AgentMachineTest, Assign_WhoseDataFails_IsAnsweredWithThatAndLeavesNothing) {
  Harness h;
  h.Welcome();
  h.Command(1, h.AnAssign(1, {0}));
  EXPECT_THAT(h.DataReady(1, absl::InvalidArgumentError("bad shard")),
              ElementsAre("Result 1 INVALID_ARGUMENT"));
  EXPECT_THAT(h.Command(2, AStop(1)), ElementsAre("Result 2 OK"));
}

TEST(AgentMachineTest, Assign_WhoseProgramCannotStart_IsAnsweredWithThatAndEndsTheOthers) {
  Harness h;
  h.Welcome();
  h.Command(1, h.AnAssign(1, {0, 1}));
  h.DataReady(1);
  h.Feed(ProcessStarted{kP1, absl::OkStatus()});
  EXPECT_THAT(h.Feed(ProcessStarted{kP2, absl::NotFoundError("no program")}),
              ElementsAre("Result 1 NOT_FOUND", "Quit p1"));
}

TEST(AgentMachineTest, AssignOfAJobThatTrains_WhoseProgramCannotStart_LosesThatRankAlone) {
  Harness h;
  h.Welcome();
  AssignCommand first = h.AnAssign(2, {0, 1});
  first.goes_on = true;
  h.Command(1, first);
  h.DataReady(1);
  h.Feed(ProcessStarted{kP1, absl::OkStatus()});
  EXPECT_THAT(
      h.Feed(ProcessStarted{kP2, absl::ResourceExhaustedError("no more processes")}),
      ElementsAre("Report job-7/2 rank 3 fault RankExited: it cannot run: no more processes",
                  "Result 1 OK"));
}

TEST(AgentMachineTest, Assign_ToDevicesThatAreNotHere_IsRefused) {
  Harness h(/*devices=*/2);
  h.Welcome();
  EXPECT_THAT(h.Command(1, h.AnAssign(1, {2})), ElementsAre("Result 1 INVALID_ARGUMENT"));
  EXPECT_THAT(h.Command(2, h.AnAssign(1, {0, 0})), ElementsAre("Result 2 INVALID_ARGUMENT"));
  EXPECT_THAT(h.Command(3, h.AnAssign(1, {})), ElementsAre("Result 3 INVALID_ARGUMENT"));
}

TEST(AgentMachineTest, PlacesWithoutWork_GetNoProcess) {
  Harness h;
  h.Welcome();
  AssignCommand command = h.AnAssign(1, {0, 1, 9});
  command.without_work = {0, 3, 4};  // of elsewhere, of here, and of a device that is gone
  h.Command(1, command);
  EXPECT_THAT(h.DataReady(1), ElementsAre("StartProcess p1 job-7/1 rank 2 device 0"));
  // A node all of whose places are without work has nothing to do.
  command.epoch = Epoch{2};
  command.without_work = {2, 3, 4};
  EXPECT_THAT(h.Command(2, command), Contains("Result 2 OK"));
}

TEST(AgentMachineTest, Assign_ToADeviceOfAnotherJob_IsRefused) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0, 1});
  EXPECT_THAT(h.Command(2, h.AnAssign(1, {1}, /*job=*/8)),
              ElementsAre("Result 2 FAILED_PRECONDITION"));
}

TEST(AgentMachineTest, Assign_ToADeviceWhoseProcessIsEnding_WaitsUntilItIsReaped) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  h.Command(2, AStop(1));
  h.Command(3, h.AnAssign(1, {0}, /*job=*/8));
  EXPECT_THAT(h.DataReady(2), IsEmpty());
  EXPECT_THAT(h.Exited(1, 0, 0),
              ElementsAre("Report job-7/1 rank 2 exit 0 signal 0 expected",
                          "StartProcess p2 job-8/1 rank 2 device 0", "Result 2 OK"));
}

TEST(AgentMachineTest, Assign_Again_IsAnsweredAndStartsNothing) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  EXPECT_THAT(h.Command(2, h.AnAssign(1, {0})), ElementsAre("Result 2 OK"));
}

TEST(AgentMachineTest, JobThatRunsHere_NeedsNoSecondCheck_HoweverManyWereCheckedSince) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  uint64_t number = 1;
  for (size_t i = 0; i < Machine::kOutcomesMax + 2; ++i) {
    const JobId job{100 + static_cast<int64_t>(i)};
    h.Command(++number, PrepareDataCommand{job, {"text", "/jobs"}});
    h.DataReady(h.last_request);
  }
  EXPECT_THAT(h.Command(++number, h.AnAssign(2, {0})), Contains("StopEpoch p1 1"));
}

TEST(AgentMachineTest, ProcessThatEndsOnADeviceThatTheNextEpochLeavesOut_IsNotReplaced) {
  Harness h;
  h.Welcome();
  h.Command(1, h.AnAssign(1, {0, 1}));
  h.DataReady(h.last_request);
  AssignCommand smaller = h.AnAssign(2, {0});
  smaller.document.text = "another text";  // to be checked before anything starts
  h.Command(2, smaller);
  h.Exited(2, 1, 0);  // on device 1, before its hello
  EXPECT_THAT(h.DataReady(h.last_request), Not(Contains(HasSubstr("device 1"))));
}

TEST(AgentMachineTest, OlderEpoch_AfterANewerOne_IsRefused) {
  Harness h;
  h.Welcome();
  h.RunJob(3, {0});
  EXPECT_THAT(h.Command(2, h.AnAssign(2, {0})), ElementsAre("Result 2 ABORTED seen 3"));
  EXPECT_THAT(h.Command(3, RendezvousCommand{JobId{7}, Epoch{2}, "t"}),
              ElementsAre("Result 3 ABORTED"));
  EXPECT_THAT(h.Command(4, AStop(2)), ElementsAre("Result 4 ABORTED"));
}

TEST(AgentMachineTest, EpochThatCouldNotBePlaced_IsSeen) {
  Harness h;
  h.Welcome();
  EXPECT_THAT(h.Command(1, h.AnAssign(3, {9})), ElementsAre("Result 1 INVALID_ARGUMENT"));
  EXPECT_THAT(h.Command(2, h.AnAssign(2, {0})), ElementsAre("Result 2 ABORTED seen 3"));
}

TEST(AgentMachineTest, StoppedEpoch_AssignedLate_IsRefused) {
  Harness h;
  h.Welcome();
  EXPECT_THAT(h.Command(1, AStop(1)), ElementsAre("Result 1 OK"));
  EXPECT_THAT(h.Command(2, h.AnAssign(1, {0})), ElementsAre("Result 2 ABORTED seen 1"));
}

}  // namespace
}  // namespace phalanx::agent
