// Faults on demand: transcripts of the machine.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/agent/machine_harness.h"

namespace phalanx::agent {
namespace {

using job::FaultKind;
using job::FaultPhase;
using job::InjectedFault;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::StartsWith;

// Ranks 2 and 3 of job-7 run on devices 0 and 1 as p1 and p2.
class AgentFaultTest : public testing::Test {
 protected:
  AgentFaultTest() {
    h_.Welcome();
    h_.RunJob(1, {0, 1});
    h_.ConfirmAll();
  }
  std::vector<std::string> Inject(const InjectedFault& fault, int64_t epoch = 1, int64_t job = 7) {
    return h_.Command(++number_, InjectCommand{JobId{job}, Epoch{epoch}, fault});
  }
  Harness h_;
  uint64_t number_ = 1;
};

TEST_F(AgentFaultTest, KillAtOnce_IsAnsweredAndIsAnEndThatNobodyExpected) {
  EXPECT_THAT(Inject({.kind = FaultKind::kKill, .rank = 3}), ElementsAre("Result 2 OK", "Kill p2"));
  EXPECT_THAT(h_.Exited(2, 0, 9),
              ElementsAre("Report job-7/1 rank 3 exit 0 signal 9", "StopEpoch p1 1"));
}

TEST_F(AgentFaultTest, WhatTheRankDoesItself_GoesToItsProcess) {
  for (const FaultKind kind :
       {FaultKind::kStop, FaultKind::kHang, FaultKind::kExit, FaultKind::kNan, FaultKind::kOom,
        FaultKind::kMute, FaultKind::kThrow}) {
    const std::vector<std::string> said = Inject({.kind = kind, .rank = 2});
    EXPECT_THAT(said, ElementsAre(absl::StrCat("Result ", number_, " OK"),
                                  absl::StrCat("Fault p1 ", job::ToString(kind))));
  }
  EXPECT_THAT(
      Inject({.kind = FaultKind::kKill, .rank = 2, .at_step = 9, .phase = FaultPhase::kReduce}),
      ElementsAre("Result 9 OK", "Fault p1 kill in reduce of step 9"));
}

TEST_F(AgentFaultTest, OtherEpochOrRank_IsRefused) {
  EXPECT_THAT(Inject({.kind = FaultKind::kKill, .rank = 2}, 2), ElementsAre("Result 2 ABORTED"));
  EXPECT_THAT(Inject({.kind = FaultKind::kKill, .rank = 2}, 1, 8), ElementsAre("Result 3 ABORTED"));
  EXPECT_THAT(Inject({.kind = FaultKind::kKill, .rank = 0}), ElementsAre("Result 4 NOT_FOUND"));
  EXPECT_THAT(Inject({.rank = 2}), ElementsAre("Result 5 UNIMPLEMENTED"));
}

TEST_F(AgentFaultTest, ProcessThatIsToEnd_TakesNone) {
  h_.Command(++number_, StopCommand{JobId{7}, Epoch{1}, absl::Seconds(10), "the job ended"});
  EXPECT_THAT(Inject({.kind = FaultKind::kKill, .rank = 2}), ElementsAre("Result 3 ABORTED"));
}

TEST_F(AgentFaultTest, Xid_FailsTheDeviceAndEndsWhatRunsOnIt) {
  EXPECT_THAT(Inject({.kind = FaultKind::kXid, .rank = 2, .xid = 79}),
              ElementsAre("Result 2 OK",
                          AllOf(StartsWith("Report job-7/1 rank 2 fault DeviceFailed: device 0"),
                                HasSubstr("XID 79")),
                          "StopEpoch p2 1", "Kill p1"));
  EXPECT_THAT(h_.Exited(1, 0, 9), ElementsAre("Report job-7/1 rank 2 exit 0 signal 9"));
}

TEST_F(AgentFaultTest, XidAtAPhase_ComesWhenTheRankIsThere) {
  EXPECT_THAT(Inject({.kind = FaultKind::kXid, .rank = 2, .phase = FaultPhase::kGather, .xid = 48}),
              ElementsAre("Result 2 OK", "Fault p1 xid:48 in gather"));
  EXPECT_THAT(h_.Feed(FaultReached{ProcessNumber{2}}), IsEmpty());
  EXPECT_THAT(h_.Feed(FaultReached{ProcessNumber{1}}),
              ElementsAre(AllOf(StartsWith("Report job-7/1 rank 2 fault DeviceFailed: device 0"),
                                HasSubstr("XID 48")),
                          "StopEpoch p2 1", "Kill p1"));
  EXPECT_THAT(h_.Feed(FaultReached{ProcessNumber{1}}), IsEmpty()) << "once";
}

TEST_F(AgentFaultTest, NextFault_TakesThePlaceOfOneThatWaits) {
  Inject({.kind = FaultKind::kXid, .rank = 2, .at_step = 5, .xid = 48});
  Inject({.kind = FaultKind::kHang, .rank = 2, .at_step = 6});
  EXPECT_THAT(h_.Feed(FaultReached{ProcessNumber{1}}), IsEmpty()) << "it is the rank's own";
}

TEST_F(AgentFaultTest, FaultAtOnce_TakesThePlaceOfOneThatWaits) {
  Inject({.kind = FaultKind::kXid, .rank = 2, .at_step = 5, .xid = 48});
  Inject({.kind = FaultKind::kSlow, .rank = 2, .factor = 2});
  EXPECT_THAT(h_.Feed(FaultReached{ProcessNumber{1}}), IsEmpty()) << "it is the rank's own";
}

TEST_F(AgentFaultTest, Partition_CutsEveryRankAndTheSessionForItsTime) {
  EXPECT_THAT(Inject({.kind = FaultKind::kPartition, .rank = 2, .duration = absl::Seconds(30)}),
              ElementsAre("Result 2 OK", "Fault p1 partition for 30s", "Fault p2 partition for 30s",
                          "CloseSession s1"));
  // Neither what is said nor what the coordinator still said before gets through.
  EXPECT_THAT(h_.Feed(RankReported{ProcessNumber{1}, Epoch{1}, ReportKind::kOther, "error"}),
              IsEmpty());
  EXPECT_THAT(h_.Command(3, StopCommand{JobId{7}, Epoch{1}, absl::Seconds(1), "over"}), IsEmpty());
  EXPECT_THAT(h_.Break(), IsEmpty());
  EXPECT_THAT(h_.Advance(absl::Seconds(29)), IsEmpty());
  EXPECT_THAT(h_.Welcome(), IsSupersetOf({"OpenSession s2 last 2 running [job-7/1]",
                                          "Report job-7/1 rank 2 error"}));
}

TEST_F(AgentFaultTest, PartitionForGood_LeavesADaemonThatEndsWhenItIsAsked) {
  Inject({.kind = FaultKind::kPartition, .rank = 2});
  EXPECT_THAT(h_.Advance(absl::Hours(100)), Not(Contains(StartsWith("OpenSession"))));
  EXPECT_THAT(h_.Feed(TerminationRequested{}), ElementsAre("Quit p1", "Quit p2"));
  h_.Exited(1, 0, 0);
  EXPECT_THAT(h_.Exited(2, 0, 0), Contains("Exit"));
}

TEST_F(AgentFaultTest, PartitionAtAStep_ComesWhenTheRankIsThere) {
  EXPECT_THAT(
      Inject(
          {.kind = FaultKind::kPartition, .rank = 3, .at_step = 4, .duration = absl::Seconds(1)}),
      ElementsAre("Result 2 OK", "Fault p2 partition in step 4 for 1s"));
  EXPECT_THAT(
      h_.Feed(FaultReached{ProcessNumber{2}}),
      ElementsAre("Fault p1 partition for 1s", "Fault p2 partition for 1s", "CloseSession s1"));
}

}  // namespace
}  // namespace phalanx::agent
