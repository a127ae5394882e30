#include "core/plan/copy_takers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/specs.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::Llama;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

TEST(CopyTakersTest, FirstRankOfANode_TakesAllThatNobodyElseThereHasMade) {
  Plan plan = MustPlan(AJob().Module("language", Llama({.layers = 2}), {.tp = 2, .pp = 2}));
  plan.layout.nodes = {{"a", {0, 1}}, {"b", {0, 1}}};
  EXPECT_THAT(CopiesToTake(plan, Rank{0}), ElementsAreArray(Ranks({0, 2, 3})));
  EXPECT_THAT(CopiesToTake(plan, Rank{1}), ElementsAreArray(Ranks({1})));
  EXPECT_THAT(CopiesToTake(plan, Rank{2}), ElementsAreArray(Ranks({2, 0, 1})));
  EXPECT_THAT(CopiesToTake(plan, Rank{3}), ElementsAreArray(Ranks({3})));
}

// Rank 1 was on node a until the spare on node b took its place: its copies are on node a still.
TEST(CopyTakersTest, CopiesOfARankThatHasMoved_AreTakenWhereTheyAre) {
  Plan plan = MustPlan(AJob().Module("language", Llama({.layers = 2}), {.pp = 2}));
  plan.layout.nodes = {{"a", {0}}, {"b", {0}}, {"a", {1}}};
  EXPECT_THAT(CopiesToTake(plan, Rank{0}), ElementsAreArray(Ranks({0, 1, 2})));
  EXPECT_THAT(CopiesToTake(plan, Rank{1}), ElementsAreArray(Ranks({1, 0, 2})));
}

class InheritedCopiesTest : public ::testing::Test {
 protected:
  static constexpr Rank kSpare{2};
  // Two stages on a node each.
  InheritedCopiesTest()
      : before_(MustPlan(AJob().Module("language", Llama({.layers = 2}), {.pp = 2}))),
        next_(before_) {
    before_.layout.nodes = {{"a", {0}}, {"b", {0}}, {"c", {0}}};
    next_.layout.nodes = before_.layout.nodes;
  }

  Plan before_, next_;
};

TEST_F(InheritedCopiesTest, RankWhoseNodeHasNoWorkAnyMore_TakesItsOwnFromThere) {
  next_.layout.nodes = {{"a", {0}}, {"c", {0}}, {"b", {0}}};
  EXPECT_THAT(CopiesToInherit(before_, next_, {kSpare}),
              ElementsAre(InheritedCopies{.of = Rank{1}, .keeper = kSpare, .taker = Rank{1}}));
}

TEST_F(InheritedCopiesTest, NodesThatGiveNothing_LeaveNothing) {
  EXPECT_THAT(CopiesToInherit(before_, next_, {}), IsEmpty());
  EXPECT_THAT(CopiesToInherit(before_, next_, {Rank{1}}), IsEmpty()) << "it has work";
  EXPECT_THAT(CopiesToInherit(before_, next_, {kSpare}), IsEmpty()) << "nobody trained there";
  EXPECT_THAT(CopiesToInherit(before_, next_, {Rank{-1}, Rank{9}}), IsEmpty()) << "no places";
}

TEST_F(InheritedCopiesTest, CopiesOfRanksWithoutAPlace_GoToOthersInTurn) {
  before_ = MustPlan(AJob().Module("language", Llama({.layers = 2}), {.tp = 4, .pp = 2}));
  before_.layout.nodes = {{"a", {0, 1, 2, 3}}, {"b", {0, 1, 2, 3}}};
  // Two ranks of node a go on with what eight had.
  next_ = MustPlan(AJob().Module("language", Llama({.layers = 2}), {.tp = 2}));
  next_.layout.nodes = before_.layout.nodes;
  const Rank keeper{4};
  EXPECT_THAT(CopiesToInherit(before_, next_, {keeper}),
              ElementsAre(InheritedCopies{.of = Rank{4}, .keeper = keeper, .taker = Rank{0}},
                          InheritedCopies{.of = Rank{5}, .keeper = keeper, .taker = Rank{1}},
                          InheritedCopies{.of = Rank{6}, .keeper = keeper, .taker = Rank{0}},
                          InheritedCopies{.of = Rank{7}, .keeper = keeper, .taker = Rank{1}}));
}

// No node has to have room for more of them than the others.
TEST_F(InheritedCopiesTest, CopiesOfRanksWithoutAPlace_GoToNodesInTurn) {
  before_ = MustPlan(AJob().Module("language", Llama({.layers = 4}), {.tp = 2, .pp = 4}));
  before_.layout.nodes = {{"a", {0, 1}}, {"c", {0, 1}}, {"b", {0, 1, 2, 3}}};
  next_ = MustPlan(AJob().Module("language", Llama({.layers = 4}), {.tp = 2, .pp = 2}));
  next_.layout.nodes = before_.layout.nodes;
  const Rank keeper{4};
  EXPECT_THAT(CopiesToInherit(before_, next_, {keeper}),
              ElementsAre(InheritedCopies{.of = Rank{4}, .keeper = keeper, .taker = Rank{0}},
                          InheritedCopies{.of = Rank{5}, .keeper = keeper, .taker = Rank{2}},
                          InheritedCopies{.of = Rank{6}, .keeper = keeper, .taker = Rank{1}},
                          InheritedCopies{.of = Rank{7}, .keeper = keeper, .taker = Rank{3}}));
}

}  // namespace
}  // namespace phalanx::plan
