// Errors of devices: transcripts of the machine, and the table that it goes by.
#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/agent/machine_harness.h"
#include "worker/agent/machine/xid.h"
#include "worker/agent/machine/xid_history.h"

namespace phalanx::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(XidTest, Table_IsInOrderAndSaysOfEachWhatToDo) {
  EXPECT_TRUE(std::is_sorted(AllXids().begin(), AllXids().end(),
                             [](const auto& a, const auto& b) { return a.xid < b.xid; }));
  for (const XidTraits& xid : AllXids()) {
    EXPECT_FALSE(xid.name.empty() || xid.next.empty()) << xid.xid;
    EXPECT_EQ(&TraitsOfXid(xid.xid), &xid);
  }
  EXPECT_EQ(TraitsOfXid(79).effect, XidEffect::kDeviceLost);
  EXPECT_EQ(TraitsOfXid(31).effect, XidEffect::kProcessFault);
  EXPECT_EQ(TraitsOfXid(63).effect, XidEffect::kNote);
}

TEST(XidTest, UnknownNumber_IsANote) {
  EXPECT_EQ(TraitsOfXid(12345).effect, XidEffect::kNote);
  EXPECT_EQ(TraitsOfXid(0).effect, XidEffect::kNote);
  EXPECT_EQ(TraitsOfXid(-1).effect, XidEffect::kNote);
}

// A fault of rank `rank` of job-7, so many hours behind the first.
XidHistory::Fault AFault(int64_t process, int32_t device, int32_t rank, double hours = 0) {
  return {.at = absl::UnixEpoch() + absl::Hours(hours),
          .device = device,
          .process = ProcessNumber{process},
          .job = JobId{7},
          .rank = rank};
}
using Suspect = XidHistory::Suspect;

TEST(XidHistoryTest, FaultsOfTwoRanksOnADevice_SpeakAgainstTheDevice) {
  XidHistory history;
  EXPECT_EQ(history.Add(AFault(1, 0, 2)), Suspect::kNobody);
  EXPECT_EQ(history.Add(AFault(1, 0, 2, 1)), Suspect::kNobody) << "one fault, told twice";
  EXPECT_EQ(history.Add(AFault(2, 1, 3, 1)), Suspect::kNobody) << "another device and rank";
  EXPECT_EQ(history.Add(AFault(3, 0, 5, 2)), Suspect::kDevice);
  EXPECT_EQ(history.Add(AFault(4, 0, 5, 2)), Suspect::kDevice) << "another rank met one, too";
  XidHistory::Fault of_another_job = AFault(5, 1, 3, 2);
  of_another_job.job = JobId{8};
  EXPECT_EQ(history.Add(of_another_job), Suspect::kDevice);
}

// A rank that died returns on its own device, whoever is to blame.
TEST(XidHistoryTest, FaultsOfOneRankOnOneDevice_SpeakAgainstBoth) {
  XidHistory history;
  EXPECT_EQ(history.Add(AFault(1, 0, 2)), Suspect::kNobody);
  EXPECT_EQ(history.Add(AFault(2, 0, 2, 1)), Suspect::kEither);
  EXPECT_EQ(history.Add(AFault(3, 0, 2, 2)), Suspect::kEither);
  EXPECT_THAT(ToWords(Suspect::kEither), HasSubstr("the device or the program is suspect"));
  EXPECT_THAT(ToWords(Suspect::kEither), Not(HasSubstr("drain")));
}

TEST(XidHistoryTest, FaultsOfARankOnTwoDevices_SpeakAgainstTheProgram) {
  XidHistory history;
  EXPECT_EQ(history.Add(AFault(1, 0, 2)), Suspect::kNobody);
  EXPECT_EQ(history.Add(AFault(2, 0, 2, 1)), Suspect::kEither);
  EXPECT_EQ(history.Add(AFault(3, 1, 2, 2)), Suspect::kProgram);
  XidHistory::Fault of_another_job = AFault(4, 3, 2, 3);
  of_another_job.job = JobId{8};
  EXPECT_EQ(history.Add(of_another_job), Suspect::kNobody);
}

TEST(XidHistoryTest, Faults_AreForgottenBehindTheWindow) {
  XidHistory history;
  history.Add(AFault(1, 0, 2));
  EXPECT_EQ(history.Add(AFault(2, 0, 3, 24)), Suspect::kDevice);
  EXPECT_EQ(history.Add(AFault(3, 0, 4, 48.5)), Suspect::kNobody);
}

TEST(XidHistoryTest, OldestOfTooManyFaults_IsForgotten) {
  XidHistory history;
  history.Add(AFault(0, 99, 0));
  for (int32_t i = 1; i <= static_cast<int32_t>(XidHistory::kFaultsMax); ++i)
    history.Add(AFault(i, 100 + i, i));
  EXPECT_EQ(history.Add(AFault(-1, 99, 5000)), Suspect::kNobody);
}

TEST(AgentMachineTest, SecondJobThatADeviceFaults_MakesTheDeviceSuspect) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  const auto nobody = Not(HasSubstr("suspect"));
  EXPECT_THAT(h.Feed(DeviceFaulted{0, 31}), ElementsAre(nobody));
  EXPECT_THAT(h.Feed(DeviceFaulted{0, 31}), ElementsAre(nobody));
  h.Feed(ProcessDied{ProcessNumber{1}});
  h.Command(2, h.AnAssign(1, {0}, 8));
  h.DataReady(h.last_request);
  h.Exited(1, 0, 9);
  EXPECT_THAT(h.Feed(DeviceFaulted{0, 63}), ElementsAre(nobody)) << "ends no process";
  EXPECT_THAT(h.Feed(DeviceFaulted{0, 94}), ElementsAre(HasSubstr("the device is suspect")));
}

TEST(AgentMachineTest, RankThatItsDeviceFaultsAgain_MakesTheDeviceOrTheProgramSuspect) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  h.Feed(DeviceFaulted{0, 31});
  h.Feed(ProcessDied{ProcessNumber{1}});
  h.Exited(1, 0, 9);
  h.Command(2, h.AnAssign(2, {0}));
  EXPECT_THAT(h.Feed(DeviceFaulted{0, 31}),
              ElementsAre(HasSubstr("the device or the program is suspect")));
}

TEST(AgentMachineTest, RankThatTwoDevicesFault_MakesTheProgramSuspect) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  h.Feed(DeviceFaulted{0, 31});
  h.Command(2, h.AnAssign(2, {1}));
  EXPECT_THAT(h.Feed(DeviceFaulted{1, 13}), ElementsAre(HasSubstr("the program is suspect")));
}

TEST(AgentMachineTest, LostDevice_EndsItsRankAndTheEpoch_AndSaysWhy) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0, 1});
  EXPECT_THAT(
      h.Feed(DeviceFaulted{1, 79}),
      ElementsAre(
          "Report job-7/1 rank 3 fault DeviceFailed: device 1 of node here reported XID 79 "
          "(GPU has fallen off the bus): its worker ended it\nto do: reboot the node; replace the "
          "GPU if it comes again",
          "StopEpoch p1 1", "Kill p2"));
  EXPECT_THAT(h.Feed(DeviceFaulted{1, 79}), IsEmpty());
  EXPECT_THAT(h.Feed(ProcessDied{ProcessNumber{2}}), IsEmpty()) << "it was said why";
  EXPECT_THAT(h.Exited(2, 0, 9), ElementsAre("Report job-7/1 rank 3 exit 0 signal 9"));
}

TEST(AgentMachineTest, LostDevice_IsNotUsedAgain) {
  Harness h;
  h.Welcome();
  h.Feed(DeviceFaulted{1, 48});
  EXPECT_THAT(h.Command(1, h.AnAssign(1, {1})), ElementsAre("Result 1 FAILED_PRECONDITION"));
  AssignCommand without = h.AnAssign(1, {0, 1});
  without.without_work = {3};
  EXPECT_THAT(h.Command(2, without), ElementsAre("PrepareData r1 job-7"));
}

TEST(AgentMachineTest, DeviceThatIsLostBeforeItsProcessStarts_FailsTheAssignment) {
  Harness h;
  h.Welcome();
  h.Command(1, h.AnAssign(1, {0, 1}));
  EXPECT_THAT(h.Feed(DeviceFaulted{1, 79}), ElementsAre("Result 1 FAILED_PRECONDITION"));
  EXPECT_THAT(h.DataReady(h.last_request), IsEmpty());
}

// The others of its node go on.
TEST(AgentMachineTest, LostDeviceOfAJobThatTrains_IsLostAlone) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0, 1});
  h.Exited(2, 0, 9);
  h.Feed(EpochStopped{ProcessNumber{1}, Epoch{1}});
  h.Feed(DeviceFaulted{1, 79});
  AssignCommand next = h.AnAssign(2, {0, 1});
  next.goes_on = true;
  EXPECT_THAT(h.Command(2, next),
              ElementsAre("Report job-7/1 rank 3 never ran",
                          HasSubstr("Report job-7/2 rank 3 fault DeviceFailed: it cannot run: "
                                    "device 1 of node here reported XID 79"),
                          HasSubstr("RunEpoch p1"), "Result 2 OK"));
}

TEST(AgentMachineTest, DeviceOfAJobThatTrainsThatIsLostBeforeItsProcessStarts_IsLostAlone) {
  Harness h;
  h.Welcome();
  AssignCommand first = h.AnAssign(2, {0, 1});
  first.goes_on = true;
  h.Command(1, first);
  EXPECT_THAT(h.Feed(DeviceFaulted{1, 79}),
              ElementsAre(HasSubstr("Report job-7/2 rank 3 fault DeviceFailed: it cannot run")));
  EXPECT_THAT(h.DataReady(h.last_request), ElementsAre("StartProcess p1 job-7/2 rank 2 device 0"));
  EXPECT_THAT(h.Feed(ProcessStarted{ProcessNumber{1}, absl::OkStatus()}),
              ElementsAre("Result 1 OK"));
}

// Its device keeps the process that it had until that has left, and gets no other.
TEST(AgentMachineTest, DeviceThatIsLostOnTheWayToTheNextEpoch_GetsNoNewProcess) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  h.Command(2, h.AnAssign(2, {0}));
  h.Feed(DeviceFaulted{0, 79});
  EXPECT_THAT(h.Exited(1, 0, 9), ElementsAre("Report job-7/1 rank 2 exit 0 signal 9"));
}

TEST(AgentMachineTest, DeviceThatItsDriverWantsReset_IsLost) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0, 1});
  EXPECT_THAT(h.Feed(DeviceFaulted{0, 154, RecoveryAction::kDrain}),
              ElementsAre(HasSubstr("Report job-7/1 rank 2 note DeviceError: device 0 of node here "
                                    "reported XID 154 (recovery action changed; to do: drain the "
                                    "node, then reset the GPU)")));
  EXPECT_THAT(h.Feed(DeviceFaulted{0, 154}),
              ElementsAre(HasSubstr("nvidia-smi -q names the action")));
  EXPECT_THAT(
      h.Feed(DeviceFaulted{1, 154, RecoveryAction::kReset}),
      ElementsAre("Report job-7/1 rank 3 fault DeviceFailed: device 1 of node here reported XID "
                  "154 (recovery action changed): its worker ended it\nto do: reset the GPU, then "
                  "restart phalanx-worker",
                  "StopEpoch p1 1", "Kill p2"));
  EXPECT_EQ(TraitsOfXid(154, RecoveryAction::kReboot).effect, XidEffect::kDeviceLost);
  EXPECT_EQ(TraitsOfXid(31, RecoveryAction::kReboot).effect, XidEffect::kProcessFault);
}

TEST(AgentMachineTest, OtherErrorsOfADevice_AreEventsOfItsJobAlone) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0, 1});
  EXPECT_THAT(h.Feed(DeviceFaulted{0, 31}),
              ElementsAre(HasSubstr("Report job-7/1 rank 2 note DeviceError: device 0 of node here "
                                    "reported XID 31 (memory page fault")));
  EXPECT_THAT(h.Feed(DeviceFaulted{0, 999}), ElementsAre(HasSubstr("unknown to this release")));
  EXPECT_THAT(h.Feed(DeviceFaulted{3, 31}), IsEmpty()) << "nothing runs there";
}

}  // namespace
}  // namespace phalanx::agent
