// What counts in recovery.budget while ranks come back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "tests/unit/coordinator/machine/recovering.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using job::JobPhase;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class ReturnBudgetTest : public RecoveringTest {
 protected:
  // Rank 1 was lost, which counts, and is being connected in epoch 3.
  JobId LoseOneAndTakeItBack(int32_t budget) {
    node_ = h_.Open("n", 3);
    JobRequest request = *AJobThatRecovers("a", 3);
    request.budget.total = budget;
    const JobId job = h_.Run(node_, std::make_shared<const JobRequest>(std::move(request)));
    h_.Report(node_, job, 1, kKilled);
    GoOver(job, {0, 2}, 3, 1, {0, 2});
    Step(job, 4, 2);
    h_.Prepare(node_);
    EXPECT_EQ(h_.State(job).epoch, Epoch{3});
    EXPECT_THAT(h_.State(job).recoveries, SizeIs(1));
    return job;
  }
};

TEST_F(ReturnBudgetTest, LossWhileAReturnIsPrepared_CountsOnce) {
  const JobId job = LoseOneAndTakeItBack(/*budget=*/3);
  h_.Report(node_, job, 2, kKilled, 2);
  ASSERT_EQ(h_.State(job).epoch, Epoch{4});
  EXPECT_THAT(Lost(job), ElementsAre(Rank{2}));
  EXPECT_THAT(h_.State(job).recoveries, SizeIs(2));
  GoOver(job, {0}, 4, 2, {});
  for (const int32_t rank : {0, 1}) h_.Report(node_, job, rank, RankReady{}, 4);
  Step(job, 5, 4);
  EXPECT_THAT(h_.State(job).recoveries, SizeIs(2));
}

TEST_F(ReturnBudgetTest, LossWhileAReturnIsPrepared_SpendsTheBudget) {
  const JobId job = LoseOneAndTakeItBack(/*budget=*/1);
  h_.Report(node_, job, 2, kKilled, 2);
  ASSERT_EQ(h_.Phase(job), JobPhase::kFailed);
  EXPECT_EQ(h_.State(job).failure->rank, 2);
  EXPECT_THAT(h_.State(job).failure->message,
              HasSubstr("as often as recovery.budget.total allows: 1 times"));
}

TEST_F(ReturnBudgetTest, WhoCameBackAndDiesBeforeItIsConnected_CountsInNone) {
  const JobId job = LoseOneAndTakeItBack(/*budget=*/1);
  h_.Report(node_, job, 1, kKilled, 3);
  ASSERT_EQ(h_.State(job).epoch, Epoch{4});
  EXPECT_THAT(Lost(job), ElementsAre(Rank{1}));
  EXPECT_THAT(h_.State(job).recoveries, SizeIs(1)) << "of the loss before";
}

TEST_F(ReturnBudgetTest, ReturnThatIsNotConnected_CountsInNone_AndALossOnTheWayFromItOnce) {
  const JobId job = LoseOneAndTakeItBack(/*budget=*/2);
  h_.Report(node_, job, 0, RankError{.kind = FailureKind::kPeerLost, .message = "who"}, 3);
  h_.Advance(absl::Seconds(1));
  ASSERT_EQ(h_.State(job).epoch, Epoch{4});
  EXPECT_THAT(h_.State(job).recoveries, SizeIs(1));
  h_.Report(node_, job, 2, kKilled, 2);
  ASSERT_EQ(h_.State(job).epoch, Epoch{5});
  EXPECT_THAT(Lost(job), ElementsAre(Rank{1}, Rank{2}));
  EXPECT_THAT(h_.State(job).recoveries, SizeIs(2));
}

// A coordinator before this one began it; of the loss nobody had stored anything.
TEST_F(ReturnBudgetTest, LossThatARestartedCoordinatorFinds_CountsOnce) {
  const JobId job = LoseOneAndTakeItBack(/*budget=*/3);
  h_.Restart();
  node_ = h_.Open("n", 3, 1, {{job, Epoch{2}}, {job, Epoch{3}}}, 9);
  h_.Report(node_, job, 2, kKilled, 2);
  ASSERT_EQ(h_.State(job).epoch, Epoch{4});
  EXPECT_THAT(h_.State(job).recoveries, SizeIs(2));
}

}  // namespace
}  // namespace phalanx::coordinator
