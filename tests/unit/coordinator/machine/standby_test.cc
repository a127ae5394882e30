// Communicators for a loss that are made before it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/machine/recovering.h"

namespace phalanx::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class StandbyTest : public RecoveringTest {
 protected:
  // Trains on three devices of one node, whose ranks make standby communicators.
  JobId TrainWithStandby(const std::string& name = "a", const std::string& text = "text") {
    node_ = h_.Open("n", 3);
    JobRequest request = *AJobThatRecovers(name, 3);
    request.document.text = text;
    request.standby = true;
    const JobId job = h_.Run(node_, std::make_shared<const JobRequest>(std::move(request)));
    h_.commands.clear();
    return job;
  }
  std::vector<PrepareStandby> Ordered() {
    std::vector<PrepareStandby> orders;
    for (const auto& [number, order] : h_.Commands<PrepareStandby>(node_)) orders.push_back(order);
    return orders;
  }
  void Say(JobId job, std::vector<int32_t> ranks, const std::string& set,
           const std::string& error = "", int64_t epoch = 1) {
    for (const int32_t rank : ranks) h_.Report(node_, job, rank, RankStandby{set, error}, epoch);
  }
  // All sets of epoch 1, made by all of their ranks.
  void MakeAll(JobId job) {
    const std::vector<std::vector<int32_t>> ranks = {{1, 2}, {0, 2}, {0, 1}};
    for (size_t lost = 0; lost < ranks.size(); ++lost) {
      ASSERT_THAT(Ordered(), SizeIs(lost + 1));
      Say(job, ranks[lost], Ordered().back().set);
    }
  }
  void Pass(absl::Duration duration) {
    for (absl::Duration passed; passed < duration; passed += absl::Seconds(5)) {
      h_.Advance(absl::Seconds(5));
      h_.Feed(HeartbeatReceived{.session = node_});
    }
  }
  std::string Assigned() { return h_.Commands<Assign>(node_).back().second.standby; }
};

TEST_F(StandbyTest, LossOfEachRank_IsPlannedOnceTheOneBeforeIsMade) {
  const JobId job = TrainWithStandby();
  h_.plans_held = true;
  EXPECT_THAT(h_.plans, IsEmpty()) << "no step of the epoch is done";
  Step(job, 1, 1);
  Step(job, 2, 1);
  ASSERT_THAT(h_.plans, SizeIs(1)) << "one at a time";
  EXPECT_TRUE(h_.plans[0].standby);
  EXPECT_THAT(h_.plans[0].lost, ElementsAre(Rank{0}));
  h_.plans_held = false;
  h_.AnswerPlans();
  ASSERT_THAT(Ordered(), SizeIs(1));
  EXPECT_EQ(Ordered()[0].epoch, Epoch{1});
  EXPECT_THAT(Ordered()[0].layout->lost, ElementsAre(Rank{0}));
  Step(job, 3, 1);
  Say(job, {1}, Ordered()[0].set);
  EXPECT_THAT(Ordered(), SizeIs(1)) << "rank 2 has not said that it has them";
  Say(job, {2}, Ordered()[0].set);
  ASSERT_THAT(Ordered(), SizeIs(2));
  EXPECT_THAT(Ordered()[1].layout->lost, ElementsAre(Rank{1}));
  EXPECT_NE(Ordered()[1].set, Ordered()[0].set);
  Say(job, {0}, Ordered()[1].set, "no memory");
  ASSERT_THAT(Ordered(), SizeIs(3)) << "one that failed holds up no other";
  Say(job, {0, 1}, Ordered()[2].set);
  Step(job, 4, 1);
  EXPECT_THAT(Ordered(), SizeIs(3));
  EXPECT_THAT(h_.plans, IsEmpty());
  EXPECT_THAT(Events(job, "StandbyReady"),
              ElementsAre("communicators are there for the loss of any one of ranks 0, 2"));
}

TEST_F(StandbyTest, SetThatFails_IsTriedOnceMoreAfterAWhile) {
  const JobId job = TrainWithStandby();
  Step(job, 1, 1);
  Say(job, {1, 2}, Ordered()[0].set);
  Say(job, {0}, Ordered()[1].set, "no memory");
  Say(job, {0, 1}, Ordered()[2].set);
  EXPECT_THAT(Events(job, "StandbyMissing"),
              ElementsAre("communicators for the loss of rank 1 are not there: rank 0: no memory; "
                          "they are tried once more in 1m"));
  Pass(Harness::Options().standby_retry_delay - absl::Seconds(5));
  EXPECT_THAT(Ordered(), SizeIs(3));
  Pass(absl::Seconds(5));
  ASSERT_THAT(Ordered(), SizeIs(4));
  EXPECT_THAT(Ordered()[3].layout->lost, ElementsAre(Rank{1}));
  EXPECT_NE(Ordered()[3].set, Ordered()[1].set) << "what was said of the first is no answer";
  Say(job, {0, 2}, Ordered()[3].set);
  EXPECT_THAT(Events(job, "StandbyReady").back(), HasSubstr("any one of ranks 0, 1, 2"));
  EXPECT_THAT(Events(job, "StandbyMissing"), SizeIs(1));
  h_.Report(node_, job, 1, kKilled);
  EXPECT_EQ(Assigned(), Ordered()[3].set);
}

TEST_F(StandbyTest, SetThatNobodyAnswersFor_HoldsUpNoOther) {
  const JobId job = TrainWithStandby();
  const absl::Duration patience = Harness::Options().standby_timeout;
  Step(job, 1, 1);
  Say(job, {1}, Ordered()[0].set);
  Pass(patience - absl::Seconds(5));
  EXPECT_THAT(Ordered(), SizeIs(1));
  Pass(absl::Seconds(5));
  ASSERT_THAT(Ordered(), SizeIs(2));
  Say(job, {2}, Ordered()[0].set);  // too late
  Say(job, {0, 2}, Ordered()[1].set);
  Say(job, {0, 1}, Ordered()[2].set);
  EXPECT_THAT(Events(job, "StandbyReady").back(), HasSubstr("any one of ranks 1, 2"));
  EXPECT_THAT(Events(job, "StandbyMissing"),
              ElementsAre(HasSubstr("the loss of rank 0 are not there: rank 2 did not make them "
                                    "within 2m; they are tried once more")));
  Pass(Harness::Options().standby_retry_delay);
  ASSERT_THAT(Ordered(), SizeIs(4));
  Pass(patience);
  EXPECT_THAT(Events(job, "StandbyMissing").back(), HasSubstr("they are not tried again"));
  Pass(absl::Minutes(5));
  Step(job, 2, 1);
  EXPECT_THAT(Ordered(), SizeIs(4));
}

TEST_F(StandbyTest, Loss_IsAssignedWithTheCommunicatorsThatItsRanksHave) {
  const JobId job = TrainWithStandby();
  Step(job, 1, 1);
  MakeAll(job);
  h_.Report(node_, job, 1, kKilled);
  EXPECT_EQ(h_.State(job).epoch, Epoch{2});
  EXPECT_EQ(Assigned(), Ordered()[1].set);
  EXPECT_EQ(h_.State(job).standby, Ordered()[1].set) << "stored with the epoch";
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, Quiet(1, rank));
  for (const int32_t rank : {0, 2})
    h_.Report(node_, job, rank, RankReady{.connected = 0.004, .state = 0.02, .ready = 0.03}, 2);
  EXPECT_THAT(Events(job, "Recovered"),
              ElementsAre(HasSubstr(", standby communicators after 0.0")));
  // Those of the next epoch come from ranks that have not made any for it yet.
  Step(job, 2, 2);
  ASSERT_THAT(Ordered(), SizeIs(4));
  EXPECT_EQ(Ordered()[3].epoch, Epoch{2});
  h_.Report(node_, job, 2, kKilled, 2);
  EXPECT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_EQ(Assigned(), "");
}

TEST_F(StandbyTest, SetThatOneRankHasNot_IsNotUsed) {
  const JobId job = TrainWithStandby();
  Step(job, 1, 1);
  Say(job, {1}, Ordered()[0].set);
  Say(job, {0, 2}, "of nobody");
  h_.Report(node_, job, 0, kKilled);
  EXPECT_EQ(h_.State(job).epoch, Epoch{2});
  EXPECT_EQ(Assigned(), "");
  Say(job, {2}, Ordered()[0].set);  // too late
  EXPECT_EQ(Assigned(), "");
}

TEST_F(StandbyTest, SecondLoss_IsAssignedWithout) {
  const JobId job = TrainWithStandby();
  Step(job, 1, 1);
  MakeAll(job);
  h_.Report(node_, job, 1, kKilled);
  ASSERT_EQ(Assigned(), Ordered()[1].set);
  h_.Report(node_, job, 2, kKilled, 2);
  EXPECT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_EQ(Assigned(), "");
}

TEST_F(StandbyTest, TwoLossesAtOnce_AreAssignedWithout) {
  const JobId job = TrainWithStandby();
  Step(job, 1, 1);
  MakeAll(job);
  h_.plans_held = true;
  h_.Report(node_, job, 1, kKilled);
  h_.Report(node_, job, 2, kKilled);
  h_.plans_held = false;
  h_.AnswerPlans();
  h_.Commit();
  EXPECT_EQ(h_.State(job).epoch, Epoch{2});
  EXPECT_EQ(Assigned(), "");
}

TEST_F(StandbyTest, LayoutThatIsPlannedOtherwise_IsAssignedWithout) {
  const JobId job = TrainWithStandby();
  Step(job, 1, 1);
  MakeAll(job);
  h_.plans_held = true;
  h_.Report(node_, job, 1, kKilled);
  ASSERT_THAT(h_.plans, SizeIs(1));
  PlanSummary other{.layout = **h_.plans[0].layout, .digest = "another"};
  other.layout.epoch = Epoch{2};
  other.layout.lost = {Rank{1}};
  h_.Feed(PlanComputed{h_.plans[0].number, other});
  EXPECT_EQ(h_.State(job).epoch, Epoch{2});
  EXPECT_EQ(Assigned(), "");
}

TEST_F(StandbyTest, Loss_ComesBeforeAPlanForOthers) {
  const JobId job = TrainWithStandby();
  h_.plans_held = true;
  Step(job, 1, 1);
  ASSERT_THAT(h_.plans, SizeIs(1));
  const uint64_t number = h_.plans[0].number;
  h_.Report(node_, job, 2, kKilled);
  EXPECT_THAT(h_.dropped_plans, ElementsAre(number));
  h_.plans_held = false;
  h_.AnswerPlans();
  h_.Commit();
  EXPECT_EQ(h_.State(job).epoch, Epoch{2});
  EXPECT_THAT(Ordered(), IsEmpty()) << "of an epoch that is over";
}

TEST_F(StandbyTest, LossWithoutALayout_HasNone) {
  const JobId job = TrainWithStandby("b", "needs every rank");
  Step(job, 1, 1);
  Step(job, 2, 1);
  EXPECT_THAT(h_.plans, IsEmpty());
  EXPECT_THAT(Ordered(), IsEmpty());
}

TEST_F(StandbyTest, JobThatWantsNone_HasNone) {
  const JobId job = Train();
  Step(job, 1, 1);
  EXPECT_THAT(Ordered(), IsEmpty());
}

TEST_F(StandbyTest, RankThatIsBack_IsConnectedAnew) {
  const JobId job = TrainWithStandby();
  Step(job, 1, 1);
  MakeAll(job);
  h_.Report(node_, job, 1, kKilled);
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, Quiet(1, rank));
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, RankReady{}, 2);
  Step(job, 2, 2);
  h_.Prepare(node_);
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_EQ(Assigned(), "");
}

// Whoever has what it asks for says so at once.
TEST_F(StandbyTest, CoordinatorThatRestarts_AsksForTheSameAgain) {
  const JobId job = TrainWithStandby();
  Step(job, 1, 1);
  MakeAll(job);
  const std::string first = Ordered()[0].set;
  h_.Restart();
  node_ = h_.Open("n", 3, 1, {{job, Epoch{1}}}, 100);
  Step(job, 2, 1);
  ASSERT_THAT(Ordered(), SizeIs(1));
  EXPECT_EQ(Ordered()[0].set, first);
  h_.Report(node_, job, 0, kKilled);
  EXPECT_EQ(h_.State(job).epoch, Epoch{2});
  EXPECT_EQ(Assigned(), "") << "it has not heard that they are there";
}

}  // namespace
}  // namespace phalanx::coordinator
