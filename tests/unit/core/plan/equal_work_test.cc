#include "core/plan/equal_work.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <vector>

#include "core/plan/loss.h"
#include "tests/support/specs.h"
#include "tests/unit/core/plan/must_plan.h"
#include "tests/unit/core/plan/narrowed.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;

// Of each rank the first one that does the same work.
std::vector<int32_t> FirstLike(const Plan& plan) {
  std::map<uint64_t, int32_t> first;
  std::vector<int32_t> like;
  for (int32_t rank = 0; rank < plan.world; ++rank)
    like.push_back(first.emplace(EqualWork(plan, Rank{rank}), rank).first->second);
  return like;
}

TEST(EqualWorkTest, Replicas_AreLikeEachOther_StageByStageAndPositionByPosition) {
  // Ranks by (pp, dp, tp).
  const Plan plan =
      MustPlan(AJob().Module("language", Llama(), {.tp = 2, .dp = 2, .pp = 2}).Batch(8, 2));
  std::map<std::vector<int32_t>, int32_t> first;  // by what they have in common
  std::vector<int32_t> expected;
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    const Place place = *plan.PlaceOf(Rank{rank}, 0);
    expected.push_back(first.emplace(std::vector<int32_t>{place.pp, place.tp}, rank).first->second);
  }
  EXPECT_EQ(FirstLike(plan), expected);
}

TEST(EqualWorkTest, ReplicasWithMoreSamples_AreLikeEachOtherAlone) {
  // 7 samples over 3 replicas: 3, 2 and 2.
  EXPECT_EQ(FirstLike(MustPlan(AJob().Module("language", Llama(), {.dp = 3}).Batch(7, 4))),
            (std::vector<int32_t>{0, 1, 1}));
}

TEST(EqualWorkTest, OneReplica_ItsTensorRanksWithAsManyUnitsAreLike) {
  const job::Architecture eight_heads =
      Llama({.hidden_size = 64, .heads = 8, .kv_heads = 8, .mlp_size = 64, .block = 8});
  EXPECT_EQ(FirstLike(MustPlan(AJob().Module("language", eight_heads, {.tp = 4}).Batch(8, 2))),
            (std::vector<int32_t>{0, 0, 0, 0}));
  const Plan three = MustPlan(AJob().Module("language", eight_heads, {.tp = 3}).Batch(8, 2));
  EXPECT_NE(EqualWork(three, Rank{0}), EqualWork(three, Rank{2}));  // 3 heads, and 2
}

TEST(EqualWorkTest, ReplicasOfOtherWidths_AreNotCompared) {
  const Plan plan = Narrowed();  // its stage 1 has widths 3 and 2
  for (const Rank wide : plan.TensorGroup(0, 0, 1)) {
    for (const Rank narrow : plan.TensorGroup(0, 1, 1))
      EXPECT_NE(EqualWork(plan, wide), EqualWork(plan, narrow));
  }
  EXPECT_EQ(EqualWork(plan, plan.TensorGroup(0, 0, 0)[1]),
            EqualWork(plan, plan.TensorGroup(0, 1, 0)[1]));
}

TEST(EqualWorkTest, AllModulesOfARankCount) {
  // Four replicas of vision on the ranks of two of the language module.
  const auto plan = [](int64_t batch) {
    return MustPlan(AJob()
                        .Module("vision", ClipVision(), {.dp = 4})
                        .Module("language", Llama(), {.tp = 2, .dp = 2, .offset = 0})
                        .Edge("vision", "language")
                        .Batch(batch, 4));
  };
  EXPECT_EQ(FirstLike(plan(8)), (std::vector<int32_t>{0, 1, 0, 1}));
  // The first two encode two samples, the others one.
  EXPECT_EQ(FirstLike(plan(6)), (std::vector<int32_t>{0, 1, 2, 3}));
}

TEST(LikeWorkTest, ReplicasWithOtherSamples_AreLikeEachOther) {
  job::JobSpec spec = AJob().Module("language", Llama(), {.tp = 2, .dp = 3});
  spec.batch = {.global = 4, .micro = 2};
  const Plan plan = MustPlan(spec, 6);
  ASSERT_NE(EqualWork(plan, Rank{0}), EqualWork(plan, Rank{2})) << "it has two samples";
  for (int32_t rank = 0; rank < 6; ++rank)
    EXPECT_EQ(LikeWork(plan, Rank{rank}), LikeWork(plan, Rank{rank % 2})) << rank;
  EXPECT_NE(LikeWork(plan, Rank{0}), LikeWork(plan, Rank{1}));
}

TEST(EqualWorkTest, RankWithoutWork_HasNone) {
  const Plan plan = MustPlan(AJob().Module("language", Llama(), {.dp = 2}).Batch(8, 2));
  EXPECT_NE(EqualWork(plan, Rank{0}), 0u);
  const auto without = PlanWithout(plan, RankList{Rank{1}}, {});
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(EqualWork(*without, Rank{1}), 0u);
  EXPECT_NE(EqualWork(*without, Rank{0}), 0u);
}

}  // namespace
}  // namespace phalanx::plan
