// Nobody has to leave a layout for ranks that come back: no state is lost of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "tests/unit/coordinator/machine/recovering.h"

namespace phalanx::coordinator {
namespace {

using job::JobPhase;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Rank 0 trains alone on a; 1 on b and 2 on c are to come back.
class KeptStateTest : public RecoveringTest {
 protected:
  void SetUp() override {
    node_ = h_.Open("a", 1);
    b_ = h_.Open("b", 1);
    c_ = h_.Open("c", 1);
    job_ = h_.Submit(AJobThatRecovers("three nodes", 3));
    for (const SessionId node : {node_, b_, c_}) h_.Prepare(node);
    h_.Report(node_, job_, 0, RankReady{});
    h_.Report(b_, job_, 1, RankReady{});
    h_.Report(c_, job_, 2, RankReady{});
    ASSERT_EQ(h_.Phase(job_), JobPhase::kRunning);
    Step(job_, 3, 1);
    h_.Report(b_, job_, 1, kKilled);
    h_.Report(c_, job_, 2, kKilled);
    ASSERT_EQ(h_.State(job_).epoch, Epoch{3});
    h_.Report(node_, job_, 0, Quiet(3), 1);
    h_.Report(node_, job_, 0, RankReady{}, 3);
    ASSERT_THAT(Lost(job_), ElementsAre(Rank{1}, Rank{2}));
    h_.plans_held = true;
    Step(job_, 4, 3);
  }
  void Refuse() {
    ASSERT_THAT(h_.plans, SizeIs(1));
    const uint64_t number = h_.plans[0].number;
    h_.plans.clear();
    h_.Feed(PlanComputed{number, absl::DataLossError("rank 0 alone has some of the state")});
  }
  void Answer() {
    h_.AnswerPlans();
    h_.Commit();
  }

  SessionId b_, c_;
  JobId job_;
};

TEST_F(KeptStateTest, ReturnWithoutWork_ForWhoAloneHasState_IsRefusedOnce) {
  h_.Prepare(b_);
  ASSERT_THAT(h_.plans, SizeIs(1));
  EXPECT_THAT(h_.plans[0].returned, ElementsAre(Rank{1}));
  ASSERT_TRUE(h_.plans[0].kept.has_value());
  EXPECT_EQ(h_.plans[0].kept->layout, h_.State(job_).layout);
  EXPECT_FALSE(h_.plans[0].kept->mirrored) << "the rank has not said that it is safe";
  Refuse();
  EXPECT_THAT(Events(job_, "ReturnRefused"),
              ElementsAre(HasSubstr("ranks 1 cannot be taken back yet: rank 0 alone has some of "
                                    "the state; they stay ready")));
  for (int64_t step = 5; step < 8; ++step) Step(job_, step, 3);
  EXPECT_THAT(h_.plans, IsEmpty()) << "nothing is else";
  EXPECT_EQ(h_.State(job_).epoch, Epoch{3});
  const size_t told = h_.Commands<PrepareData>(b_).size();
  h_.Prepare(c_);
  EXPECT_THAT(h_.Commands<PrepareData>(b_), SizeIs(told)) << "it is warm";
  ASSERT_THAT(h_.plans, SizeIs(1));
  EXPECT_THAT(h_.plans[0].returned, ElementsAre(Rank{1}, Rank{2}));
  Answer();
  EXPECT_EQ(h_.State(job_).epoch, Epoch{4});
  EXPECT_THAT(Lost(job_), IsEmpty());
}

TEST_F(KeptStateTest, ReturnThatIsRefused_IsTriedAgainOnceMirrorsAreFilled) {
  h_.Prepare(b_);
  Refuse();
  h_.Report(node_, job_, 0, RankSafe{}, 3);
  Step(job_, 5, 3);
  ASSERT_THAT(h_.plans, SizeIs(1));
  EXPECT_TRUE(h_.plans[0].kept->mirrored);
  Refuse();
  Step(job_, 6, 3);
  EXPECT_THAT(h_.plans, IsEmpty());
  EXPECT_THAT(Events(job_, "ReturnRefused"), SizeIs(1));
  const auto& jobs = h_.machine().jobs();
  EXPECT_THAT(jobs.at(job_).lost_again, IsEmpty());
}

// Rank 0 would have no work in a layout with rank 1, and has some in one with both.
TEST_F(KeptStateTest, RankThatIsLostOnItsWayBack_LeavesOutThoseThatCannotBeThereWithoutIt) {
  h_.Prepare(b_);
  Refuse();
  h_.Prepare(c_);
  ASSERT_THAT(h_.plans, SizeIs(1));
  Answer();
  ASSERT_EQ(h_.State(job_).epoch, Epoch{4});
  const size_t recoveries = h_.State(job_).recoveries.size();
  h_.Report(c_, job_, 2, kKilled, 4);
  ASSERT_THAT(h_.plans, SizeIs(1));
  EXPECT_THAT(h_.plans[0].lost, ElementsAre(Rank{2}));
  ASSERT_TRUE(h_.plans[0].kept.has_value());
  EXPECT_THAT(h_.plans[0].kept->layout->lost, ElementsAre(Rank{1}, Rank{2}))
      << "the one in which rank 0 trains";
  Refuse();
  ASSERT_THAT(h_.plans, SizeIs(1));
  EXPECT_THAT(h_.plans[0].lost, ElementsAre(Rank{1}, Rank{2}));
  EXPECT_FALSE(h_.plans[0].kept.has_value());
  Answer();
  ASSERT_EQ(h_.State(job_).epoch, Epoch{5});
  h_.commands.clear();
  GoOver(job_, {0}, 6, 3, {});
  h_.Report(node_, job_, 0, RankReady{}, 5);
  EXPECT_THAT(BegunBehind(), ElementsAre(6));
  EXPECT_THAT(h_.State(job_).recoveries, SizeIs(recoveries)) << "nobody who trained is lost";
  h_.commands.clear();
  Step(job_, 7, 5);
  EXPECT_THAT(h_.Commands<PrepareData>(b_), SizeIs(1)) << "its process was of epoch 4";
}

// They had all been connected, and state may have moved to those that came back.
TEST_F(KeptStateTest, RanksThatLoseEachOtherWhileStateMoves_KeepWhoCameBack) {
  h_.Prepare(b_);
  Answer();
  ASSERT_EQ(h_.State(job_).epoch, Epoch{4});
  h_.plans_held = false;
  GoOver(job_, {0}, 4, 3, {});
  ASSERT_TRUE(h_.State(job_).start.has_value());
  h_.Report(node_, job_, 0, RankError{.kind = job::FailureKind::kPeerLost, .message = "broke"}, 4);
  h_.Advance(absl::Seconds(1));
  ASSERT_EQ(h_.State(job_).epoch, Epoch{5});
  EXPECT_THAT(Lost(job_), ElementsAre(Rank{2})) << "rank 1 may have some of the state";
}

}  // namespace
}  // namespace phalanx::coordinator
