#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/machine/harness.h"

namespace phalanx::coordinator {
namespace {

using job::JobPhase;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SessionTest, Hello_IsWelcomed) {
  Harness h;
  const SessionId session = h.Open("n", 1);
  EXPECT_THAT(h.welcomed, ElementsAre(session));
}

TEST(SessionTest, Node_IsListedBeforeItsWorkerIsWelcomed) {
  Harness h;
  std::vector<std::string> told;
  for (const Action& action : h.machine().Step(
           h.now(),
           SessionOpened{SessionId{9},
                         WorkerHello{.node = "n", .incarnation = Incarnation{1}, .devices = 1}})) {
    if (std::holds_alternative<PublishNode>(action)) told.push_back("listed");
    if (std::holds_alternative<SendWelcome>(action)) told.push_back("welcomed");
  }
  EXPECT_THAT(told, ElementsAre("listed", "welcomed"));
}

TEST(NameTest, SecondProcessOfALiveOne_IsRefusedAndTheFirstKeepsTheName) {
  Harness h;
  const SessionId first = h.Open("n", 1, 1);
  const SessionId second = h.Open("n", 1, 2);
  EXPECT_THAT(h.welcomed, ElementsAre(first));
  h.Feed(HeartbeatReceived{.session = first});
  EXPECT_THAT(h.closed, IsEmpty()) << "it may have been sent before the first one died";
  h.Advance(absl::Seconds(1));
  h.Feed(HeartbeatReceived{.session = first});
  EXPECT_EQ(h.closed.at(second).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(h.NodeNamed("n").incarnation, Incarnation{1});
  EXPECT_EQ(h.NodeNamed("n").session, first);
}

TEST(NameTest, SecondProcessOfADeadOne_TakesOverWhenItsSessionCloses) {
  Harness h;
  const SessionId first = h.Open("n", 1, 1);
  const SessionId second = h.Open("n", 1, 2);
  h.Feed(SessionClosed{first});
  EXPECT_THAT(h.welcomed, ElementsAre(first, second));
  EXPECT_EQ(h.NodeNamed("n").incarnation, Incarnation{2});
}

TEST(NameTest, SecondProcessOfAHalfOpenSession_TakesOverWhenItsSilenceLasts) {
  Harness h;
  const SessionId first = h.Open("n", 1, 1);
  const JobId job = h.Run(first, AJob("a", 1));
  h.Advance(absl::Seconds(5));
  const SessionId second = h.Open("n", 1, 2);
  h.Advance(absl::Seconds(9));
  EXPECT_THAT(h.welcomed, ElementsAre(first));
  h.Advance(absl::Seconds(1));
  EXPECT_THAT(h.welcomed, ElementsAre(first, second));
  EXPECT_EQ(h.State(job).failure->kind, job::FailureKind::kNodeLost);
  EXPECT_EQ(h.Free("n"), 1);
}

TEST(NameTest, NewcomerThatGoesAway_IsForgotten) {
  Harness h;
  const SessionId first = h.Open("n", 1, 1);
  const SessionId second = h.Open("n", 1, 2);
  h.Feed(SessionClosed{second});
  h.Feed(SessionClosed{first});
  EXPECT_FALSE(h.NodeNamed("n").connected());
}

TEST(NameTest, StallOfTheCoordinator_DoesNotDecideForTheFirst) {
  Harness h;
  const SessionId first = h.Open("n", 1, 1);
  h.Open("n", 1, 2);
  h.Stall(absl::Seconds(30));
  h.Feed(HeartbeatReceived{.session = first});  // what a dead one had left
  EXPECT_THAT(h.closed, IsEmpty());
}

TEST(StoreTest, RanksOfAnotherStore_AreNotTakenForThisOnes) {
  CoordinatorOptions options = Harness::Options();
  options.store = 5;
  Harness h(options);
  h.Feed(SessionOpened{SessionId{1}, WorkerHello{.node = "n",
                                                 .incarnation = Incarnation{1},
                                                 .devices = 1,
                                                 .running = {{JobId{1}, Epoch{4}}},
                                                 .store = 6,
                                                 .last_job = JobId{9}}});
  EXPECT_EQ(h.Submit(AJob("a", 1)), JobId{1});
  EXPECT_EQ(h.Phase(JobId{1}), JobPhase::kStarting) << "the daemon ends them by itself";
}

TEST(StoreTest, NumberThatANodeHasSeen_IsNotGivenAgain) {
  CoordinatorOptions options = Harness::Options();
  options.store = 5;
  Harness h(options);  // restored from a copy of long ago
  h.Feed(SessionOpened{SessionId{1}, WorkerHello{.node = "n",
                                                 .incarnation = Incarnation{1},
                                                 .devices = 1,
                                                 .store = 5,
                                                 .last_job = JobId{9}}});
  EXPECT_EQ(h.Submit(AJob("a", 1)), JobId{10});
}

TEST(SessionTest, OldIncarnationThatComesBack_IsAborted) {
  Harness h;
  h.Open("n", 1, 1);
  h.Replace("n", 1, 2);
  const SessionId late = h.Open("n", 1, 1);
  EXPECT_EQ(h.closed.at(late).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(h.NodeNamed("n").incarnation, Incarnation{2});
}

TEST(SessionTest, SecondStreamOfOneProcess_ReplacesTheFirstWithoutAborting) {
  Harness h;
  const SessionId first = h.Open("n", 1, 1);
  const SessionId second = h.Open("n", 1, 1);
  EXPECT_EQ(h.closed.at(first).code(), absl::StatusCode::kUnavailable);
  h.Feed(SessionClosed{first});
  EXPECT_EQ(h.NodeNamed("n").session, second) << "news of the old stream's end overtook nothing";
}

TEST(SessionTest, HeartbeatOfAReplacedStream_DoesNotKeepTheNodeAlive) {
  Harness h;
  const SessionId first = h.Open("n", 1, 1);
  const SessionId second = h.Open("n", 1, 1);
  h.Advance(absl::Seconds(14));
  h.Feed(HeartbeatReceived{.session = first});
  h.Advance(absl::Seconds(2));
  EXPECT_EQ(h.closed.at(second).code(), absl::StatusCode::kUnavailable);
}

TEST(SessionTest, ReportOnAReplacedStreamOfTheSameProcess_Counts) {
  Harness h;
  const SessionId first = h.Open("n", 1, 1);
  const JobId job = h.Run(first, AJob("a", 1));
  h.Open("n", 1, 1, {{job, Epoch{1}}});
  h.Report(first, job, 0, StepReport{.step = 4, .epoch = Epoch{1}});
  EXPECT_EQ(h.views[job]->last_step->step, 4);
}

TEST(SessionTest, ReportOfAnOldIncarnation_IsFenced) {
  Harness h;
  const SessionId first = h.Open("n", 1, 1);
  const JobId job = h.Submit(AJob("a", 1));
  h.Replace("n", 1, 2);
  h.Feed(CommandFinished{.session = first, .command_number = 1, .data_digest = "d"});
  EXPECT_TRUE(h.State(job).layout->data_digest.empty());
}

TEST(CommandTest, NumbersCountFromOneWithoutGaps) {
  Harness h;
  const SessionId node = h.Open("n", 2);
  h.Submit(AJob("a", 1));
  h.Submit(AJob("b", 1));
  ASSERT_EQ(h.commands.size(), 2u);
  EXPECT_EQ(h.commands[0].command_number, 1u);
  EXPECT_EQ(h.commands[1].command_number, 2u);
  static_cast<void>(node);
}

TEST(CommandTest, NotCarriedOut_IsSentAgainUnderItsNumber) {
  Harness h;
  const SessionId node = h.Open("n", 1);
  h.Submit(AJob("a", 1));
  h.Feed(SessionClosed{node});
  const SessionId again = h.Open("n", 1, 1, {}, 0);
  ASSERT_EQ(h.Commands<PrepareData>(again).size(), 1u);
  EXPECT_EQ(h.Commands<PrepareData>(again)[0].first, 1u);
}

TEST(CommandTest, CarriedOutWithItsAnswerLost_IsAskedAgainUnderANewNumber) {
  Harness h;
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Submit(AJob("a", 1));
  h.Feed(SessionClosed{node});
  const SessionId again = h.Open("n", 1, 1, {}, 1);
  ASSERT_EQ(h.Commands<PrepareData>(again).size(), 1u);
  EXPECT_EQ(h.Commands<PrepareData>(again)[0].first, 2u);
  h.Prepare(again);
  EXPECT_EQ(h.State(job).layout->data_digest, "data");
}

TEST(CommandTest, NumbersNeverFallWithinOneProcess) {
  Harness h;
  const SessionId node = h.Open("n", 2);
  h.Submit(AJob("a", 1));
  h.Submit(AJob("b", 1));
  h.Feed(CommandFinished{.session = node, .command_number = 2, .data_digest = "d"});
  h.Feed(SessionClosed{node});
  // The first is still under way, so the worker cannot say more than 0.
  const SessionId again = h.Open("n", 2, 1, {}, 0);
  const uint64_t before = h.NodeNamed("n").last_command_number;
  h.Feed(LogsRequested{.token = Token{500}, .job = JobId{1}});
  EXPECT_EQ(h.Commands<FetchLogs>(again).back().first, before + 1);
  EXPECT_GT(before, 2u);
}

TEST(CommandTest, ObsoleteAssignment_IsNotSentAgain) {
  Harness h;
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Submit(AJob("a", 1));
  h.Prepare(node);
  h.Feed(SessionClosed{node});
  ASSERT_TRUE(h.Cancel(job).ok());
  const SessionId again = h.Open("n", 1, 1, {}, 1);
  EXPECT_THAT(h.Commands<Assign>(again), IsEmpty());
  EXPECT_EQ(h.Commands<StopRanks>(again).size(), 1u) << "that of its end";
  ASSERT_EQ(h.Commands<Rendezvous>(again).size(), 1u) << "it takes the number of the assignment";
  EXPECT_EQ(h.Commands<Rendezvous>(again)[0].first, 2u);
  EXPECT_EQ(h.Commands<Rendezvous>(again)[0].second.job, JobId{});
}

TEST(CommandTest, NewProcessWhilePreparing_IsAskedAgain) {
  Harness h;
  h.Open("n", 1, 1);
  const JobId job = h.Submit(AJob("a", 1));
  const SessionId again = h.Replace("n", 1, 2);
  EXPECT_EQ(h.Phase(job), JobPhase::kStarting);
  ASSERT_EQ(h.Commands<PrepareData>(again).size(), 1u);
  EXPECT_EQ(h.Commands<PrepareData>(again)[0].first, 1u);
}

TEST(ForeignTest, RanksOfAnUnknownJob_AreStoppedBeforeTheNodeIsUsed) {
  Harness h;
  const SessionId node = h.Open("n", 1, 1, {{JobId{42}, Epoch{3}}});
  const JobId job = h.Submit(AJob("a", 1));
  EXPECT_EQ(h.Phase(job), JobPhase::kQueued);
  ASSERT_EQ(h.Commands<StopRanks>(node).size(), 1u);
  EXPECT_EQ(h.Commands<StopRanks>(node)[0].second.epoch, Epoch{3});
  h.Answer<StopRanks>(node);
  EXPECT_EQ(h.Phase(job), JobPhase::kStarting);
}

TEST(ForeignTest, StreamThatBreaksBeforeTheStopIsStored_FreesNothing) {
  Harness h;
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Run(node, AJob("a", 1));
  h.store_held = true;
  h.Feed(CancelRequested{Token{900}, job});
  h.Feed(SessionClosed{node});
  const SessionId again = h.Open("n", 1);
  EXPECT_EQ(h.Free("n"), 0) << "its ranks are ending, or are to";
  h.store_held = false;
  h.Commit();
  h.Answer<StopRanks>(again);
  EXPECT_EQ(h.Free("n"), 1);
}

TEST(ForgetTest, NodeThatIsAwayForLong_IsForgotten) {
  Harness h;
  const SessionId node = h.Open("n", 1);
  h.Feed(SessionClosed{node});
  h.Advance(absl::Hours(2));
  EXPECT_THAT(h.machine().nodes(), IsEmpty());
}

}  // namespace
}  // namespace phalanx::coordinator
