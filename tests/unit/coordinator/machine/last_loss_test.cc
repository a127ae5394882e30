// A job that fails of a death says how the process ended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/unit/coordinator/machine/recovering.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using job::JobPhase;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// A death is known before how the process ended, and it is the end of the job.
class LastLossTest : public RecoveringTest {
 protected:
  // Rank 2 dies; ranks that are left have no other chance.
  JobId LoseTheLast(const std::function<void(JobRequest&)>& alter) {
    node_ = h_.Open("n", 3);
    JobRequest request = *AJobThatRecovers("a", 3);
    alter(request);
    const JobId job = h_.Run(node_, std::make_shared<const JobRequest>(std::move(request)));
    h_.Report(node_, job, 2, RankDied{});
    // What its peers say of it is no cause beside that.
    h_.Report(node_, job, 0, RankError{.kind = FailureKind::kPeerLost, .accused = 2});
    h_.Report(node_, job, 1, RankError{.kind = FailureKind::kNonFinite, .message = "loss"});
    h_.Advance(absl::Seconds(1));
    EXPECT_EQ(h_.Phase(job), JobPhase::kRunning) << "how it ended is not told";
    return job;
  }
  JobId LoseBeyondTheBudget() {
    return LoseTheLast([](JobRequest& request) { request.budget.total = 0; });
  }
};

TEST_F(LastLossTest, BudgetThatIsSpent_WaitsForHowTheProcessEnded) {
  const JobId job = LoseBeyondTheBudget();
  h_.Report(node_, job, 2, RankExited{.exit_code = 3, .log_tail = "its last line"});
  ASSERT_EQ(h_.Phase(job), JobPhase::kFailed);
  const FailureCause& cause = *h_.State(job).failure;
  EXPECT_EQ(cause.kind, FailureKind::kRankExited);
  EXPECT_EQ(cause.exit_code, 3);
  EXPECT_THAT(cause.message, AllOf(HasSubstr("exited with code 3"), EndsWith("\nits last line")));
  EXPECT_THAT(h_.State(job).reason, HasSubstr("recovery.budget.total allows: 0 times"));
  EXPECT_THAT(Events(job, "Verdict"), ElementsAre(HasSubstr("RankExited (certain)")));
}

TEST_F(LastLossTest, LayoutThatIsNone_WaitsForHowTheProcessEnded) {
  const JobId job =
      LoseTheLast([](JobRequest& request) { request.document.text = "needs every rank"; });
  h_.Report(node_, job, 2, RankExited{.signal = 6});
  ASSERT_EQ(h_.Phase(job), JobPhase::kFailed);
  EXPECT_EQ(h_.State(job).failure->kind, FailureKind::kRankCrashed);
  EXPECT_THAT(h_.State(job).reason, HasSubstr("what is left cannot go on"));
  EXPECT_THAT(Events(job, "Verdict"), ElementsAre(HasSubstr("RankCrashed (certain)")));
  EXPECT_THAT(h_.State(job).incidents, SizeIs(1)) << "it is one death";
}

// What is known by then is told, and nothing is tried meanwhile.
TEST_F(LastLossTest, ReturnMeanwhile_IsTooLate) {
  const JobId job =
      LoseTheLast([](JobRequest& request) { request.document.text = "needs every rank"; });
  h_.Feed(SessionClosed{node_});
  node_ = h_.Open("n", 3, 1, {{job, h_.State(job).epoch}}, 4);
  EXPECT_EQ(h_.State(job).epoch, Epoch{1});
  h_.Report(node_, job, 2, RankExited{.signal = 9});
  ASSERT_EQ(h_.Phase(job), JobPhase::kFailed);
  EXPECT_THAT(Events(job, "Verdict"), ElementsAre(HasSubstr("RankKilled (certain)")));
}

TEST_F(LastLossTest, ExitThatNobodyTells_IsNotAwaitedForLong) {
  const JobId job = LoseBeyondTheBudget();
  h_.Advance(Harness::Options().exit_timeout);
  ASSERT_EQ(h_.Phase(job), JobPhase::kFailed);
  EXPECT_EQ(h_.State(job).failure->kind, FailureKind::kRankKilled);
  EXPECT_EQ(h_.State(job).failure->rank, 2);
}

}  // namespace
}  // namespace phalanx::coordinator
