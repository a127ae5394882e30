// Sessions, command numbers and kept reports: transcripts of the machine.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/agent/machine_harness.h"

namespace phalanx::agent {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::Not;
using ::testing::StartsWith;

TEST(AgentMachineTest, Start_OpensASessionAndSendsAHeartbeatWhenWelcomed) {
  Harness h;
  EXPECT_THAT(h.Welcome(),
              ElementsAre("OpenSession s1 last 0 running []", "UseStore 5", "Heartbeat []"));
}

TEST(AgentMachineTest, Heartbeats_GoOutEachInterval_ButNotBehindAStuckOne) {
  Harness h;
  h.Welcome();
  EXPECT_THAT(h.Advance(absl::Seconds(5)), IsEmpty());  // the first has not left yet
  h.ConfirmAll();
  int beats = 0;
  for (int i = 0; i < 5; ++i) {
    beats += static_cast<int>(h.Advance(absl::Seconds(1)).size());
    h.ConfirmAll();
  }
  EXPECT_EQ(beats, 5);
}

TEST(AgentMachineTest, HeartbeatsOfNodesThatJoinedOneAfterTheOther_ComeTogether) {
  Harness first, second;
  second.now += absl::Milliseconds(37);
  first.Welcome();
  second.Welcome();
  for (int beat = 0; beat < 3; ++beat) {
    first.ConfirmAll();
    second.ConfirmAll();
    EXPECT_EQ(first.machine.NextDeadline(), second.machine.NextDeadline());
    first.now = first.machine.NextDeadline() + absl::Milliseconds(1);
    second.now = second.machine.NextDeadline() + absl::Milliseconds(8);
    EXPECT_THAT(first.Feed(DeadlineReached{}), ElementsAre("Heartbeat []"));
    EXPECT_THAT(second.Feed(DeadlineReached{}), ElementsAre("Heartbeat []"));
  }
}

TEST(AgentMachineTest, Session_WithoutWelcome_IsGivenUpAndOpenedAgain) {
  Harness h;
  h.Feed(DeadlineReached{});
  EXPECT_THAT(h.Advance(absl::Seconds(10)), ElementsAre("CloseSession s1"));
  EXPECT_THAT(h.Advance(absl::Seconds(1)), ElementsAre("OpenSession s2 last 0 running []"));
}

TEST(AgentMachineTest, WelcomeThatCameInTime_IsReadBeforeItsSessionIsGivenUp) {
  Harness h;
  h.Feed(DeadlineReached{});
  h.now += absl::Seconds(11);
  // Other work held the daemon up, and the welcome waits behind a report.
  EXPECT_THAT(h.Feed(RankReported{ProcessNumber{1}, Epoch{1}, ReportKind::kOther, "late"}),
              IsEmpty());
  EXPECT_THAT(h.Feed(SessionWelcomed{h.session, absl::Seconds(1), Incarnation{9}, 5}),
              Contains("Heartbeat []"));
}

TEST(AgentMachineTest, Session_WithoutWelcomeWhileTheDaemonDidNotRun_IsWaitedFor) {
  Harness h;
  h.Feed(DeadlineReached{});
  h.now += absl::Seconds(20);
  EXPECT_THAT(h.Feed(Stalled{absl::Seconds(20)}), IsEmpty());
  EXPECT_THAT(h.Feed(SessionWelcomed{h.session, absl::Seconds(1), Incarnation{9}}),
              ElementsAre("Heartbeat []"));
}

TEST(AgentMachineTest, Reconnection_BacksOffWithJitterUpToItsBound) {
  Harness h(4, {.seed = 3});
  h.Feed(DeadlineReached{});
  std::vector<double> delays;
  for (int i = 0; i < 100; ++i) {
    h.Break();
    delays.push_back(absl::ToDoubleSeconds(h.machine.NextDeadline() - h.now));
    h.now = h.machine.NextDeadline();
    h.Feed(DeadlineReached{});
  }
  EXPECT_THAT(delays.front(), AllOf(Ge(0.05), Le(0.1)));
  EXPECT_THAT(delays[79], AllOf(Ge(0.5), Le(1.0)));
  EXPECT_THAT(std::vector<double>(delays.begin(), delays.begin() + 80), Each(Le(1.0)))
      << "a coordinator that restarts would wait for its nodes";
  EXPECT_THAT(delays.back(), AllOf(Ge(2.5), Le(5.0))) << "it may have too many of them";
  EXPECT_NE(delays[8], delays[9]);
}

TEST(AgentMachineTest, SessionThatCannotBeOpened_IsToldOnceForEachReason_WithWhatToDo) {
  Harness h;
  const auto try_again = [&h](const absl::Status& status) {
    h.now = h.machine.NextDeadline();
    h.Feed(DeadlineReached{});
    h.Break(status);
  };
  for (int i = 0; i < 3; ++i) {  // of two coordinators, in turn
    try_again(absl::UnavailableError("Connection refused"));
    try_again(absl::UnauthenticatedError("revoked"));
  }
  EXPECT_THAT(h.logged,
              ElementsAre(AllOf(HasSubstr("Connection refused"), HasSubstr("listens at "
                                                                           "--coordinator")),
                          AllOf(HasSubstr("revoked"), HasSubstr("--join-token-file"))));
  h.Welcome();
  h.logged.clear();
  h.Break();
  EXPECT_THAT(h.logged, ElementsAre(Not(HasSubstr("tried again")))) << "its coordinator restarts";
}

TEST(AgentMachineTest, Break_LeavesRanksAlone_AndTheNextHelloNamesThem) {
  Harness h;
  h.Welcome();
  h.RunJob(2, {0});
  EXPECT_THAT(h.Break(), IsEmpty());
  EXPECT_THAT(h.Welcome(), Contains("OpenSession s2 last 1 running [job-7/2]"));
}

TEST(AgentMachineTest, Hello_DoesNotClaimACommandThatIsUnderWay) {
  Harness h;
  h.Welcome();
  h.Command(1, FetchLogsCommand{.fetch_id = "f"});
  h.Command(2, PrepareDataCommand{JobId{7}, {"text", "/jobs"}});
  h.Command(3, FetchLogsCommand{.fetch_id = "g"});
  h.Break();
  EXPECT_THAT(h.Welcome(), Contains("OpenSession s2 last 1 running []"));
}

TEST(AgentMachineTest, Command_SentAgain_IsAnsweredAgainAndCarriedOutOnce) {
  Harness h;
  h.Welcome();
  EXPECT_THAT(h.Command(1, FetchLogsCommand{.fetch_id = "f"}),
              ElementsAre("UploadLogs f", "Result 1 OK"));
  EXPECT_THAT(h.Command(1, FetchLogsCommand{.fetch_id = "f"}), ElementsAre("Result 1 OK"));
}

TEST(AgentMachineTest, FetchLogs_ThatCannotBegin_IsAnsweredWithThat) {
  Harness h;
  h.upload_status = absl::ResourceExhaustedError("too many");
  h.Welcome();
  EXPECT_THAT(h.Command(1, FetchLogsCommand{.fetch_id = "f"}),
              ElementsAre("UploadLogs f", "Result 1 RESOURCE_EXHAUSTED"));
}

TEST(AgentMachineTest, TryPeer_IsAnsweredWithWhatCameOfIt_ToWhoeverAsked) {
  Harness h;
  h.Welcome(/*coordinator=*/9);
  EXPECT_THAT(h.Command(1, TryPeerCommand{.word = "w"}), ElementsAre("TryPeer of 9 w listens"));
  EXPECT_THAT(h.Command(2, TryPeerCommand{.word = "w", .peer = "10.0.0.1:4"}),
              ElementsAre("TryPeer of 9 w 10.0.0.1:4"));
  EXPECT_THAT(
      h.Feed(PeerTried{.command_number = 1, .of = Incarnation{9}, .listens_at = "10.0.0.2:5"}),
      ElementsAre("Result 1 OK listens at 10.0.0.2:5"));
  h.Break();
  h.Welcome(/*coordinator=*/10);
  EXPECT_THAT(h.Command(2, PrepareDataCommand{JobId{7}, {"text", "/jobs"}}),
              ElementsAre("PrepareData r1 job-7"));
  EXPECT_THAT(
      h.Feed(PeerTried{
          .command_number = 2, .of = Incarnation{9}, .status = absl::UnavailableError("no")}),
      IsEmpty())
      << "another coordinator has given command 2";
}

TEST(AgentMachineTest, Command_SentAgainWhileUnderWay_IsAnsweredOnce) {
  Harness h;
  h.Welcome();
  h.Command(1, PrepareDataCommand{JobId{7}, {"text", "/jobs"}});
  h.Break();
  h.Welcome();
  EXPECT_THAT(h.Command(1, PrepareDataCommand{JobId{7}, {"text", "/jobs"}}), IsEmpty());
  EXPECT_THAT(h.DataReady(1), ElementsAre("Result 1 OK"));
}

TEST(AgentMachineTest, NewCoordinatorOnTheSameStore_FindsItsRanks) {
  Harness h;
  h.Welcome(9, 5);
  h.RunJob(2, {0});
  h.Break();
  EXPECT_THAT(h.Welcome(10, 5), Not(Contains("Quit p1")));
}

TEST(AgentMachineTest, CoordinatorOfAnotherStore_EndsTheRanksOfTheOneBefore) {
  Harness h;
  h.Welcome(9, 5);
  h.RunJob(2, {0});
  h.Break();
  EXPECT_THAT(h.Welcome(10, 6), Contains("Quit p1"));
  EXPECT_THAT(h.Exited(1, 0, 0), Not(Contains(HasSubstr("Report"))));
}

TEST(AgentMachineTest, Logs_AreOfTheStoreThatTheJobIsOf) {
  Harness h;
  h.Welcome(9, 5);
  h.RunJob(2, {0});
  h.Command(2, FetchLogsCommand{.fetch_id = "f", .job = JobId{7}});
  EXPECT_THAT(h.logged_stores, ElementsAre(5));
  h.Break();
  EXPECT_THAT(h.Welcome(9, 5), Not(Contains("UseStore 5")));
  h.Break();
  h.logged_stores.clear();
  EXPECT_THAT(h.Welcome(10, 6), Contains("UseStore 6"));
  h.Exited(1, 0, 9);
  h.RunJob(1, {0}, 1);
  h.Command(2, FetchLogsCommand{.fetch_id = "g", .job = JobId{7}});
  EXPECT_THAT(h.logged_stores, ElementsAre(6));
}

TEST(AgentMachineTest, CoordinatorOfAnotherStore_MayGiveTheSameNumbers) {
  Harness h;
  h.Welcome(9, 5);
  h.RunJob(2, {0});
  h.Command(2, StopCommand{JobId{7}, Epoch{3}, absl::ZeroDuration(), "ended"});
  h.Exited(1, 0, 9);
  h.Break();
  h.Welcome(10, 6);
  h.Command(1, h.AnAssign(1, {0}));
  EXPECT_THAT(h.DataReady(h.last_request), Contains(HasSubstr("StartProcess p2 job-7/1")));
}

TEST(AgentMachineTest, CoordinatorOfAnotherStore_GetsADeviceOnceItsProcessIsGone) {
  Harness h;
  h.Welcome(9, 5);
  h.RunJob(2, {0});
  h.Break();
  h.Welcome(10, 6);
  h.Command(1, h.AnAssign(1, {0}));
  EXPECT_THAT(h.DataReady(h.last_request), Not(Contains(HasSubstr("StartProcess"))));
  EXPECT_THAT(h.Exited(1, 0, 0), Contains(HasSubstr("StartProcess p2 job-7/1")));
}

TEST(AgentMachineTest, NameOfALiveWorker_EndsTheDaemonWithThatError) {
  Harness h;
  h.Feed(DeadlineReached{});
  for (const Action& action : h.machine.Step(
           h.now, SessionClosed{SessionNumber{1}, absl::AlreadyExistsError("the name is taken")})) {
    if (const Exit* exit = std::get_if<Exit>(&action)) {
      EXPECT_EQ(exit->status.code(), absl::StatusCode::kAlreadyExists);
      EXPECT_THAT(exit->reason, HasSubstr("the name is taken"));
      return;
    }
  }
  FAIL() << "it goes on";
}

TEST(AgentMachineTest, RefusedDaemonWithRanksLeft_WaitsForTheirEndAndOpensNoSession) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  EXPECT_THAT(h.Break(absl::AbortedError("a newer worker")), Contains("Kill p1"));
  EXPECT_GT(h.machine.NextDeadline(), h.now + absl::Seconds(1)) << "it would spin until then";
  EXPECT_THAT(h.Exited(1, 0, 9), Contains("Exit failed"));
}

TEST(AgentMachineTest, Command_Unknown_IsAnsweredUnimplemented) {
  Harness h;
  h.Welcome();
  EXPECT_THAT(h.Command(1, UnknownCommand{}), ElementsAre("Result 1 UNIMPLEMENTED"));
}

TEST(AgentMachineTest, Command_OfAClosedSession_IsIgnored) {
  Harness h;
  h.Welcome();
  h.Break();
  EXPECT_THAT(h.Feed(CommandReceived{SessionNumber{1}, 1, UnknownCommand{}}), IsEmpty());
}

TEST(AgentMachineTest, Results_MayHaveBeenLostWithTheStream_AndComeAgain) {
  Harness h;
  h.Welcome(/*coordinator=*/9);
  h.Command(1, UnknownCommand{});
  h.Break();
  EXPECT_THAT(h.Welcome(/*coordinator=*/9), Contains("Result 1 UNIMPLEMENTED"));
}

TEST(AgentMachineTest, NewCoordinator_StartsAfresh_AndGetsNoAnswerToItsPredecessor) {
  Harness h;
  h.Welcome(/*coordinator=*/9);
  h.Command(1, UnknownCommand{});
  h.Command(2, PrepareDataCommand{JobId{7}, {"text", "/jobs"}});
  h.Break();
  EXPECT_THAT(h.Welcome(/*coordinator=*/10), Not(Contains("Result 1 UNIMPLEMENTED")));
  EXPECT_THAT(h.DataReady(1), IsEmpty());
  EXPECT_THAT(h.Command(1, FetchLogsCommand{.fetch_id = "f"}),
              ElementsAre("UploadLogs f", "Result 1 OK"));
}

TEST(AgentMachineTest, Reports_WhileTheCoordinatorIsAway_AreKeptInOrder) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  h.Break();
  h.Feed(RankReported{kP1, Epoch{1}, ReportKind::kOther, "ready"});
  h.Feed(RankReported{kP1, Epoch{1}, ReportKind::kStep, "step 1"});
  EXPECT_THAT(h.Exited(1, 0, 9), IsEmpty());
  EXPECT_THAT(h.Welcome(),
              ElementsAre("OpenSession s2 last 1 running []", "Heartbeat []", "Result 1 OK",
                          "Report job-7/1 rank 2 ready", "Report job-7/1 rank 2 step 1",
                          "Report job-7/1 rank 2 exit 0 signal 9"));
}

TEST(AgentMachineTest, Reports_ThatACoordinatorMayHaveLost_ComeAgain_ButEventsDoNot) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  h.Feed(RankReported{kP1, Epoch{1}, ReportKind::kStep, "step 1"});
  h.Feed(RankReported{kP1, Epoch{1}, ReportKind::kEvent, "event"});
  h.ConfirmAll();
  h.Break();
  const std::vector<std::string> again = h.Welcome(/*coordinator=*/10);
  EXPECT_THAT(again, Contains("Report job-7/1 rank 2 step 1"));
  EXPECT_THAT(again, Not(Contains("Report job-7/1 rank 2 event")));
}

// Ten steps a second of two ranks, of which one tells of them, and a part of a checkpoint each
// minute.
TEST(AgentMachineTest, CoordinatorAwayForTenMinutes_DisturbsNoRank_AndIsToldWhatWasKept) {
  constexpr size_t kSteps = 6000, kStepsKept = ReportBuffer::kStepReportsMax;
  Harness h;
  h.Welcome();
  h.RunJob(1, {0, 1});
  h.ConfirmAll();
  h.Break();
  size_t steps = 0;
  for (bool open = false; !open;) {
    ++steps;
    for (const int64_t process : {1, 2}) {
      h.Feed(RankProgressed{ProcessNumber{process}, Epoch{1}, static_cast<int64_t>(steps)});
      h.Feed(ProcessRan{ProcessNumber{process}});
    }
    h.Feed(RankReported{kP1, Epoch{1}, ReportKind::kStep, absl::StrCat("step ", steps)});
    if (steps % 600 == 0) {
      h.Feed(RankReported{kP1, Epoch{1}, ReportKind::kOther, absl::StrCat("part ", steps)});
      h.Feed(RankReported{kP1, Epoch{1}, ReportKind::kEvent, absl::StrCat("event ", steps)});
    }
    for (const std::string& ordered : h.Advance(absl::Milliseconds(100))) {
      ASSERT_THAT(ordered, StartsWith("OpenSession"));
      open = steps >= kSteps;
      if (!open) h.Break();
    }
  }
  std::vector<std::string> told =
      h.Feed(SessionWelcomed{h.session, absl::Seconds(1), Incarnation{10}, 5});
  for (std::string& line : h.ConfirmAll()) told.push_back(std::move(line));
  const std::string rank = "Report job-7/1 rank 2 ";
  std::erase_if(told, [&rank](const std::string& line) { return !absl::StartsWith(line, rank); });
  std::vector<std::string> kept;
  for (size_t step = 1; step <= steps; ++step) {
    if (step + kStepsKept > steps) kept.push_back(absl::StrCat(rank, "step ", step));
    if (step % 600 != 0) continue;
    kept.push_back(absl::StrCat(rank, "part ", step));
    kept.push_back(absl::StrCat(rank, "event ", step));
  }
  EXPECT_THAT(told, ElementsAreArray(kept));
}

TEST(AgentMachineTest, Reports_OfAStoppedJob_DoNotComeAgain) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  h.Feed(RankReported{kP1, Epoch{1}, ReportKind::kStep, "step 1"});
  h.Command(2, StopCommand{JobId{7}, Epoch{1}, absl::Seconds(1), "done"});
  h.Exited(1, 0, 0);
  h.ConfirmAll();
  h.Break();
  EXPECT_THAT(h.Welcome(/*coordinator=*/10),
              ElementsAre("OpenSession s2 last 2 running []", "Heartbeat []"));
}

TEST(AgentMachineTest, Reports_OnTheirWay_AreBounded) {
  Harness h(4, {.reports_in_flight_max = 2});
  h.Welcome();
  h.RunJob(1, {0});
  h.ConfirmAll();
  for (int step = 1; step <= 3; ++step) {
    h.Feed(RankReported{kP1, Epoch{1}, ReportKind::kStep, absl::StrCat("step ", step)});
  }
  EXPECT_EQ(h.unconfirmed, 2);
  EXPECT_THAT(h.Feed(MessageWritten{h.session}), ElementsAre("Report job-7/1 rank 2 step 3"));
}

TEST(AgentMachineTest, Aborted_KillsTheRanksAndExitsWithAnError) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  EXPECT_THAT(h.Break(absl::AbortedError("a newer incarnation")), ElementsAre("Kill p1"));
  EXPECT_THAT(h.Exited(1, 0, 9), ElementsAre("Exit failed"));
}

TEST(AgentMachineTest, NotServed_ExitsWithAnError) {
  Harness h;
  h.Feed(DeadlineReached{});
  EXPECT_THAT(h.Break(absl::FailedPreconditionError("protocol version")),
              ElementsAre("Exit failed"));
}

TEST(AgentMachineTest, Goodbye_EndsTheDaemonInGoodOrder) {
  Harness h;
  h.Welcome();
  h.ConfirmAll();
  EXPECT_THAT(h.Feed(GoodbyeReceived{h.session, "drained"}),
              ElementsAre("Heartbeat [] draining", "CloseSession s1"));
  EXPECT_THAT(h.Break(absl::OkStatus()), ElementsAre("Exit"));
}

}  // namespace
}  // namespace phalanx::agent
