// Rank processes, from the epoch that they are given to their end: transcripts of the machine.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/agent/machine_harness.h"

namespace phalanx::agent {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

TEST(AgentMachineTest, NewerEpoch_TakesOverLiveProcesses_AndEndsTheOthers) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0, 1});
  EXPECT_THAT(h.Command(2, h.AnAssign(2, {1, 3})),
              ElementsAre("Quit p1", "StopEpoch p2 1", "StartProcess p3 job-7/2 rank 3 device 3"));
  EXPECT_THAT(h.Feed(ProcessStarted{ProcessNumber{3}, absl::OkStatus()}),
              ElementsAre("Result 2 OK"));
  EXPECT_THAT(h.Feed(EpochStopped{kP2, Epoch{1}}),
              ElementsAre("RunEpoch p2 job-7/2 rank 2 device 1"));
  // Reports of the epoch that it left are of no interest to anybody.
  EXPECT_THAT(h.Feed(RankReported{kP2, Epoch{1}, ReportKind::kOther, "late"}), IsEmpty());
  EXPECT_THAT(h.Feed(RankReported{kP2, Epoch{2}, ReportKind::kOther, "ready"}),
              ElementsAre("Report job-7/2 rank 2 ready"));
}

TEST(AgentMachineTest, Process_ThatDoesNotLeaveItsEpoch_IsKilledAndReplaced) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  h.Command(2, h.AnAssign(2, {0}));
  h.ConfirmAll();
  EXPECT_THAT(h.Advance(absl::Seconds(21)), Contains("Kill p1"));
  EXPECT_THAT(h.Exited(1, 0, 9), Contains("StartProcess p2 job-7/2 rank 2 device 0"));
}

TEST(AgentMachineTest, Rank_KilledBySignal_IsReportedAtOnceAsUnexpected) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0, 1});
  EXPECT_THAT(h.Exited(2, 0, 9),
              ElementsAre("Report job-7/1 rank 3 exit 0 signal 9", "StopEpoch p1 1"));
}

TEST(AgentMachineTest, Stop_Quits_ThenTerminates_ThenKills_ThenAnswers) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  EXPECT_THAT(h.Command(2, AStop(1, absl::Seconds(6))), ElementsAre("Quit p1"));
  EXPECT_THAT(h.Advance(absl::Milliseconds(1999)), Not(Contains("Terminate p1")));
  EXPECT_THAT(h.Advance(absl::Milliseconds(1)), Contains("Terminate p1"));
  EXPECT_THAT(h.Advance(absl::Milliseconds(3999)), Not(Contains("Kill p1")));
  EXPECT_THAT(h.Advance(absl::Milliseconds(1)), Contains("Kill p1"));
  EXPECT_THAT(h.Exited(1, 0, 9),
              ElementsAre("Report job-7/1 rank 2 exit 0 signal 9 expected", "Result 2 OK"));
}

// Else storage that hangs holds up jobs long after the one that it belonged to.
TEST(AgentMachineTest, Stop_CallsOffTheDataOfItsJobAlone) {
  Harness h;
  h.Welcome();
  h.Command(1, PrepareDataCommand{JobId{7}, {"text", "/jobs"}});
  h.Command(2, PrepareDataCommand{JobId{8}, {"text", "/jobs"}});
  h.Command(3, h.AnAssign(1, {0}));
  EXPECT_THAT(h.Command(4, AStop(1)),
              ElementsAre("Result 3 ABORTED", "CancelData r1", "Result 1 ABORTED", "CancelData r3",
                          "Result 4 OK"));
  EXPECT_THAT(h.DataReady(1), IsEmpty());
  EXPECT_THAT(h.DataReady(2), ElementsAre("Result 2 OK"));
}

// It took the place of a command that was not wanted any more, and once ended the data of all jobs.
TEST(AgentMachineTest, Stop_OfNoJob_CallsOffNothing) {
  Harness h;
  h.Welcome();
  h.Command(1, PrepareDataCommand{JobId{7}, {"text", "/jobs"}});
  h.Command(2, h.AnAssign(1, {0}, /*job=*/8));
  EXPECT_THAT(h.Command(3, StopCommand{.reason = "superseded"}), ElementsAre("Result 3 OK"));
  EXPECT_THAT(h.DataReady(1), ElementsAre("Result 1 OK"));
  EXPECT_THAT(h.DataReady(2), Not(IsEmpty())) << "its ranks start";
}

TEST(AgentMachineTest, Stop_WithoutGrace_KillsAtOnce) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  EXPECT_THAT(h.Command(2, AStop(1, absl::ZeroDuration())), ElementsAre("Kill p1"));
}

TEST(AgentMachineTest, Stop_AfterTheProcessesEnded_IsAnsweredAtOnce) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  h.Exited(1, 3, 0);
  EXPECT_THAT(h.Command(2, AStop(1)), ElementsAre("Result 2 OK"));
}

TEST(AgentMachineTest, Process_WithoutHello_IsKilled) {
  Harness h(4, {.hello_timeout = absl::Seconds(30)});
  h.Welcome();
  h.Command(1, h.AnAssign(1, {0}));
  h.DataReady(1);
  h.Feed(ProcessStarted{kP1, absl::OkStatus()});
  h.ConfirmAll();
  EXPECT_THAT(
      h.Advance(absl::Seconds(30)),
      AllOf(Contains("Kill p1"), Contains("Report job-7/1 rank 2 fault RankHung: it said nothing "
                                          "within 30s of its start: its worker ended it")));
}

TEST(AgentMachineTest, HelloThatCameInTime_IsReadBeforeItsRankIsJudged) {
  Harness h(4, {.hello_timeout = absl::Seconds(30)});
  h.Welcome();
  h.Command(1, h.AnAssign(1, {0, 1}));
  h.DataReady(1);
  h.Feed(ProcessStarted{kP1, absl::OkStatus()});
  h.Feed(ProcessStarted{kP2, absl::OkStatus()});
  h.ConfirmAll();
  h.Advance(absl::Seconds(29));
  const Instant read_until = h.now;
  h.now += absl::Seconds(2);
  // Both came in before the deadline, and other work held the daemon up.
  EXPECT_THAT(h.Feed(DeadlineReached{read_until}), Not(Contains(StartsWith("Kill"))));
  EXPECT_THAT(h.Feed(RankHelloReceived{kP2}), Not(Contains(StartsWith("Kill"))));
  EXPECT_THAT(h.Feed(RankHelloReceived{kP1}), Contains(HasSubstr("RunEpoch p1")));
  EXPECT_THAT(h.Feed(DeadlineReached{}), Not(Contains(StartsWith("Kill"))));
}

TEST(AgentMachineTest, Process_WithoutHelloWhileTheDaemonDidNotRun_HasItsTime) {
  Harness h(4, {.hello_timeout = absl::Seconds(30)});
  h.Welcome();
  h.Command(1, h.AnAssign(1, {0}));
  h.DataReady(1);
  h.Feed(ProcessStarted{kP1, absl::OkStatus()});
  h.ConfirmAll();
  h.Advance(absl::Seconds(29));
  h.now += absl::Minutes(1);
  EXPECT_THAT(h.Feed(Stalled{absl::Minutes(1)}), Not(Contains("Kill p1")));
  EXPECT_THAT(h.Feed(RankHelloReceived{kP1}), Contains(HasSubstr("RunEpoch p1")));
}

TEST(AgentMachineTest, Process_ThatClosedItsChannel_IsGivenTimeToEnd) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  EXPECT_THAT(h.Feed(ChannelFailed{kP1, "closed by the rank"}), IsEmpty());
  EXPECT_THAT(
      h.Advance(absl::Seconds(5)),
      AllOf(
          Contains("Kill p1"),
          Contains("Report job-7/1 rank 2 fault RankHung: its channel to the worker failed (closed "
                   "by the rank) and it did not end: its worker ended it")));
}

TEST(AgentMachineTest, ProcessThatWasToEnd_IsNoFaultHoweverItGoes) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  h.Command(2, AStop(1, absl::Seconds(60)));
  h.Feed(ChannelFailed{kP1, "closed by the rank"});
  EXPECT_THAT(h.Advance(absl::Seconds(5)),
              AllOf(Contains("Kill p1"), Not(Contains(HasSubstr("fault")))));
}

TEST(AgentMachineTest, ProcessThatEndsAfterItsChannel_IsReportedByItsExitAlone) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  h.Feed(ChannelFailed{kP1, "closed by the rank"});
  EXPECT_THAT(h.Exited(1, 3, 0), ElementsAre("Report job-7/1 rank 2 exit 3 signal 0"));
}

TEST(AgentMachineTest, Death_IsReportedBeforeTheExit_AndEndsTheEpochOfTheOthers) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0, 1, 2});
  h.RunJob(1, {3}, 2, 8);
  EXPECT_THAT(h.Feed(ProcessDied{kP1}),
              ElementsAre("Report job-7/1 rank 2 died", "StopEpoch p2 1", "StopEpoch p3 1"));
  EXPECT_THAT(h.Feed(ProcessDied{kP1}), IsEmpty());
  EXPECT_THAT(h.Feed(ChannelFailed{kP1, "closed by the rank"}), IsEmpty());
  EXPECT_THAT(h.Feed(EpochStopped{kP2, Epoch{1}}), IsEmpty()) << "that epoch is over";
  EXPECT_THAT(h.Exited(1, 0, 9), ElementsAre("Report job-7/1 rank 2 exit 0 signal 9"));
  AssignCommand next = h.AnAssign(2, {0, 1, 2});
  next.without_work = {2};
  EXPECT_THAT(h.Command(3, next),
              ElementsAre("RunEpoch p2 job-7/2 rank 3 device 1", "Result 3 OK"));
  EXPECT_THAT(h.Feed(EpochStopped{ProcessNumber{3}, Epoch{1}}),
              ElementsAre("RunEpoch p3 job-7/2 rank 4 device 2"));
}

// It has said itself where it stands.
TEST(AgentMachineTest, RankThatHasLeftAnEpochWithAnother_HasRunIt) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0, 1});
  h.Feed(ProcessDied{kP1});
  h.Feed(EpochStopped{kP2, Epoch{1}});
  AssignCommand next = h.AnAssign(2, {0, 1});
  next.without_work = {2};
  next.goes_on = true;
  EXPECT_THAT(h.Command(2, next), Not(Contains(HasSubstr("never ran"))));
}

TEST(AgentMachineTest, ExitOfARankWhoseWorkIsNotDone_EndsTheEpochOfTheOthers) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0, 1});
  EXPECT_THAT(h.Exited(1, 3, 0),
              ElementsAre("Report job-7/1 rank 2 exit 3 signal 0", "StopEpoch p2 1"));
}

TEST(AgentMachineTest, RankThatFailsForAReasonOfItsOwn_EndsTheEpochOfTheOthers) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0, 1});
  EXPECT_THAT(
      h.Feed(RankReported{kP1, Epoch{1}, ReportKind::kOther, "error", RankOutcome::kFailed}),
      ElementsAre("Report job-7/1 rank 2 error", "StopEpoch p2 1"));
}

TEST(AgentMachineTest, DeathAfterTheLastStep_IsToldByTheExitAlone) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0, 1});
  h.Feed(RankReported{kP1, Epoch{1}, ReportKind::kOther, "succeeded", RankOutcome::kSucceeded});
  EXPECT_THAT(h.Feed(ProcessDied{kP1}), IsEmpty());
  EXPECT_THAT(h.Exited(1, 0, 9), ElementsAre("Report job-7/1 rank 2 exit 0 signal 9"));
}

TEST(AgentMachineTest, DeathOfARankThatWasToEnd_IsToldByTheExitAlone) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0, 1});
  h.Command(2, AStop(1));
  EXPECT_THAT(h.Feed(ProcessDied{kP1}), IsEmpty());
  EXPECT_THAT(h.Exited(1, 0, 15), ElementsAre("Report job-7/1 rank 2 exit 0 signal 15 expected"));
}

TEST(AgentMachineTest, DeviceOfADeadRank_IsUsedAgainOnlyOnceItIsReaped) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  h.Feed(ProcessDied{kP1});
  h.Command(2, h.AnAssign(1, {0}, 8));
  EXPECT_THAT(h.DataReady(h.last_request), IsEmpty());
  EXPECT_THAT(h.Exited(1, 0, 9), ElementsAre("Report job-7/1 rank 2 exit 0 signal 9",
                                             "StartProcess p2 job-8/1 rank 2 device 0"));
}

TEST(AgentMachineTest, DeadRankThatIsNotReaped_IsKilledOnceMore) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  h.Feed(ProcessDied{kP1});
  h.ConfirmAll();
  EXPECT_THAT(h.Advance(absl::Seconds(29)), Not(Contains("Kill p1")));
  EXPECT_THAT(h.Advance(absl::Seconds(2)),
              AllOf(Contains("Kill p1"), Not(Contains(HasSubstr("fault")))));
}

// It was to leave its epoch for the next one.
TEST(AgentMachineTest, DeathOnTheWayToTheNextEpoch_GivesTheDeviceANewProcess) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  EXPECT_THAT(h.Command(2, h.AnAssign(2, {0})), ElementsAre("StopEpoch p1 1", "Result 2 OK"));
  EXPECT_THAT(h.Feed(ProcessDied{kP1}), ElementsAre("Report job-7/1 rank 2 died"));
  EXPECT_THAT(h.Exited(1, 0, 9), ElementsAre("Report job-7/1 rank 2 exit 0 signal 9",
                                             "StartProcess p2 job-7/2 rank 2 device 0"));
}

TEST(AgentMachineTest, Heartbeat_CarriesTheSlowestRanksStep) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0, 1});
  h.Feed(RankProgressed{kP1, Epoch{1}, 5});
  h.Feed(RankProgressed{kP2, Epoch{1}, 4});
  h.ConfirmAll();
  EXPECT_THAT(h.Advance(absl::Seconds(1)), ElementsAre("Heartbeat [job-7/1@4]"));
}

TEST(AgentMachineTest, Heartbeat_CarriesTheWorkOfRanksOfWhichItIsKnown) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0, 1});
  h.Feed(RankProgressed{kP1, Epoch{1}, 30, absl::ZeroDuration(), 0.25, 77, 0.5, 78});
  h.Feed(
      RankProgressed{kP2, Epoch{1}, 30});  // it has done too few steps, or is of an older release
  h.ConfirmAll();
  EXPECT_THAT(h.Advance(absl::Seconds(1)),
              ElementsAre("Heartbeat [job-7/1@30 rank 2 works 0.25 as 77, 0.5 like 78]"));
}

TEST(AgentMachineTest, WorkOfAnEpochThatIsOver_IsNotThatOfTheNext) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  h.Feed(RankProgressed{kP1, Epoch{1}, 30, absl::ZeroDuration(), 0.25, 77});
  h.Command(2, h.AnAssign(2, {0}));
  h.Feed(EpochStopped{kP1, Epoch{1}});
  h.Feed(RankProgressed{kP1, Epoch{1}, 31, absl::ZeroDuration(), 0.25, 77});
  h.ConfirmAll();
  EXPECT_THAT(h.Advance(absl::Seconds(1)), Contains("Heartbeat [job-7/2@0]"));
}

TEST(AgentMachineTest, Termination_EndsRanks_ReportsThem_ClosesAndExits) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  h.ConfirmAll();
  EXPECT_THAT(h.Feed(TerminationRequested{}),
              ElementsAre("Heartbeat [job-7/1@0] draining", "Quit p1"));
  EXPECT_THAT(h.Command(2, h.AnAssign(1, {1}, 8)), ElementsAre("Result 2 UNAVAILABLE"));
  EXPECT_THAT(h.Exited(1, 0, 0), ElementsAre("Report job-7/1 rank 2 exit 0 signal 0 expected"));
  EXPECT_THAT(h.ConfirmAll(), ElementsAre("CloseSession s1"));
  EXPECT_THAT(h.Break(absl::OkStatus()), ElementsAre("Exit"));
}

TEST(AgentMachineTest, Termination_Twice_KillsAtOnce) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  h.Feed(TerminationRequested{});
  EXPECT_THAT(h.Feed(TerminationRequested{}), ElementsAre("Kill p1"));
}

TEST(AgentMachineTest, Termination_WithoutACoordinator_ExitsWhenTheRanksAreGone) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  h.Break();
  EXPECT_THAT(h.Feed(TerminationRequested{}), ElementsAre("Quit p1"));
  EXPECT_THAT(h.Exited(1, 0, 0), ElementsAre("Exit"));
}

TEST(AgentMachineTest, Termination_WithRanksThatWillNotDie_ExitsInTheEnd) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  h.ConfirmAll();
  h.Feed(TerminationRequested{});
  EXPECT_THAT(h.Advance(absl::Seconds(33)), Contains("Exit"));
}

}  // namespace
}  // namespace phalanx::agent
