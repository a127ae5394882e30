// Which place of a job has what it was lent, as others of its places come and go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "tests/unit/coordinator/machine/lending.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Whose answer comes when the device has been given up and is held for another place.
TEST_F(LoanTest, PlanOfADeviceThatIsLentToAnotherPlaceSince_IsNotTaken) {
  const JobId job = LoseTwoWithOneInReserve();
  ASSERT_THAT(h_.plans, SizeIs(1));
  ASSERT_THAT(h_.plans[0].lent, SizeIs(1));
  EXPECT_TRUE(h_.plans[0].lent.contains(Rank{1}));
  h_.Replace("n1", 1, 2);  // repaired
  ASSERT_TRUE(h_.machine().jobs().at(job).loans.contains(2));
  h_.plans_held = false;
  h_.AnswerPlans();
  h_.Commit();
  EXPECT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_EQ(Holder("s"), job);
  EXPECT_TRUE(h_.machine().jobs().at(job).loans.contains(2));
}

// The planner has it serve where the job needs it most.
TEST_F(LoanTest, LentDeviceThatAnotherPlaceHasInTheLayout_IsHeldForNobodyAnyMore) {
  KeepOneInReserve();
  JobRequest request = Borrowing("a", 3, "needs every rank");
  request.waits = true;
  const JobId job = TrainOn("n", std::move(request));
  Step(job, 3, 1);
  for (const int32_t rank : {1, 2}) {
    h_.Report(Of("n", rank), job, rank,
              RankError{.kind = FailureKind::kDeviceFailed, .message = "XID 79"});
  }
  ASSERT_TRUE(h_.machine().jobs().at(job).loans.contains(1));
  h_.plans_held = true;
  h_.Prepare(spares_);
  ASSERT_THAT(h_.plans, SizeIs(1));
  PlanSummary plan{.layout = *h_.State(job).layout, .digest = "without 1"};
  plan.layout.epoch = Epoch{2};
  plan.layout.nodes = {{"n0", {0}}, {"n2", {0}}, {"s", {0}}};
  plan.layout.lost = {Rank{1}};
  AnswerPlan(std::move(plan));
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  EXPECT_THAT(h_.machine().jobs().at(job).loans, IsEmpty());
  EXPECT_THAT(Events(job, "DeviceLent"),
              ElementsAre("rank 2 goes on on device 0 of node s, which is in reserve, instead of "
                          "device 0 of node n2"));
  EXPECT_EQ(Holder("n1"), JobId{}) << "place 1 is lost on the device of n2";
  h_.Report(node_, job, 0, Quiet(3));
  h_.Report(node_, job, 0, RankReady{}, 2);
  h_.Report(spares_, job, 2, RankReady{}, 2);
  ASSERT_FALSE(h_.machine().jobs().at(job).recovery.has_value());
  Step(job, 4, 2);
  EXPECT_THAT(h_.plans, IsEmpty());
  EXPECT_EQ(Holder("s"), job);
}

// Each on a node of its own, which have the data one after the other.
TEST_F(LoanTest, JobThatWaitsForTwoPlaces_HoldsTheDeviceOfTheFirstUntilTheSecondIsReady) {
  KeepOneInReserve();
  const SessionId t = h_.Open("t", 1);
  Reserve("t", true);
  JobRequest request = Borrowing("a", 3, "needs every rank");
  request.waits = true;
  const JobId job = TrainOn("n", std::move(request));
  Step(job, 3, 1);
  for (const int32_t rank : {1, 2}) {
    h_.Report(Of("n", rank), job, rank,
              RankError{.kind = FailureKind::kDeviceFailed, .message = "XID 79"});
  }
  ASSERT_EQ(Holder("s"), job);
  ASSERT_EQ(Holder("t"), job);
  h_.plans_held = true;
  h_.Prepare(spares_);
  ASSERT_THAT(h_.plans, SizeIs(1));
  ASSERT_THAT(h_.plans[0].lent, SizeIs(1));
  AnswerPlan(absl::FailedPreconditionError("no replica of module language is left"));
  EXPECT_EQ(Holder("s"), job) << "it is too few, not unfit";
  EXPECT_THAT(h_.plans, IsEmpty());
  h_.Prepare(t);
  ASSERT_THAT(h_.plans, SizeIs(1));
  EXPECT_EQ(h_.plans[0].lent.at(Rank{1}), (plan::Device{"s", 0}));
  EXPECT_EQ(h_.plans[0].lent.at(Rank{2}), (plan::Device{"t", 0}));
  AnswerPlan(absl::InvalidArgumentError("rank 2 needs 2 GiB"));
  const std::map<int32_t, plan::Device>& loans = h_.machine().jobs().at(job).loans;
  ASSERT_THAT(loans, SizeIs(2)) << "which of them is to blame nobody knows";
  EXPECT_EQ(loans.at(1).node, "t");
  EXPECT_EQ(loans.at(2).node, "s");
}

// Which were too few.
TEST_F(LoanTest, JobThatWaitsBesideASpareOfItsOwn_BorrowsWhatIsMissing) {
  JobRequest request = Borrowing("a", 4, "needs every rank");
  request.waits = true;
  request.world = 3;
  const JobId job = TrainOn("n", std::move(request));
  Step(job, 3, 1);
  const auto lose = [&](int32_t rank) {
    h_.Report(Of("n", rank), job, rank,
              RankError{.kind = FailureKind::kDeviceFailed, .message = "XID 79"});
  };
  lose(1);
  EXPECT_EQ(Holder("s", 0), JobId{});
  lose(2);
  EXPECT_EQ(Holder("s", 0), job);
  EXPECT_EQ(Holder("s", 1), JobId{});
}

TEST_F(LoanTest, PreparationThatWasCalledOff_IsAskedForAgainWhereNoStepIsDecided) {
  JobRequest request = Borrowing("a", 2, "needs every rank");
  request.waits = true;
  const JobId job = TrainOn("n", std::move(request));
  Step(job, 3, 1);
  h_.Report(Of("n", 1), job, 1, RankError{.kind = FailureKind::kDeviceFailed, .message = "XID 79"});
  ASSERT_THAT(h_.Commands<PrepareData>(spares_), SizeIs(1));
  h_.Answer<PrepareData>(spares_, {.code = 10, .message = "stopped"});
  EXPECT_EQ(Holder("s"), job);
  EXPECT_THAT(h_.Commands<PrepareData>(spares_), SizeIs(2));
}

TEST_F(LoanTest, RankThatCannotBeTakenBackOnItsOwnDevice_BorrowsOne) {
  const JobId job = TrainOn("n", Borrowing("a", 2));
  h_.Report(Of("n", 1), job, 1, kKilled);
  h_.Report(node_, job, 0, Quiet(3));
  h_.Report(node_, job, 0, RankReady{}, 2);
  h_.plans_held = true;
  Step(job, 4, 2);
  h_.Prepare(Of("n", 1));
  for (int64_t step = 5; step < 8; ++step) {
    EXPECT_EQ(Holder("s"), JobId{});
    ASSERT_THAT(h_.plans, SizeIs(1));
    AnswerPlan(absl::InvalidArgumentError("rank 1 needs 2 GiB"));
    if (step < 7) Step(job, step, 2);
  }
  EXPECT_EQ(Holder("s"), job);
}

// The same beside training: who comes is the place that has it.
TEST_F(LoanTest, PlaceThatHasWhatWasLentToAnother_IsTheOneThatComesBack) {
  const JobId job = LoseTwoWithOneInReserve();
  ASSERT_THAT(h_.plans, SizeIs(1));
  PlanSummary plan{.layout = *h_.State(job).layout, .digest = "without 1"};
  plan.layout.epoch = Epoch{4};
  plan.layout.nodes = {{"n0", {0}}, {"n2", {0}}, {"s", {0}}};
  plan.layout.lost = {Rank{1}};
  AnswerPlan(std::move(plan));
  ASSERT_EQ(h_.State(job).epoch, Epoch{4});
  EXPECT_THAT(h_.machine().jobs().at(job).recovery->back, ElementsAre(2));
  EXPECT_THAT(h_.machine().jobs().at(job).loans, IsEmpty());
}

TEST_F(LoanTest, PlaceThatHasAnotherDeviceOfItsJob_GivesItsLoanBack) {
  const JobId job = TrainOn("n", Borrowing("a", 3));
  Lose(job, "n", 1, 3, 3, 1);
  ASSERT_EQ(Holder("s"), job);
  Reserve("s", false);
  EXPECT_EQ(Holder("s"), job);
  h_.plans_held = true;
  h_.Report(Of("n", 2), job, 2, kKilled, 2);
  ASSERT_THAT(h_.plans, SizeIs(1));
  PlanSummary plan{.layout = *h_.State(job).layout, .digest = "without 2"};
  plan.layout.epoch = Epoch{3};
  plan.layout.nodes = {{"n0", {0}}, {"n2", {0}}, {"n1", {0}}};
  plan.layout.lost = {Rank{2}};
  AnswerPlan(std::move(plan));
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  h_.Report(node_, job, 0, Quiet(3), 2);
  h_.Report(node_, job, 0, RankReady{}, 3);
  h_.Report(Of("n", 2), job, 1, RankReady{}, 3);
  ASSERT_FALSE(h_.machine().jobs().at(job).recovery.has_value());
  EXPECT_EQ(Holder("s"), JobId{});
}

}  // namespace
}  // namespace phalanx::coordinator
