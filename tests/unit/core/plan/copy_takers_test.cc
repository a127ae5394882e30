#include "core/plan/copy_takers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/specs.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::Llama;
using ::testing::ElementsAreArray;

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

}  // namespace
}  // namespace phalanx::plan
