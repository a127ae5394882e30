// Devices of nodes in reserve, lent to jobs that lose one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/plan/derivation.h"
#include "tests/unit/coordinator/machine/lending.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using job::JobPhase;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(LoanTest, JobWhoseDeviceFailed_ReturnsToItsWidthOnADeviceInReserve) {
  const JobId job = TrainOn("n", Borrowing("a", 3));
  Lose(job, "n", 1, 3, 3, 1);
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  EXPECT_EQ(Holder("s"), job) << "it is held for the job from now on";
  EXPECT_THAT(h_.Commands<PrepareData>(spares_), IsEmpty()) << "no step has been decided yet";
  h_.plans_held = true;
  Step(job, 4, 2);
  ASSERT_THAT(h_.Commands<PrepareData>(spares_), SizeIs(1));
  EXPECT_THAT(h_.plans, IsEmpty());
  h_.Prepare(spares_);
  ASSERT_THAT(h_.plans, SizeIs(1));
  EXPECT_THAT(h_.plans[0].returned, ElementsAre(Rank{1}));
  EXPECT_EQ(h_.plans[0].lent.at(Rank{1}), (plan::Device{"s", 0}));
  EXPECT_THAT(h_.plans[0].lost, IsEmpty());
  EXPECT_THAT(h_.plans[0].unfit, IsEmpty()) << "whose device that is not any more";
  h_.plans_held = false;
  h_.AnswerPlans();
  h_.Commit();
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_THAT(Lost(job), IsEmpty());
  EXPECT_EQ(Placed(job), "1 on n0, 1 on s, 1 on n2");
  EXPECT_TRUE(h_.Commands<Assign>(spares_).back().second.beside);
  EXPECT_THAT(Events(job, "DeviceLent"),
              ElementsAre("rank 1 goes on on device 0 of node s, which is in reserve, instead of "
                          "device 0 of node n1"));
  for (const int32_t rank : {0, 2}) h_.Report(Of("n", rank), job, rank, Quiet(4, rank), 2);
  EXPECT_THAT(BegunBehind(), ElementsAre(3, 4));
  for (const int32_t rank : {0, 2}) h_.Report(Of("n", rank), job, rank, RankReady{}, 3);
  h_.Report(spares_, job, 1, RankReady{}, 3);
  EXPECT_THAT(Events(job, "Returned"), SizeIs(1));
  EXPECT_FALSE(h_.machine().jobs().at(job).recovery.has_value());
}

TEST_F(LoanTest, DeviceOfBefore_IsFreeOnceItsRanksAreGoneForCertain) {
  const JobId job = TrainOn("n", Borrowing("a", 2));
  Lose(job, "n", 1, 2, 3, 1);
  Step(job, 4, 2);
  EXPECT_EQ(Holder("n1"), job) << "the job has the first claim on it until then";
  h_.Prepare(spares_);
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_EQ(Holder("n1"), JobId{});
  const auto stops = h_.Commands<StopRanks>(Of("n", 1));
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_EQ(stops[0].second.epoch, Epoch{2});
  EXPECT_FALSE(h_.NodeNamed("n1").Schedulable());
  h_.Answer<StopRanks>(Of("n", 1));
  EXPECT_TRUE(h_.NodeNamed("n1").Schedulable());
  // It is repaired.
  h_.Replace("n1", 1, /*incarnation=*/2);
  const JobId other = h_.Submit(AJob("b", 1));
  EXPECT_EQ(Holder("n1"), other);
}

TEST_F(LoanTest, LentDevice_IsInReserveAgainWhenTheJobEnds) {
  const JobId job = TrainOn("n", Borrowing("a", 2));
  Lose(job, "n", 1, 2, 3, 1);
  Step(job, 4, 2);
  h_.Prepare(spares_);
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  ASSERT_TRUE(h_.Cancel(job).ok());
  h_.Answer<StopRanks>(spares_);
  h_.Answer<StopRanks>(Of("n", 0));
  EXPECT_EQ(Holder("s"), JobId{});
  h_.Submit(AJob("b", 2));
  EXPECT_EQ(Holder("s"), JobId{}) << "for jobs that lose one";
}

TEST_F(LoanTest, LentDevice_IsTheJobsOverARestartOfTheCoordinator) {
  const JobId job = TrainOn("n", Borrowing("a", 2));
  Lose(job, "n", 1, 2, 3, 1);
  Step(job, 4, 2);
  h_.Prepare(spares_);
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  h_.Restart();
  EXPECT_EQ(Holder("s"), job);
  EXPECT_EQ(h_.machine().nodes().count("n1"), 0u) << "nothing of the job is there any more";
}

// What it had been told of the job and not yet ended is stopped before it gets anything new.
TEST_F(LoanTest, NodeOfBeforeThatIsBackWithRanks_HasThemStopped) {
  const JobId job = TrainOn("n", Borrowing("a", 2));
  Lose(job, "n", 1, 2, 3, 1);
  h_.Feed(SessionClosed{Of("n", 1)});
  Step(job, 4, 2);
  h_.Prepare(spares_);
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  const SessionId back = h_.Open("n1", 1, 1, {{job, Epoch{1}}}, 9);
  EXPECT_THAT(h_.Commands<StopRanks>(back), SizeIs(1));
  EXPECT_FALSE(h_.NodeNamed("n1").Schedulable());
}

TEST_F(LoanTest, ProcessThatDied_HasItsOwnDeviceAndBorrowsNone) {
  const JobId job = TrainOn("n", Borrowing("a", 2));
  h_.Report(Of("n", 1), job, 1, kKilled);
  h_.Report(node_, job, 0, Quiet(3));
  h_.Report(node_, job, 0, RankReady{}, 2);
  Step(job, 4, 2);
  EXPECT_EQ(Holder("s"), JobId{});
  EXPECT_THAT(h_.Commands<PrepareData>(Of("n", 1)), SizeIs(2)) << "once when it started";
}

// A worker that is restarted is back in a moment.
TEST_F(LoanTest, NodeThatIsAwayForAMoment_IsNotGone) {
  const JobId job = TrainOn("n", Borrowing("a", 2));
  h_.Report(Of("n", 1), job, 1, kKilled);
  h_.Report(node_, job, 0, Quiet(3));
  h_.Report(node_, job, 0, RankReady{}, 2);
  h_.Feed(SessionClosed{Of("n", 1)});
  Step(job, 4, 2);
  EXPECT_EQ(Holder("s"), JobId{});
}

class LoanOfSilentNodeTest : public LoanTest {
 protected:
  LoanOfSilentNodeTest() : LoanTest(Harness::Options()) {}
};

TEST_F(LoanOfSilentNodeTest, NodeThatStaysAway_IsGone) {
  const JobId job = TrainOn("n", Borrowing("a", 2));
  h_.Report(Of("n", 1), job, 1, kKilled);
  h_.Report(node_, job, 0, Quiet(3));
  h_.Report(node_, job, 0, RankReady{}, 2);
  h_.Feed(SessionClosed{Of("n", 1)});
  for (int i = 0; i < 4; ++i) {
    for (const SessionId session : {node_, spares_}) h_.Feed(HeartbeatReceived{.session = session});
    h_.Advance(absl::Seconds(5));
  }
  EXPECT_EQ(Holder("s"), job);
}

TEST_F(LoanTest, CordonedNode_IsGone) {
  const JobId job = TrainOn("n", Borrowing("a", 2));
  h_.Report(Of("n", 1), job, 1, kKilled);
  h_.Report(node_, job, 0, Quiet(3));
  h_.Report(node_, job, 0, RankReady{}, 2);
  Mark("n1", NodeMark{.reason = "new fan"});
  EXPECT_EQ(Holder("s"), job);
  Mark("n1", std::nullopt);
  Step(job, 4, 2);
  EXPECT_EQ(Holder("s"), JobId{}) << "its own device was back first";
  EXPECT_THAT(h_.Commands<PrepareData>(Of("n", 1)), SizeIs(2));
}

TEST_F(LoanTest, JobWithoutSpareInItsLadder_AndOneOfAnotherKind_BorrowNothing) {
  JobRequest request = Borrowing("a", 2);
  request.borrows = false;
  JobId job = TrainOn("n", request);
  Lose(job, "n", 1, 2, 3, 1);
  Step(job, 4, 2);
  EXPECT_EQ(Holder("s"), JobId{});
  ASSERT_TRUE(h_.Cancel(job).ok());
  request = Borrowing("b", 2);
  request.node_selector = {{"zone", "x"}};
  h_.Feed(SessionClosed{spares_});
  for (const char* name : {"m0", "m1"}) {
    h_.Feed(SessionOpened{
        sessions_[name] = SessionId{900 + sessions_.size()},
        WorkerHello{
            .node = name, .incarnation = Incarnation{1}, .devices = 1, .labels = {{"zone", "x"}}}});
  }
  spares_ = h_.Open("s", 2, 2);
  job = h_.Submit(std::make_shared<const JobRequest>(request));
  for (const int32_t rank : {0, 1}) h_.Prepare(Of("m", rank));
  for (const int32_t rank : {0, 1}) h_.Report(Of("m", rank), job, rank, RankReady{});
  ASSERT_EQ(h_.Phase(job), JobPhase::kRunning);
  Lose(job, "m", 1, 2, 3, 1);
  EXPECT_EQ(Holder("s"), JobId{});
}

// Its ranks would refuse the layout, and the job would end.
TEST_F(LoanTest, NodeWhoseWorkerIsTooOldForTheLayout_IsNotLent) {
  h_.Feed(SessionClosed{spares_});
  spares_ = h_.OpenOf(plan::kOldestDerivation, "s", 2, /*incarnation=*/2);
  const JobId job = TrainOn("n", Borrowing("a", 3));
  ASSERT_EQ(h_.State(job).layout->derivation, plan::kDerivation);
  Lose(job, "n", 1, 3, 3, 1);
  EXPECT_EQ(Holder("s"), JobId{});
  h_.Replace("s", 2, /*incarnation=*/3);
  EXPECT_EQ(Holder("s"), job);
  h_.Feed(SessionClosed{h_.NodeNamed("s").session});
  h_.OpenOf(plan::kOldestDerivation, "s", 2, /*incarnation=*/4);
  EXPECT_EQ(Holder("s"), JobId{}) << "it is of no use any more";
}

TEST_F(LoanTest, JobWithASpareOfItsOwn_BorrowsNone) {
  JobRequest request = Borrowing("a", 3, "last rank idle");
  request.world = 2;
  for (int32_t rank = 0; rank < 3; ++rank)
    sessions_[absl::StrCat("n", rank)] = h_.Open(absl::StrCat("n", rank), 1);
  const JobId job = h_.Submit(std::make_shared<const JobRequest>(std::move(request)));
  for (int32_t rank = 0; rank < 3; ++rank) h_.Prepare(Of("n", rank));
  for (int32_t rank = 0; rank < 2; ++rank) h_.Report(Of("n", rank), job, rank, RankReady{});
  ASSERT_EQ(h_.Phase(job), JobPhase::kRunning);
  Lose(job, "n", 1, 2, 3, 1);
  ASSERT_THAT(Lost(job), ElementsAre(Rank{1}));
  EXPECT_EQ(Holder("s"), JobId{});
}

TEST_F(LoanTest, FirstJobThatLost_BorrowsFirst) {
  KeepOneInReserve();
  const JobId a = TrainOn("a", Borrowing("a", 2));
  const JobId b = TrainOn("b", Borrowing("b", 2));
  Reserve("s", true);
  h_.Feed(SessionClosed{spares_});
  h_.Advance(absl::Seconds(1));
  Lose(b, "b", 1, 2, 3, 1);
  h_.Advance(absl::Seconds(1));
  Lose(a, "a", 1, 2, 3, 1);
  spares_ = h_.Open("s", 1, 3);
  EXPECT_EQ(Holder("s"), b);
  ASSERT_TRUE(h_.Cancel(b).ok());
  EXPECT_EQ(Holder("s"), a) << "what was only held is given back at once";
}

TEST_F(LoanTest, TwoPlaces_BorrowOnOneNode) {
  const JobId job = TrainOn("n", Borrowing("a", 3));
  Lose(job, "n", 1, 3, 3, 1);
  h_.Report(Of("n", 2), job, 2, RankError{.kind = FailureKind::kDeviceFailed, .message = "XID 79"},
            2);
  h_.Report(node_, job, 0, Quiet(3), 2);
  h_.Report(node_, job, 0, RankReady{}, 3);
  EXPECT_EQ(Holder("s", 0), job);
  EXPECT_EQ(Holder("s", 1), job);
  Step(job, 4, 3);
  h_.Prepare(spares_);
  ASSERT_EQ(h_.State(job).epoch, Epoch{4});
  EXPECT_EQ(Placed(job), "1 on n0, 2 on s");
}

TEST_F(LoanTest, NodeInReserveWithoutTheData_IsNotAskedAgainAndAnotherLends) {
  const SessionId t = h_.Open("t", 1);
  Reserve("t", true);
  const JobId job = TrainOn("n", Borrowing("a", 2));
  Lose(job, "n", 1, 2, 3, 1);
  Step(job, 4, 2);
  h_.Answer<PrepareData>(spares_, {.code = 5, .message = "no such file"});
  EXPECT_THAT(Events(job, "ReturnRefused"),
              ElementsAre("node s is in reserve and has not the job's data: no such file"));
  EXPECT_EQ(Holder("s"), JobId{});
  EXPECT_EQ(Holder("t"), job);
  Step(job, 5, 2);
  EXPECT_THAT(h_.Commands<PrepareData>(spares_), SizeIs(1));
  h_.Prepare(t);
  EXPECT_EQ(Placed(job), "1 on n0, 1 on t");
}

// By a stop that was on its way when the node was asked anew.
TEST_F(LoanTest, PreparationThatWasCalledOff_IsAskedForAgain) {
  const JobId job = TrainOn("n", Borrowing("a", 2));
  Lose(job, "n", 1, 2, 3, 1);
  Step(job, 4, 2);
  h_.Answer<PrepareData>(spares_, {.code = 10, .message = "stopped"});
  EXPECT_THAT(Events(job, "ReturnRefused"), IsEmpty());
  EXPECT_EQ(Holder("s"), job);
  Step(job, 5, 2);
  EXPECT_THAT(h_.Commands<PrepareData>(spares_), SizeIs(2));
}

// The same wherever it comes in a layout, whatever its label says by then.
TEST_F(LoanTest, NodeInTheLayoutAlready_KeepsTheFailureDomainThatItHasThere) {
  uint64_t session = 9000;
  const auto open = [&](const NodeName& name, int32_t devices, const std::string& rack,
                        std::vector<RunningAssignment> running = {}) {
    h_.Feed(SessionOpened{SessionId{++session},
                          WorkerHello{.node = name,
                                      .incarnation = Incarnation{1},
                                      .last_command_number = running.empty() ? 0u : 9u,
                                      .devices = devices,
                                      .labels = {{"phalanx/failure-domain", rack}},
                                      .running = std::move(running)}});
    return SessionId{session};
  };
  for (int32_t rank = 0; rank < 4; ++rank)
    sessions_[absl::StrCat("n", rank)] = open(absl::StrCat("n", rank), 1, "rack-1");
  h_.Feed(SessionClosed{spares_});
  spares_ = open("s", 2, "rack-7");
  const JobId job = h_.Submit(std::make_shared<const JobRequest>(Borrowing("a", 4)));
  for (int32_t rank = 0; rank < 4; ++rank) h_.Prepare(Of("n", rank));
  for (int32_t rank = 0; rank < 4; ++rank) h_.Report(Of("n", rank), job, rank, RankReady{});
  ASSERT_EQ(h_.Phase(job), JobPhase::kRunning);
  node_ = Of("n", 0);
  Lose(job, "n", 1, 4, 3, 1);
  Step(job, 4, 2);
  h_.Prepare(spares_);
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  for (const int32_t rank : {0, 2, 3}) h_.Report(Of("n", rank), job, rank, Quiet(4, rank), 2);
  for (const int32_t rank : {0, 2, 3}) h_.Report(Of("n", rank), job, rank, RankReady{}, 3);
  h_.Report(spares_, job, 1, RankReady{}, 3);
  Step(job, 5, 3);
  h_.Feed(SessionClosed{spares_});
  spares_ = open("s", 2, "rack-8", {{job, Epoch{3}}});
  h_.Report(Of("n", 3), job, 3, RankError{.kind = FailureKind::kDeviceFailed, .message = "XID 79"},
            3);
  h_.Report(spares_, job, 1, Quiet(5, 1), 3);
  for (const int32_t rank : {0, 2}) h_.Report(Of("n", rank), job, rank, Quiet(5, rank), 3);
  for (const int32_t rank : {0, 2}) h_.Report(Of("n", rank), job, rank, RankReady{}, 4);
  h_.Report(spares_, job, 1, RankReady{}, 4);
  Step(job, 6, 4);
  h_.Prepare(spares_);
  ASSERT_EQ(h_.State(job).epoch, Epoch{5});
  const Placement& placement = *h_.State(job).placement;
  ASSERT_THAT(placement, SizeIs(4));
  for (const size_t lent : {1u, 3u}) {
    EXPECT_EQ(placement[lent].node, "s");
    EXPECT_EQ(placement[lent].domain, "rack-7");
  }
}

TEST_F(LoanTest, DeviceInReserveThatIsTooSmall_IsGivenBackAndAnotherLends) {
  h_.Replace("s", 1, 2);
  h_.Feed(SessionClosed{h_.NodeNamed("s").session});
  spares_ = h_.Open("s", 1, 3, {}, 0, {50});
  const SessionId t = h_.Open("t", 1, 1, {}, 0, {200});
  Reserve("t", true);
  const JobId job = TrainOn("n", Borrowing("a", 2, "needs 100 bytes a rank"));
  Lose(job, "n", 1, 2, 3, 1);
  Step(job, 4, 2);
  h_.Prepare(spares_);
  EXPECT_EQ(h_.State(job).epoch, Epoch{2});
  EXPECT_THAT(Events(job, "ReturnRefused"), ElementsAre(HasSubstr("rank 1 needs 100 B")));
  EXPECT_EQ(Holder("s"), JobId{});
  ASSERT_EQ(Holder("t"), job);
  Step(job, 5, 2);
  h_.Prepare(t);
  EXPECT_EQ(Placed(job), "1 on n0, 1 on t");
}

TEST_F(LoanTest, NodeInReserveThatGoesWhileThePlanIsMade_LendsNothing) {
  const JobId job = TrainOn("n", Borrowing("a", 2));
  Lose(job, "n", 1, 2, 3, 1);
  Step(job, 4, 2);
  h_.plans_held = true;
  h_.Prepare(spares_);
  ASSERT_THAT(h_.plans, SizeIs(1));
  h_.Feed(SessionClosed{spares_});
  // Somebody else has the device when the node is there again.
  Reserve("s", false);
  const JobId other = h_.Submit(AJob("b", 2));
  h_.Open("s", 2, 2);
  ASSERT_EQ(Holder("s"), other);
  h_.plans_held = false;
  h_.AnswerPlans();
  h_.Commit();
  EXPECT_EQ(h_.State(job).epoch, Epoch{2});
  EXPECT_THAT(Lost(job), ElementsAre(Rank{1}));
  EXPECT_EQ(Holder("s"), other);
}

TEST_F(LoanTest, JobThatEndsMeanwhile_GivesBackWhatIsHeldForIt) {
  const JobId job = TrainOn("n", Borrowing("a", 2));
  Lose(job, "n", 1, 2, 3, 1);
  Step(job, 4, 2);
  ASSERT_EQ(Holder("s"), job);
  EXPECT_THAT(h_.Explain(job),
              Contains("rank 1 is to go on on device 0 of node s, which is in reserve"));
  ASSERT_TRUE(h_.Cancel(job).ok());
  EXPECT_EQ(Holder("s"), JobId{});
  EXPECT_THAT(h_.Commands<StopRanks>(spares_), SizeIs(1)) << "its preparation ends";
}

TEST_F(LoanTest, LossOnTheWay_LeavesTheLoanForAfter) {
  const JobId job = TrainOn("n", Borrowing("a", 3));
  Lose(job, "n", 1, 3, 3, 1);
  Step(job, 4, 2);
  h_.plans_held = true;
  h_.Prepare(spares_);
  h_.Report(Of("n", 2), job, 2, kKilled, 2);
  h_.plans_held = false;
  h_.AnswerPlans();
  h_.Commit();
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_THAT(Lost(job), ElementsAre(Rank{1}, Rank{2}));
  h_.Report(node_, job, 0, Quiet(4), 2);
  h_.Report(node_, job, 0, RankReady{}, 3);
  EXPECT_EQ(Holder("s"), job);
  Step(job, 5, 3);
  ASSERT_EQ(h_.State(job).epoch, Epoch{4});
  EXPECT_EQ(Placed(job), "1 on n0, 1 on s, 1 on n2");
}

TEST_F(LoanTest, JobThatWaits_GoesOnOnTheLentDeviceAtOnce) {
  JobRequest request = Borrowing("a", 2, "needs every rank");
  request.waits = true;
  const JobId job = TrainOn("n", std::move(request));
  Step(job, 3, 1);
  h_.Report(Of("n", 1), job, 1, RankError{.kind = FailureKind::kDeviceFailed, .message = "XID 79"});
  ASSERT_EQ(Holder("s"), job);
  EXPECT_EQ(h_.State(job).epoch, Epoch{1});
  h_.plans_held = true;
  h_.Prepare(spares_);
  ASSERT_THAT(h_.plans, SizeIs(1));
  EXPECT_THAT(h_.plans[0].lost, ElementsAre(Rank{1}));
  EXPECT_THAT(h_.plans[0].returned, ElementsAre(Rank{1}));
  EXPECT_EQ(h_.plans[0].lent.size(), 1u);
  const uint64_t number = h_.plans[0].number;
  PlanSummary plan{.layout = *h_.State(job).layout, .digest = "whole"};
  plan.layout.epoch = Epoch{2};
  plan.layout.nodes = {{"n0", {0}}, {"s", {0}}};
  h_.plans.clear();
  h_.Feed(PlanComputed{number, plan});
  h_.Commit();
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  EXPECT_THAT(h_.Commands<Assign>(spares_), SizeIs(1));
  h_.Report(node_, job, 0, Quiet(3));
  h_.Report(node_, job, 0, RankReady{}, 2);
  h_.Report(spares_, job, 1, RankReady{}, 2);
  EXPECT_FALSE(h_.machine().jobs().at(job).recovery.has_value());
  EXPECT_THAT(Events(job, "Recovered"), ElementsAre(HasSubstr("a spare takes over rank 1")));
}

// It is where the place was, as copies in memory or in a process out of reach.
TEST_F(LoanTest, JobThatWaitsForStateThatNobodyElseHas_GoesOnOnNoOtherDevice) {
  JobRequest request = Borrowing("a", 2, "needs every rank, copies to hosts");
  request.waits = true;
  const JobId job = TrainOn("n", std::move(request));
  Step(job, 3, 1);
  h_.Report(Of("n", 1), job, 1, RankError{.kind = FailureKind::kDeviceFailed, .message = "XID 79"});
  ASSERT_EQ(Holder("s"), job);
  h_.Prepare(spares_);
  EXPECT_EQ(Holder("s"), JobId{});
  EXPECT_EQ(h_.State(job).epoch, Epoch{1});
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
  // Its own device is repaired.
  sessions_["n1"] = h_.Replace("n1", 1, /*incarnation=*/2);
  EXPECT_THAT(h_.Commands<PrepareData>(Of("n", 1)), SizeIs(1));
  EXPECT_EQ(Holder("s"), JobId{});
}

TEST_F(LoanTest, LentDeviceThatFails_IsReplacedByAnother) {
  const JobId job = TrainOn("n", Borrowing("a", 2));
  Lose(job, "n", 1, 2, 3, 1);
  Step(job, 4, 2);
  h_.Prepare(spares_);
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  h_.Report(node_, job, 0, Quiet(4), 2);
  h_.Report(node_, job, 0, RankReady{}, 3);
  h_.Report(spares_, job, 1, RankReady{}, 3);
  Step(job, 5, 3);
  h_.Report(spares_, job, 1, RankError{.kind = FailureKind::kDeviceFailed, .message = "XID 79"}, 3);
  h_.Report(node_, job, 0, Quiet(5), 3);
  h_.Report(node_, job, 0, RankReady{}, 4);
  EXPECT_EQ(Holder("s", 1), job);
  Step(job, 6, 4);
  h_.Prepare(spares_);
  ASSERT_EQ(h_.State(job).epoch, Epoch{5});
  EXPECT_EQ(Holder("s", 0), JobId{});
  EXPECT_EQ(h_.State(job).placement->back().devices, std::vector<int32_t>{1});
}

TEST_F(LoanTest, Quota_RefusesNoLoanAndIsChargedForAsManyDevicesAsBefore) {
  h_.Feed(QuotasChanged{Quotas{.others = {.devices_max = 2}}});
  const JobId job = TrainOn("n", Borrowing("a", 2));
  Lose(job, "n", 1, 2, 3, 1);
  Step(job, 4, 2);
  h_.Prepare(spares_);
  EXPECT_EQ(h_.State(job).epoch, Epoch{3});
}

}  // namespace
}  // namespace phalanx::coordinator
