// State that processes have lost, and of which the nodes' daemons keep copies.
#include "coordinator/machine/copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "tests/unit/coordinator/machine/recovering.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using job::JobPhase;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CopiesTest : public RecoveringTest {
 protected:
  // On devices of one node.
  JobId Train(const std::string& text, int32_t devices = 2) {
    node_ = h_.Open("n", devices);
    JobRequest request = *AJobThatRecovers("a", devices);
    request.waits = true;
    request.restarts = request.begins_anew = begins_anew_;
    request.document.text = text;
    const JobId job = h_.Run(node_, std::make_shared<const JobRequest>(std::move(request)));
    h_.commands.clear();
    return job;
  }
  // Rank 1 is killed behind step 6, and what it had is nowhere else; its node starts it again.
  JobId Lose() {
    const JobId job = Train("needs every rank, copies to hosts");
    Step(job, 6, 1);
    h_.Report(node_, job, 1, kKilled);
    h_.Report(node_, job, 0, Quiet(6));
    for (const int32_t rank : {0, 1}) h_.Report(node_, job, rank, kNoHome, 2);
    return job;
  }
  void Find(JobId job, int32_t rank, std::vector<RankCopies::Pair> pairs, int64_t epoch = 3) {
    h_.Report(node_, job, rank, RankCopies{std::move(pairs)}, epoch);
  }
  BeginEpoch Begun() { return h_.Commands<BeginEpoch>(node_).back().second; }
  Assign Assigned() { return h_.Commands<Assign>(node_).back().second; }

  bool begins_anew_ = false;
  const RankError kNoHome{.kind = FailureKind::kStateLost, .message = "no home"};
};

TEST_F(CopiesTest, StateThatIsLost_ComesFromTheNewestStepOfWhichAllHaveCopies) {
  const JobId job = Lose();
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_TRUE(Assigned().from_copies);
  EXPECT_TRUE(Assigned().goes_on);
  h_.commands.clear();
  Find(job, 0, {Copied(0, 1, {4, 5})});
  EXPECT_THAT(BegunBehind(), IsEmpty());
  Find(job, 1, {Copied(1, 1, {4, 3})});
  EXPECT_THAT(BegunBehind(), ElementsAre(4));
  ASSERT_TRUE(Begun().copies.has_value());
  EXPECT_EQ(Begun().copies->epoch, Epoch{1});
  EXPECT_EQ(Begun().copies->layout->epoch, Epoch{1});
  EXPECT_EQ(Begun().copies->plan_digest, "plan:2 on n");
  EXPECT_EQ(Begun().start, Behind(4));
  EXPECT_THAT(Events(job, "WentBack"),
              ElementsAre(HasSubstr("back to step 4, which all copies in "
                                    "memory that are left have: 2 steps are")));
  h_.Ready(node_, job, 0, 2, 3);
  EXPECT_THAT(Events(job, "Returned"), SizeIs(1));
  Step(job, 5, 3);
  EXPECT_EQ(h_.views[job]->last_step->step, 5);
  EXPECT_EQ(h_.State(job).copies_epoch, Epoch{1});
}

TEST_F(CopiesTest, RankWithoutAProcess_IsTakenOverOnItsNode) {
  const JobId job = Train("copies to hosts");
  Step(job, 6, 1);
  h_.Report(node_, job, 1, kKilled);
  h_.Report(node_, job, 0, Quiet(6));
  h_.Report(node_, job, 0, kNoHome, 2);
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_THAT(h_.State(job).layout->lost, ElementsAre(Rank{1}));
  Find(job, 0, {Copied(0, 1, {4, 5}), Copied(1, 1, {4, 5})});
  EXPECT_EQ(Begun().start, Behind(5));
}

// It is known beforehand, so nobody has to find that out.
TEST_F(CopiesTest, StateThatIsLeftInCopiesAlone_ComesFromThemAtOnce) {
  const JobId job = Train("copies to hosts, copies alone");
  Step(job, 6, 1);
  h_.Report(node_, job, 1, kKilled);
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  EXPECT_THAT(h_.State(job).layout->lost, ElementsAre(Rank{1}));
  EXPECT_TRUE(Assigned().from_copies);
  EXPECT_TRUE(Assigned().goes_on);
  h_.Report(node_, job, 0, Quiet(6));  // of the epoch before: nobody asks
  EXPECT_THAT(BegunBehind(), IsEmpty());
  Find(job, 0, {Copied(0, 1, {4, 5}), Copied(1, 1, {4, 5})}, 2);
  EXPECT_EQ(Begun().start, Behind(5));
  EXPECT_EQ(Begun().copies->epoch, Epoch{1});
  EXPECT_THAT(Events(job, "StateLost"), IsEmpty());
  h_.Ready(node_, job, 0, 1, 2);
  EXPECT_THAT(Events(job, "Recovered"), SizeIs(1));
  Step(job, 6, 2);
  EXPECT_EQ(h_.views[job]->last_step->step, 6);
}

// Who is left came anew and has nothing: an epoch behind the reported step would give up later
// ones.
TEST_F(CopiesTest, CopiesOfStepsThatNobodyReported_AreTakenWhereNobodyIsLeftWithState) {
  const JobId job = Train("copies to hosts");
  Step(job, 6, 1);
  h_.Report(node_, job, 1, kKilled);
  h_.Report(node_, job, 0, RankQuiet{.context_ok = true});
  EXPECT_THAT(BegunBehind(), IsEmpty());
  EXPECT_THAT(Events(job, "StateLost"), ElementsAre("nobody is left who knows of step 6"));
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  Find(job, 0, {Copied(0, 1, {7, 8}), Copied(1, 1, {7, 8})});
  EXPECT_EQ(Begun().start, Behind(8));
}

// Those who trained have all of the state still, in the layout without it.
TEST_F(CopiesTest, RankThatIsLostAsItEntersOnItsWayBack_CostsNoStep) {
  const JobId job = Train("copies to hosts, copies alone");
  Step(job, 6, 1);
  h_.Report(node_, job, 1, kKilled);
  Find(job, 0, {Copied(0, 1, {6, 5}), Copied(1, 1, {6, 5})}, 2);
  h_.Ready(node_, job, 0, 1, 2);
  Step(job, 7, 2);
  h_.Prepare(node_);
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  GoOver(job, {0}, 7, 2, {0});
  ASSERT_THAT(BegunBehind(), ElementsAre(6, 7));
  h_.Report(node_, job, 1, kKilled, 3);
  ASSERT_EQ(h_.State(job).epoch, Epoch{4});
  EXPECT_FALSE(Assigned().from_copies);
  GoOver(job, {0}, 7, 3, {0});
  EXPECT_THAT(BegunBehind(), ElementsAre(6, 7, 7));
  EXPECT_THAT(Events(job, "WentBack"), SizeIs(1));
}

TEST_F(CopiesTest, LossOnTheWayToCopies_IsOfTheSameRecovery) {
  const JobId job = Train("copies to hosts, copies alone", 3);
  Step(job, 6, 1);
  h_.Report(node_, job, 1, kKilled);
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  EXPECT_TRUE(Assigned().from_copies);
  h_.Report(node_, job, 2, kKilled, 2);
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_TRUE(Assigned().from_copies);
  EXPECT_THAT(h_.State(job).recoveries, SizeIs(1));
}

// It was told too late for the epoch that began without the other alone. Its daemon has started
// another process for that, and so the loss was once no loss.
TEST_F(CopiesTest, DeathInTheEpochThatIsLeft_IsALossHoweverLateItIsTold) {
  const JobId job = Train("copies to hosts, copies alone", 3);
  Step(job, 6, 1);
  h_.Report(node_, job, 1, kKilled);
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  h_.Report(node_, job, 1, RankDied{}, 1);
  h_.Report(node_, job, 0, RankExited{.expected = true}, 1);
  ASSERT_EQ(h_.State(job).epoch, Epoch{2}) << "what is known, and what was ordered, is none";
  h_.Report(node_, job, 2, RankDied{}, 1);
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_TRUE(Assigned().from_copies);
  EXPECT_THAT(h_.State(job).layout->lost, ElementsAre(Rank{1}, Rank{2}));
  h_.Report(node_, job, 2, kKilled, 1);
  EXPECT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_THAT(h_.State(job).recoveries, SizeIs(1));
}

// As where a module has restarted on nodes that have not all of the copies.
TEST_F(CopiesTest, StateThatIsNotWhereTrainingGoesOn_IsWaitedFor) {
  const JobId job = Train("copies to hosts");
  Step(job, 6, 1);
  h_.Report(node_, job, 1, kKilled);
  h_.Report(node_, job, 0, Quiet(6));
  h_.Report(node_, job, 0, kNoHome, 2);
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  Find(job, 0, {Copied(0, 1, {4, 5})});
  h_.Report(node_, job, 0, kNoHome, 3);
  ASSERT_EQ(h_.Phase(job), JobPhase::kRunning);
  EXPECT_THAT(Events(job, "Waiting"), SizeIs(1));
  // Its node is there.
  ASSERT_EQ(h_.State(job).epoch, Epoch{4});
  EXPECT_TRUE(Assigned().from_copies);
  EXPECT_THAT(h_.State(job).layout->lost, IsEmpty());
  for (const int32_t rank : {0, 1}) Find(job, rank, {Copied(rank, 1, {4, 5})}, 4);
  EXPECT_EQ(Begun().start, Behind(5));
}

// They save six steps.
TEST_F(CopiesTest, CopiesThatMayComeBack_AreAwaitedBeforeAJobBeginsAnew) {
  begins_anew_ = true;
  const JobId job = Train("copies to hosts");
  Step(job, 6, 1);
  h_.Report(node_, job, 1, kKilled);
  h_.Report(node_, job, 0, Quiet(6));
  h_.Report(node_, job, 0, kNoHome, 2);
  Find(job, 0, {Copied(0, 1, {4, 5})});
  h_.Report(node_, job, 0, kNoHome, 3);
  ASSERT_EQ(h_.State(job).epoch, Epoch{4});
  EXPECT_TRUE(Assigned().from_copies);
}

TEST_F(CopiesTest, DaemonThatIsGone_HasTakenItsCopiesWithIt) {
  const JobId job = Train("needs every rank, copies to hosts");
  Step(job, 6, 1);
  node_ = h_.Replace("n", 2, 2);
  h_.Advance(absl::Seconds(4));
  h_.Prepare(node_);
  ASSERT_EQ(h_.State(job).epoch, Epoch{2}) << h_.State(job).reason;
  for (const int32_t rank : {0, 1}) h_.Report(node_, job, rank, kNoHome, 2);
  // There is no checkpoint either.
  EXPECT_EQ(h_.Phase(job), JobPhase::kFailed);
  EXPECT_EQ(h_.State(job).failure->kind, FailureKind::kStateLost);
}

TEST_F(CopiesTest, NoStepOfWhichAllHaveCopies_IsTheNextRung) {
  const JobId job = Lose();
  Find(job, 0, {Copied(0, 1, {4, 5})});
  Find(job, 1, {Copied(1, 1, {})});
  EXPECT_EQ(h_.Phase(job), JobPhase::kFailed);
  EXPECT_THAT(h_.State(job).failure->message, HasSubstr("no step of whose state"));
}

TEST_F(CopiesTest, CopiesThatCannotBeTaken_AreTheNextRung) {
  const JobId job = Lose();
  for (const int32_t rank : {0, 1}) Find(job, rank, {Copied(rank, 1, {4, 5})});
  ASSERT_EQ(Begun().start, Behind(5));
  h_.Report(node_, job, 1, kNoHome, 3);
  EXPECT_EQ(h_.Phase(job), JobPhase::kFailed);
  EXPECT_EQ(h_.State(job).failure->kind, FailureKind::kStateLost);
}

TEST_F(CopiesTest, RankThatIsLostOnTheWay_BeginsAgainFromTheSame) {
  const JobId job = Lose();
  Find(job, 0, {Copied(0, 1, {4, 5})});
  h_.Report(node_, job, 1, kKilled, 3);
  ASSERT_EQ(h_.State(job).epoch, Epoch{4});
  EXPECT_TRUE(Assigned().from_copies);
  for (const int32_t rank : {0, 1}) Find(job, rank, {Copied(rank, 1, {4, 5})}, 4);
  EXPECT_EQ(Begun().start, Behind(5));
  // And once more where it is known from where.
  h_.Report(node_, job, 0, kKilled, 4);
  ASSERT_EQ(h_.State(job).epoch, Epoch{5});
  for (const int32_t rank : {0, 1}) Find(job, rank, {Copied(rank, 1, {4, 5})}, 5);
  EXPECT_EQ(Begun().start, Behind(5));
  h_.Ready(node_, job, 0, 2, 5);
  EXPECT_THAT(Events(job, "Returned"), SizeIs(1));
}

TEST_F(CopiesTest, CoordinatorThatRestartsBeforeItIsKnownFromWhere_AsksAgain) {
  const JobId job = Lose();
  Find(job, 0, {Copied(0, 1, {4, 5})});
  h_.Restart();
  node_ = h_.Open("n", 2, 1, {{job, Epoch{3}}}, 100);
  for (const int32_t rank : {0, 1}) Find(job, rank, {Copied(rank, 1, {4, 5})});
  EXPECT_EQ(Begun().start, Behind(5));
  EXPECT_EQ(Begun().copies->layout->epoch, Epoch{1});
  h_.Ready(node_, job, 0, 2, 3);
  EXPECT_THAT(Events(job, "Returned"), SizeIs(1)) << "as without another coordinator";
}

TEST_F(CopiesTest, CoordinatorThatRestartsBeforeItHasToldFromWhere_TellsTheSame) {
  const JobId job = Lose();
  for (const int32_t rank : {0, 1}) Find(job, rank, {Copied(rank, 1, {4, 5})});
  h_.Restart();
  node_ = h_.Open("n", 2, 1, {{job, Epoch{3}}}, 100);
  EXPECT_EQ(Begun().start, Behind(5));
  ASSERT_TRUE(Begun().copies.has_value());
  EXPECT_EQ(Begun().copies->epoch, Epoch{1});
}

// Lost again before it has copies of its own, it goes back to those of before: none of steps that
// were done again.
TEST_F(CopiesTest, SecondLoss_TakesCopiesOfTheEpochBeforeOrOfThisOne) {
  const JobId job = Lose();
  for (const int32_t rank : {0, 1}) Find(job, rank, {Copied(rank, 1, {4, 5})});
  h_.Ready(node_, job, 0, 2, 3);
  Step(job, 7, 3);
  h_.Report(node_, job, 1, kKilled, 3);
  h_.Report(node_, job, 0, Quiet(7), 3);
  for (const int32_t rank : {0, 1}) h_.Report(node_, job, rank, kNoHome, 4);
  ASSERT_EQ(h_.State(job).epoch, Epoch{5});
  Find(job, 0, {Copied(0, 1, {4, 5, 6}), Copied(0, 3, {6})}, 5);
  Find(job, 1, {Copied(1, 1, {4, 5, 6}), Copied(1, 3, {})}, 5);
  EXPECT_EQ(Begun().start, Behind(5));
  EXPECT_EQ(Begun().copies->epoch, Epoch{1});
}

TEST(ChooseCopiesTest, CopiesOfTheNewestEpochThatHasAny_AreChosen) {
  plan::Layout layout;
  layout.modules.push_back({.state_home = job::StateHome::kHost, .state_copies = 2});
  CopiedEpochs epochs;
  for (const int64_t epoch : {1, 2, 4}) {
    layout.epoch = Epoch{epoch};
    epochs.Planned({.layout = layout, .plan_digest = "0123456789abcdef0000"}, false);
  }
  constexpr uint64_t kPlan = 0x0123456789abcdef;
  const auto pair = [](int32_t rank, int64_t epoch, std::vector<int64_t> steps) {
    RankCopies::Pair made = Copied(rank, epoch, steps);
    for (RankCopies::Copy& copy : made.copies) copy.plan = kPlan;
    return made;
  };
  EXPECT_FALSE(ChooseCopies(epochs, {}).has_value());
  EXPECT_FALSE(ChooseCopies(epochs, {{0, {{Copied(0, 1, {3})}}}}).has_value()) << "another plan";
  const auto chosen =
      ChooseCopies(epochs, {{0, {{pair(0, 2, {7, 6}), pair(0, 4, {9}), pair(2, 2, {6, 7})}}},
                            {1, {{pair(1, 1, {2, 3}), pair(1, 2, {6, 7}), pair(1, 4, {8})}}}});
  ASSERT_TRUE(chosen.has_value());
  EXPECT_EQ(chosen->epoch, Epoch{2});
  EXPECT_EQ(chosen->start.step(), 7);
  // A step whose decision ranks tell differently is of none.
  RankCopies::Pair other = pair(1, 4, {9});
  other.copies[0].start.decision->gradient_scale = 0.25;
  EXPECT_FALSE(ChooseCopies(epochs, {{0, {{pair(0, 4, {9})}}}, {1, {{other}}}}).has_value());
  // Its loss may be no number.
  RankCopies::Pair skipped = pair(0, 4, {9});
  skipped.copies[0].start.decision->loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(ChooseCopies(epochs, {{0, {{skipped}}}, {1, {{skipped}}}}).has_value());
  // Epoch 5 began behind step 6: what came later was done again.
  epochs.Began(Epoch{5}, 6);
  EXPECT_EQ(ChooseCopies(epochs, {{0, {{pair(0, 2, {7, 6})}}}})->start.step(), 6);
  // It goes back to a checkpoint: nothing of before counts.
  layout.epoch = Epoch{6};
  epochs.Planned({.layout = layout}, true);
  EXPECT_THAT(epochs.all(), SizeIs(1));
}

// As where one try after the other to begin from the copies of epoch 1 ends early.
TEST(ChooseCopiesTest, EpochsThatDoNoStep_PushNoneOut) {
  plan::Layout layout;
  layout.modules.push_back({.state_home = job::StateHome::kHost, .state_copies = 2});
  CopiedEpochs epochs;
  layout.epoch = Epoch{1};
  epochs.Planned({.layout = layout}, true);
  const auto try_again = [&](int64_t epoch) {
    layout.epoch = Epoch{epoch};
    epochs.Planned({.layout = layout, .state_epoch = Epoch{1}, .from_copies = true}, false);
  };
  for (int64_t epoch = 2; epoch <= 19; ++epoch) {
    try_again(epoch);
    if (epoch % 2 == 0) epochs.Began(Epoch{epoch}, 5);
  }
  try_again(20);
  const std::map<int32_t, RankCopies> found = {{0, {{Copied(0, 1, {4, 5}), Copied(0, 20, {6})}}}};
  ASSERT_TRUE(ChooseCopies(epochs, found).has_value());
  EXPECT_EQ(ChooseCopies(epochs, found)->epoch, Epoch{1});
  // Planned once more, it is what it was.
  epochs.Began(Epoch{20}, 5);
  try_again(20);
  EXPECT_EQ(ChooseCopies(epochs, found)->epoch, Epoch{20});
  try_again(21);
  EXPECT_EQ(ChooseCopies(epochs, found)->start.step(), 6);
}

}  // namespace
}  // namespace phalanx::coordinator
