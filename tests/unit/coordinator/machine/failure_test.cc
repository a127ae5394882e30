#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/machine/harness.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using job::JobPhase;
using ::testing::HasSubstr;

RankError Lost(int32_t accused) {
  return {.kind = FailureKind::kPeerLost, .accused = accused, .message = "it is gone"};
}

struct FailureTest : public ::testing::Test {
  FailureTest() : a(h.Open("a", 2)), b(h.Open("b", 1)), job(h.Submit(AJob("j", 3))) {
    h.Prepare(a);
    h.Prepare(b);
    h.Ready(a, job, 0, 2);
    h.Ready(b, job, 2, 3);
  }
  Harness h;
  const SessionId a, b;
  const JobId job;
};

TEST_F(FailureTest, KilledRank_FailsTheJobAtOnceAndIsNamed) {
  h.Report(b, job, 2, RankExited{.signal = 9, .log_tail = "step 4"});
  EXPECT_EQ(h.Published(job), JobPhase::kFailed);
  const FailureCause& cause = *h.State(job).failure;
  EXPECT_EQ(cause.kind, FailureKind::kRankKilled);
  EXPECT_EQ(cause.rank, 2);
  EXPECT_EQ(cause.node, "b");
  EXPECT_EQ(cause.signal, 9);
  EXPECT_EQ(cause.message, "rank 2 on node b was killed by signal 9 (SIGKILL)\nstep 4");
  EXPECT_EQ(h.Commands<StopRanks>(a).size(), 1u) << "the others are told to stop";
  EXPECT_EQ(h.events[job][h.events[job].size() - 3].type, "RankFailed");
}

// Nothing is won by haste where the job fails: the signal is worth waiting for.
TEST_F(FailureTest, DeadRank_OfAJobThatDoesNotRecover_FailsItWithWhatItsExitSays) {
  h.Report(b, job, 2, RankDied{});
  h.Report(a, job, 0, Lost(2));
  h.Advance(absl::Seconds(2));
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
  h.Report(b, job, 2, RankExited{.signal = 9});
  EXPECT_EQ(h.Phase(job), JobPhase::kFailed);
  EXPECT_EQ(h.State(job).failure->message, "rank 2 on node b was killed by signal 9 (SIGKILL)");
}

TEST_F(FailureTest, DeadRankWhoseExitNobodyTells_FailsTheJobAllTheSame) {
  h.Report(b, job, 2, RankDied{});
  h.Advance(absl::Seconds(6));
  EXPECT_EQ(h.Phase(job), JobPhase::kFailed);
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kRankKilled);
  EXPECT_EQ(h.State(job).failure->message, "rank 2 on node b died");
}

TEST_F(FailureTest, RankThatAccusesAndDies_IsTheCauseOnlyIfNobodyKnowsABetterOne) {
  h.Report(a, job, 0, Lost(2));
  h.Report(a, job, 0, RankDied{});
  h.Report(a, job, 0, RankExited{.signal = 11});
  h.Report(b, job, 2, RankDied{});
  h.Report(b, job, 2, RankExited{.signal = 9});
  EXPECT_EQ(h.State(job).failure->rank, 2);
}

TEST_F(FailureTest, DeathAfterSuccess_IsNone) {
  h.Report(a, job, 1, RankSucceeded{10});
  h.Report(a, job, 1, RankDied{});
  h.Advance(absl::Seconds(6));
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
}

TEST_F(FailureTest, ExitBeforeTheLastStep_IsAFailureEvenWithCodeZero) {
  h.Report(a, job, 1, RankExited{.exit_code = 0});
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kRankExited);
}

TEST_F(FailureTest, ExitAfterSuccess_IsNone) {
  h.Report(a, job, 1, RankSucceeded{10});
  h.Report(a, job, 1, RankExited{.exit_code = 1});
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
}

TEST_F(FailureTest, RankError_IsTheCauseThatItNames) {
  h.Report(a, job, 0, RankError{.kind = FailureKind::kNonFinite, .message = "loss is not finite"});
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kNonFinite);
  EXPECT_EQ(h.State(job).failure->message, "rank 0: loss is not finite");
}

TEST_F(FailureTest, CauseOfAnyLength_IsCut) {
  h.Report(a, job, 0,
           RankError{.kind = FailureKind::kRankError, .message = std::string(1 << 20, 'x')});
  const size_t length = (16 << 10) + 100;
  EXPECT_LT(h.State(job).failure->message.size(), length);
  EXPECT_LT(h.State(job).reason.size(), length);
  EXPECT_LT(h.events[job].back().message.size(), length);
}

TEST_F(FailureTest, Accusation_WaitsForBetterEvidence) {
  h.Report(a, job, 0, Lost(2));
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
  h.Advance(absl::Milliseconds(299));
  h.Report(b, job, 2, RankExited{.signal = 11});
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kRankCrashed);
  EXPECT_EQ(h.State(job).failure->rank, 2);
}

TEST_F(FailureTest, AccusationBeforeTheReportOfTheAccused_IsNotTheCause) {
  h.Report(a, job, 0, Lost(2));
  h.Report(a, job, 1, Lost(2));
  h.Report(b, job, 2, RankError{.kind = FailureKind::kOutputUnavailable, .message = "disk full"});
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kOutputUnavailable);
  EXPECT_EQ(h.State(job).failure->rank, 2);
}

TEST_F(FailureTest, AccusationAndTheEndOfTheAccuser_BlameTheAccused) {
  h.Report(a, job, 0, Lost(2));
  h.Report(a, job, 0, RankExited{.exit_code = 1});
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
  h.Advance(absl::Milliseconds(300));
  const FailureCause& cause = *h.State(job).failure;
  EXPECT_EQ(cause.kind, FailureKind::kPeerLost);
  EXPECT_EQ(cause.rank, 2);
  EXPECT_EQ(cause.node, "b");
  EXPECT_EQ(cause.message, "rank 0 on node a lost its connection to rank 2 on node b: it is gone");
}

// A peer that is gone kills nobody: a rank that lost one waits for orders.
TEST_F(FailureTest, AccusationAndTheCrashOfTheAccuser_AreTheCrash) {
  h.Report(a, job, 0, Lost(2));
  h.Report(a, job, 0, RankExited{.signal = 11, .log_tail = "step 4"});
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning) << "its peer may have gone first";
  h.Advance(absl::Milliseconds(300));
  const FailureCause& cause = *h.State(job).failure;
  EXPECT_EQ(cause.kind, FailureKind::kRankCrashed);
  EXPECT_EQ(cause.rank, 0);
  EXPECT_EQ(cause.signal, 11);
  EXPECT_EQ(
      cause.message,
      "rank 0 on node a was killed by signal 11 (SIGSEGV); before that, rank 0 on node a lost "
      "its connection to rank 2 on node b: it is gone\nstep 4");
}

TEST_F(FailureTest, CrashOfAnAccuserBeforeTheEndOfTheAccused_IsNotTheCause) {
  h.Report(a, job, 0, Lost(2));
  h.Report(a, job, 0, RankExited{.signal = 6});
  h.Report(b, job, 2, RankExited{.signal = 9});
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kRankKilled);
  EXPECT_EQ(h.State(job).failure->rank, 2);
}

TEST_F(FailureTest, CrashOfOneOfSeveralAccusers_LeavesTheNodeToBlame) {
  h.Report(a, job, 0, Lost(2));
  h.Report(a, job, 1, Lost(2));
  h.Report(a, job, 0, RankExited{.signal = 6});
  h.Advance(absl::Milliseconds(300));
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kNodeUnreachable);
}

TEST_F(FailureTest, AccusationsOfSeveralRanks_BlameTheNode) {
  h.Report(a, job, 0, Lost(2));
  h.Report(a, job, 1, Lost(2));
  h.Advance(absl::Milliseconds(300));
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kNodeUnreachable);
  EXPECT_EQ(h.State(job).failure->node, "b");
}

TEST_F(FailureTest, AccusationsInAChain_BlameItsBeginning) {
  h.Report(a, job, 1, Lost(0));
  h.Report(a, job, 0, Lost(2));
  h.Advance(absl::Milliseconds(300));
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kPeerLost);
  EXPECT_EQ(h.State(job).failure->rank, 2);
}

// Rank 3 hangs. Rank 2 ran out of patience first and left, which ranks 0 and 1 saw.
TEST(AccusationTest, SeveralAccusationsOfARankThatFollowedAnother_LeaveItsNodeAlone) {
  Harness h;
  const SessionId a = h.Open("a", 2), b = h.Open("b", 1), c = h.Open("c", 1);
  const JobId job = h.Submit(AJob("j", 4));
  for (const SessionId& node : {a, b, c}) h.Prepare(node);
  h.Ready(a, job, 0, 2);
  h.Ready(b, job, 2, 3);
  h.Ready(c, job, 3, 4);
  h.Report(a, job, 0, Lost(2));
  h.Report(a, job, 1, Lost(2));
  h.Report(b, job, 2, Lost(3));
  h.Advance(absl::Milliseconds(300));
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kPeerLost);
  EXPECT_EQ(h.State(job).failure->rank, 3);
}

TEST_F(FailureTest, AccusationsToAndFro_BlameTheNodeThatIsCutOff) {
  h.Report(b, job, 2, Lost(0));
  h.Report(a, job, 0, Lost(2));
  h.Report(a, job, 1, Lost(2));
  h.Advance(absl::Milliseconds(300));
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kNodeUnreachable);
  EXPECT_EQ(h.State(job).failure->node, "b");
}

TEST_F(FailureTest, AccusationOfNobody_BlamesNobody) {
  h.Report(a, job, 0, Lost(-1));
  h.Advance(absl::Milliseconds(300));
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kPeerLost);
  EXPECT_EQ(h.State(job).failure->rank, -1);
}

TEST_F(FailureTest, AccusationOfItselfOrOfNoRank_NamesNobody) {
  h.Report(a, job, 0, Lost(0));
  h.Report(a, job, 1, Lost(99));
  h.Advance(absl::Milliseconds(300));
  EXPECT_EQ(h.State(job).failure->rank, -1);
}

TEST_F(FailureTest, AccusationAndABrokenSession_AreTheLossOfTheNodeAtOnce) {
  h.Report(a, job, 0, Lost(2));
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
  h.Feed(SessionClosed{b});
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kNodeLost);
  EXPECT_EQ(h.State(job).failure->node, "b");
  EXPECT_EQ(h.events[job][h.events[job].size() - 3].type, "NodeLost");
}

TEST_F(FailureTest, BrokenSessionAndThenAnAccusation_AreTheLossOfTheNodeAtOnce) {
  h.Feed(SessionClosed{b});
  h.Report(a, job, 1, Lost(2));
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kNodeLost);
}

TEST_F(FailureTest, BrokenSessionOfANodeThatNobodyAccuses_ProvesNothing) {
  h.Feed(SessionClosed{b});
  h.Report(a, job, 1, Lost(0));
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
  h.Advance(absl::Milliseconds(300));
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kPeerLost);
  EXPECT_EQ(h.State(job).failure->rank, 0);
}

TEST_F(FailureTest, AccusationOfNobodyAndOneBrokenSession_AreTheLossOfThatNode) {
  h.Report(a, job, 0, Lost(-1));
  h.Feed(SessionClosed{b});
  h.Advance(absl::Milliseconds(300));
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kNodeLost);
  EXPECT_EQ(h.State(job).failure->node, "b");
}

TEST_F(FailureTest, AccusationOfNobodyFromANodeWhoseSessionBrokeThen_ProvesNothing) {
  h.Report(a, job, 0, Lost(-1));
  h.Feed(SessionClosed{a});
  h.Advance(absl::Milliseconds(300));
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kPeerLost);
}

TEST_F(FailureTest, AccusationAfterTheCause_ChangesNothing) {
  h.Report(b, job, 2, RankExited{.signal = 9});
  h.Report(a, job, 0, Lost(2));
  h.Advance(absl::Seconds(1));
  EXPECT_EQ(h.State(job).failure->rank, 2);
}

TEST_F(FailureTest, ReportOfAnotherEpoch_IsFenced) {
  h.Report(b, job, 2, RankExited{.signal = 9}, 2);
  h.Report(b, job, 2, RankExited{.signal = 9}, 0);
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
}

TEST_F(FailureTest, ReportOfARankOfAnotherNode_IsIgnored) {
  h.Report(b, job, 0, RankExited{.signal = 9});
  h.Report(b, job, -1, RankExited{.signal = 9});
  h.Report(b, job, 1000, RankExited{.signal = 9});
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
}

TEST_F(FailureTest, BrokenSession_EndsNoJob) {
  h.Feed(SessionClosed{b});
  h.Advance(absl::Seconds(14));
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
}

TEST_F(FailureTest, NodeThatStaysAway_IsLost) {
  h.Feed(SessionClosed{b});
  h.Advance(absl::Seconds(8));
  h.Feed(HeartbeatReceived{.session = a});
  h.Advance(absl::Seconds(8));
  EXPECT_EQ(h.Published(job), JobPhase::kFailed);
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kNodeLost);
  EXPECT_EQ(h.State(job).failure->node, "b");
  EXPECT_EQ(h.State(job).failure->rank, 2);
}

TEST_F(FailureTest, SilentNode_IsClosedAndLost) {
  h.Advance(absl::Seconds(10));
  h.Feed(HeartbeatReceived{.session = a});
  h.Advance(absl::Seconds(5));
  EXPECT_EQ(h.closed.at(b).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kNodeLost);
  EXPECT_THAT(h.State(job).failure->message, HasSubstr("silent"));
}

TEST_F(FailureTest, StallOfTheCoordinator_IsNoSilenceOfItsNodes) {
  h.Advance(absl::Seconds(10));
  h.Stall(absl::Seconds(20));
  h.Advance(absl::Seconds(5));
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning) << "15 s of silence, 20 s without ears";
  h.Advance(absl::Seconds(1));
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kNodeLost) << "then silence is silence";
}

TEST_F(FailureTest, StallOfTheCoordinator_IsNoAbsence) {
  h.Feed(SessionClosed{b});
  h.Advance(absl::Seconds(8));
  h.Feed(HeartbeatReceived{.session = a});
  h.Stall(absl::Minutes(5));
  h.Feed(HeartbeatReceived{.session = a});
  h.Open("b", 1, 1, {{job, Epoch{1}}});
  h.Advance(absl::Seconds(14));
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
}

TEST_F(FailureTest, StallOfTheCoordinator_LeavesEvidenceItsTime) {
  h.Report(a, job, 0, Lost(2));
  h.Stall(absl::Seconds(3));
  h.Report(b, job, 2, RankExited{.signal = 9});
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kRankKilled);
}

TEST_F(FailureTest, AnyMessageOfANode_IsASignOfLife) {
  h.Advance(absl::Seconds(10));
  h.Feed(HeartbeatReceived{.session = a});
  h.Report(b, job, 2, RankEvent{.type = "Slow", .message = "a report before its heartbeats"});
  h.Advance(absl::Seconds(10));
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
}

TEST_F(FailureTest, NodeThatComesBackWithItsRanks_GoesOn) {
  h.Feed(SessionClosed{b});
  h.Advance(absl::Seconds(10));
  h.Feed(HeartbeatReceived{.session = a});
  const SessionId again = h.Open("b", 1, 1, {{job, Epoch{1}}});
  h.Advance(absl::Seconds(10));
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
  h.Feed(HeartbeatReceived{.session = a});
  h.Report(again, job, 2, StepReport{.step = 5, .epoch = Epoch{1}});
  EXPECT_EQ(h.views[job]->last_step->step, 5);
}

TEST_F(FailureTest, NodeThatComesBackWithoutItsRanks_HasLostThem) {
  h.Answer<Assign>(b);
  h.Feed(SessionClosed{b});
  h.Open("b", 1, 1, {}, 2);
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning) << "last reports may follow";
  h.Advance(absl::Seconds(2));
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kRanksLost);
}

TEST_F(FailureTest, NodeThatComesBackAfterItsRanksHaveSucceeded_HasLostNothing) {
  h.Answer<Assign>(b);
  h.Report(b, job, 2, RankSucceeded{10});
  h.Report(b, job, 2, RankExited{});
  h.Feed(SessionClosed{b});
  h.Open("b", 1, 1, {}, 2);
  h.Advance(absl::Seconds(3));
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
}

TEST_F(FailureTest, NodeThatLostItsRanksAndTheAnswerToTheAssignment_IsNotAssignedAgain) {
  h.Feed(SessionClosed{b});
  const SessionId again = h.Open("b", 1, 1, {}, 2);
  EXPECT_TRUE(h.Commands<Assign>(again).empty());
  h.Advance(absl::Seconds(2));
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kRanksLost);
}

TEST_F(FailureTest, NodeThatComesBackAndTellsOfTheExit_NamesTheSignal) {
  h.Answer<Assign>(b);
  h.Feed(SessionClosed{b});
  const SessionId again = h.Open("b", 1, 1, {}, 2);
  h.Report(again, job, 2, RankExited{.signal = 9});
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kRankKilled);
}

TEST_F(FailureTest, NewIncarnation_LosesTheRanksAtOnceAndFreesTheDevices) {
  h.Replace("b", 1, 2);
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kNodeLost);
  EXPECT_THAT(h.State(job).failure->message, HasSubstr("restarted"));
  EXPECT_EQ(h.Free("b"), 1);
  EXPECT_EQ(h.Free("a"), 0);
}

TEST_F(FailureTest, LostNodeThatReturns_IsToldToStopAndThenUsableAgain) {
  h.Feed(SessionClosed{b});
  h.Advance(absl::Seconds(8));
  h.Feed(HeartbeatReceived{.session = a});
  h.Advance(absl::Seconds(8));
  ASSERT_EQ(h.Phase(job), JobPhase::kFailed);
  const SessionId again = h.Open("b", 1, 1, {{job, Epoch{1}}});
  EXPECT_EQ(h.Free("b"), 0);
  EXPECT_FALSE(h.Commands<StopRanks>(again).empty());
  h.Report(again, job, 2, RankExited{.signal = 9, .expected = true});
  EXPECT_EQ(h.Free("b"), 1);
}

TEST_F(FailureTest, ExitThatTheWorkerWanted_NamesTheNode) {
  h.Report(b, job, 2, RankExited{.signal = 15, .expected = true});
  EXPECT_EQ(h.State(job).failure->kind, FailureKind::kNodeStopped);
}

TEST_F(FailureTest, TerminalPhase_NeverChanges) {
  h.Report(b, job, 2, RankExited{.signal = 9});
  h.Report(a, job, 0, RankSucceeded{10});
  h.Report(a, job, 1, RankSucceeded{10});
  EXPECT_EQ(h.Cancel(job).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(h.Phase(job), JobPhase::kFailed);
}

TEST_F(FailureTest, Explain_NamesCauseRankAndNode) {
  h.Report(b, job, 2, RankExited{.signal = 9});
  EXPECT_THAT(
      h.Explain(job),
      ::testing::ElementsAre("RankKilled: rank 2 on node b was killed by signal 9 (SIGKILL)",
                             "the first rank to fail was 2 on node b", HasSubstr("what to do: ")));
}

}  // namespace
}  // namespace phalanx::coordinator
