#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/machine/harness.h"

namespace phalanx::coordinator {
namespace {

using job::JobPhase;
using ::testing::HasSubstr;

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
  EXPECT_EQ(cause.cause, "RankKilled");
  EXPECT_EQ(cause.rank, 2);
  EXPECT_EQ(cause.node, "b");
  EXPECT_EQ(cause.signal, 9);
  EXPECT_EQ(cause.message, "rank 2 on node b was killed by signal 9 (SIGKILL)\nstep 4");
  EXPECT_EQ(h.Commands<StopRanks>(a).size(), 1u) << "the others are told to stop";
  EXPECT_EQ(h.events[job][h.events[job].size() - 2].type, "RankFailed");
}

TEST_F(FailureTest, ExitBeforeTheLastStep_IsAFailureEvenWithCodeZero) {
  h.Report(a, job, 1, RankExited{.exit_code = 0});
  EXPECT_EQ(h.State(job).failure->cause, "RankExited");
}

TEST_F(FailureTest, ExitAfterSuccess_IsNone) {
  h.Report(a, job, 1, RankSucceeded{10});
  h.Report(a, job, 1, RankExited{.exit_code = 1});
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
}

TEST_F(FailureTest, RankError_IsTheCauseThatItNames) {
  h.Report(a, job, 0, RankError{.message = "loss is not finite", .cause = "NonFinite"});
  EXPECT_EQ(h.State(job).failure->cause, "NonFinite");
  EXPECT_EQ(h.State(job).failure->message, "rank 0: loss is not finite");
}

TEST_F(FailureTest, CollateralError_WaitsForTheRootCause) {
  h.Report(a, job, 0, RankError{.message = "peer went away", .collateral = true});
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
  h.Advance(absl::Milliseconds(20));
  h.Report(b, job, 2, RankExited{.signal = 11});
  EXPECT_EQ(h.State(job).failure->cause, "RankKilled");
  EXPECT_EQ(h.State(job).failure->rank, 2);
}

TEST_F(FailureTest, CollateralErrorAndItsExit_WithoutARootCause_FailAfterTheSettleDelay) {
  h.Report(a, job, 0,
           RankError{.message = "peer went away", .cause = "PeerLost", .collateral = true});
  h.Report(a, job, 0, RankExited{.exit_code = 1});
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
  h.Advance(absl::Milliseconds(50));
  EXPECT_EQ(h.Phase(job), JobPhase::kFailed);
  EXPECT_EQ(h.State(job).failure->cause, "PeerLost");
}

TEST_F(FailureTest, CollateralErrorAfterTheRootCause_ChangesNothing) {
  h.Report(b, job, 2, RankExited{.signal = 9});
  h.Report(a, job, 0, RankError{.message = "peer went away", .collateral = true});
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
  EXPECT_EQ(h.State(job).failure->cause, "NodeLost");
  EXPECT_EQ(h.State(job).failure->node, "b");
  EXPECT_EQ(h.State(job).failure->rank, 2);
}

TEST_F(FailureTest, SilentNode_IsClosedAndLost) {
  h.Advance(absl::Seconds(10));
  h.Feed(HeartbeatReceived{.session = a});
  h.Advance(absl::Seconds(5));
  EXPECT_EQ(h.closed.at(b).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(h.State(job).failure->cause, "NodeLost");
  EXPECT_THAT(h.State(job).failure->message, HasSubstr("silent"));
}

TEST_F(FailureTest, StallOfTheCoordinator_IsNoSilenceOfItsNodes) {
  h.Advance(absl::Seconds(10));
  h.Stall(absl::Seconds(20));
  h.Advance(absl::Seconds(5));
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning) << "15 s of silence, 20 s without ears";
  h.Advance(absl::Seconds(1));
  EXPECT_EQ(h.State(job).failure->cause, "NodeLost") << "then silence is silence";
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
  h.Report(a, job, 0, RankError{.message = "peer went away", .collateral = true});
  h.Stall(absl::Seconds(3));
  h.Report(b, job, 2, RankExited{.signal = 9});
  EXPECT_EQ(h.State(job).failure->cause, "RankKilled");
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
  EXPECT_EQ(h.State(job).failure->cause, "RanksLost");
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
  EXPECT_EQ(h.State(job).failure->cause, "RanksLost");
}

TEST_F(FailureTest, NodeThatComesBackAndTellsOfTheExit_NamesTheSignal) {
  h.Answer<Assign>(b);
  h.Feed(SessionClosed{b});
  const SessionId again = h.Open("b", 1, 1, {}, 2);
  h.Report(again, job, 2, RankExited{.signal = 9});
  EXPECT_EQ(h.State(job).failure->cause, "RankKilled");
}

TEST_F(FailureTest, NewIncarnation_LosesTheRanksAtOnceAndFreesTheDevices) {
  h.Open("b", 1, 2);
  EXPECT_EQ(h.State(job).failure->cause, "NodeLost");
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
  EXPECT_EQ(h.State(job).failure->cause, "NodeStopped");
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
  EXPECT_THAT(h.Explain(job), ::testing::ElementsAre(
                                  "RankKilled: rank 2 on node b was killed by signal 9 (SIGKILL)",
                                  "the first rank to fail was 2 on node b"));
}

}  // namespace
}  // namespace phalanx::coordinator
