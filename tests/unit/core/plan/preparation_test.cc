#include "core/plan/preparation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/specs.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::Llama;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

AJob JobOfLayout(const support::Layout& layout) {
  return AJob().Module("language", Llama(), layout).Batch(12, 1);
}

Plan BehindLoss(const Plan& plan, Rank lost) {
  auto next = PlanBehindLoss(plan, lost);
  EXPECT_TRUE(next.ok()) << next.status();
  return next.ok() ? *std::move(next) : Plan();
}

TEST(PreparationTest, PlanBehindLoss_IsOfTheNextEpochWithoutTheRank) {
  const Plan plan = MustPlan(JobOfLayout({.dp = 3}), 3);
  const Plan next = BehindLoss(plan, Rank{1});
  EXPECT_EQ(next.epoch().value, plan.epoch().value + 1);
  EXPECT_THAT(next.PlacesOf(Rank{1}), IsEmpty());
  EXPECT_EQ(next.PlacesOf(Rank{2}).size(), 1u);
  EXPECT_FALSE(PlanBehindLoss(MustPlan(JobOfLayout({}), 1), Rank{0}).ok()) << "no replica is left";
}

AJob WithOneHome(const support::Layout& layout) {
  AJob job = JobOfLayout(layout);
  job.spec().recovery.state_copies = 1;
  return job;
}

TEST(PreparationTest, MayBeLost_IsWhoseStateHasAnotherHome) {
  EXPECT_TRUE(MayBeLost(MustPlan(JobOfLayout({.dp = 2}), 2), Rank{0}).ok());
  EXPECT_TRUE(MayBeLost(MustPlan(JobOfLayout({.tp = 2}), 2), Rank{0}).ok()) << "in host memory";
  EXPECT_TRUE(MayBeLost(MustPlan(JobOfLayout({.tp = 2, .frozen = true}), 2), Rank{0}).ok());
  EXPECT_FALSE(MayBeLost(MustPlan(WithOneHome({.dp = 2}), 2), Rank{0}).ok());
  EXPECT_FALSE(MayBeLost(MustPlan(WithOneHome({.tp = 2}), 2), Rank{0}).ok());
}

TEST(PreparationTest, NeedsCopies_WhereTheOtherHomeIsInHostMemory) {
  const auto needs = [](AJob job, RankList lost) { return NeedsCopies(MustPlan(job, 2), lost); };
  EXPECT_TRUE(needs(JobOfLayout({.tp = 2}), {Rank{1}}));
  EXPECT_FALSE(needs(JobOfLayout({.tp = 2}), {}));
  EXPECT_FALSE(needs(JobOfLayout({.dp = 2}), {Rank{1}})) << "a mirror";
  EXPECT_FALSE(needs(JobOfLayout({.tp = 2, .frozen = true}), {Rank{1}})) << "no state";
  EXPECT_FALSE(needs(WithOneHome({.tp = 2}), {Rank{1}})) << "no copies";
}

TEST(PreparationTest, HasStandby_OnlyWhereStateOutlivesAndRanksAreTheSame) {
  const auto has = [](AJob job, int32_t devices, Rank lost) {
    job.spec().resources.devices = devices;
    const Plan plan = MustPlan(job, devices);
    return HasStandby(plan, lost, BehindLoss(plan, lost));
  };
  EXPECT_TRUE(has(JobOfLayout({.dp = 3}), 3, Rank{0}));
  EXPECT_TRUE(has(JobOfLayout({.tp = 2}), 2, Rank{0})) << "state is in host memory";
  EXPECT_FALSE(has(WithOneHome({.tp = 2}), 2, Rank{0})) << "state is lost";
  EXPECT_FALSE(has(JobOfLayout({.dp = 3}), 4, Rank{0})) << "a spare takes over";
  EXPECT_FALSE(has(JobOfLayout({.dp = 12}), 12, Rank{0})) << "more devices than are prepared for";
  AJob none = JobOfLayout({.dp = 3});
  none.spec().recovery.standby = job::Standby::kNone;
  EXPECT_FALSE(has(none, 3, Rank{0}));
}

TEST(PreparationTest, RanksToTakeOver_AreThoseOfTheNode) {
  const auto plan = MakePlan(JobOfLayout({.dp = 6}), MakeCluster(2, 3), Epoch{1});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(RanksToTakeOver(*plan, Rank{0}), ElementsAre(1, 2));
  EXPECT_THAT(RanksToTakeOver(*plan, Rank{1}), ElementsAre(0));
  EXPECT_THAT(RanksToTakeOver(*plan, Rank{2}), IsEmpty());
  EXPECT_THAT(RanksToTakeOver(*plan, Rank{3}), ElementsAre(4, 5));
  const std::vector<std::vector<int32_t>> all = RanksToTakeOver(*plan);
  ASSERT_EQ(all.size(), 6u);
  for (int32_t rank = 0; rank < 6; ++rank)
    EXPECT_EQ(all[static_cast<size_t>(rank)], RanksToTakeOver(*plan, Rank{rank})) << rank;
  EXPECT_THAT(RanksToTakeOver(MustPlan(JobOfLayout({}), 4), Rank{0}), IsEmpty()) << "alone at work";
}

}  // namespace
}  // namespace phalanx::plan
