#include "core/plan/replica_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using enum Axis;

Grid AGrid(int32_t tp, int32_t cp, int32_t dp, int32_t pp, int32_t offset = 0) {
  return *Grid::Create(offset, {{kTensor, tp}, {kContext, cp}, {kData, dp}, {kPipeline, pp}});
}

TEST(ReplicaTableTest, HealthyTable_IsTheGridForEverySmallOne) {
  for (const auto& order : std::vector<std::vector<Axis>>{{kTensor, kContext, kData, kPipeline},
                                                          {kData, kTensor, kPipeline, kContext},
                                                          {kPipeline, kData, kContext, kTensor}}) {
    for (int32_t shape = 0; shape < 81; ++shape) {
      const int32_t sizes[] = {1 + shape % 3, 1 + shape / 3 % 3, 1 + shape / 9 % 3, 1 + shape / 27};
      std::vector<AxisSize> axes;
      for (size_t i = 0; i < order.size(); ++i) axes.push_back({order[i], sizes[i]});
      const Grid grid = *Grid::Create(5, axes);
      const ReplicaTable table = *ReplicaTable::Create(grid, {});
      for (int32_t rank = 5; rank < 5 + grid.size(); ++rank) {
        const auto at = table.PositionOf(Rank{rank});
        ASSERT_TRUE(at.has_value());
        ASSERT_EQ(at->tp, grid.Coordinate(Rank{rank}, kTensor));
        ASSERT_EQ(at->cp, grid.Coordinate(Rank{rank}, kContext));
        ASSERT_EQ(at->dp, grid.Coordinate(Rank{rank}, kData));
        ASSERT_EQ(at->pp, grid.Coordinate(Rank{rank}, kPipeline));
        ASSERT_EQ(at->width, grid.AxisLength(kTensor));
        ASSERT_EQ(table.Ranks(at->dp, at->pp, at->cp)[static_cast<size_t>(at->tp)], Rank{rank});
      }
      EXPECT_EQ(table.present_replicas(), grid.AxisLength(kData));
    }
  }
}

TEST(ReplicaTableTest, NarrowedSlot_HasItsRanksInUnitOrder) {
  // tp3 dp2 pp2: replica 1 has ranks 3-5 on stage 0 and 9-11 on stage 1; rank 4 died.
  const ReplicaTable table =
      *ReplicaTable::Create(AGrid(3, 1, 2, 2), {{{.dp = 1, .pp = 0, .ranks = Ranks({5, 3})}}});
  EXPECT_THAT(table.Ranks(1, 0), ElementsAre(Rank{5}, Rank{3}));
  EXPECT_EQ(table.Width(1, 0), 2);
  EXPECT_EQ(table.Width(1, 1), 3);
  EXPECT_EQ(table.PositionOf(Rank{3})->tp, 1);
  EXPECT_EQ(table.PositionOf(Rank{3})->width, 2);
  EXPECT_FALSE(table.PositionOf(Rank{4}).has_value());
  EXPECT_FALSE(table.EqualWidths(0));
  EXPECT_EQ(table.NarrowestOf(0), 2);
  EXPECT_EQ(table.WidestOf(0), 3);
  EXPECT_EQ(table.RanksOfStage(0), 5);
  EXPECT_TRUE(table.EqualWidths(1));
}

TEST(ReplicaTableTest, RankInTheSlotOfAnother_StandsThere) {
  // tp2 dp2 pp1: replica 0 takes rank 3 in the place of rank 1, replica 1 goes on with rank 2.
  const ReplicaTable table = *ReplicaTable::Create(
      AGrid(2, 1, 2, 1),
      {{{.dp = 0, .pp = 0, .ranks = Ranks({0, 3})}, {.dp = 1, .pp = 0, .ranks = Ranks({2})}}});
  EXPECT_EQ(table.PositionOf(Rank{3})->dp, 0);
  EXPECT_EQ(table.PositionOf(Rank{3})->tp, 1);
  EXPECT_EQ(table.At(0, 0, 0, 1), Rank{3});
  EXPECT_FALSE(table.PositionOf(Rank{1}).has_value());
  EXPECT_EQ(table.PositionOf(Rank{2})->width, 1);
  EXPECT_EQ(table.RanksOfStage(0), 3);
}

TEST(ReplicaTableTest, SlotWithNobody_MakesItsReplicaAbsentAndFreesItsOtherRanks) {
  const ReplicaTable table =
      *ReplicaTable::Create(AGrid(2, 1, 2, 2), {{{.dp = 0, .pp = 1, .ranks = {}}}});
  EXPECT_FALSE(table.Present(0));
  EXPECT_TRUE(table.Present(1));
  EXPECT_EQ(table.FirstPresent(), 1);
  EXPECT_EQ(table.present_replicas(), 1);
  EXPECT_FALSE(table.PositionOf(Rank{0}).has_value()) << "stage 0 of the replica has no work";
  EXPECT_THAT(table.Ranks(0, 1), IsEmpty());
  EXPECT_EQ(table.RanksOfStage(0), 2);
}

TEST(ReplicaTableTest, ContextRanks_EachHaveTheirOwnTensorGroup) {
  const ReplicaTable table =
      *ReplicaTable::Create(AGrid(2, 2, 1, 1), {{{.dp = 0, .pp = 0, .ranks = Ranks({1, 3})}}});
  EXPECT_THAT(table.Ranks(0, 0, 0), ElementsAre(Rank{1}));
  EXPECT_THAT(table.Ranks(0, 0, 1), ElementsAre(Rank{3}));
  EXPECT_EQ(table.PositionOf(Rank{3})->cp, 1);
}

TEST(ReplicaTableTest, Order_IsAscendingUnlessGiven) {
  const Grid grid = AGrid(2, 1, 3, 1);
  const std::vector<SlotChange> changes = {{.dp = 1, .pp = 0, .ranks = {}}};
  EXPECT_THAT(ReplicaTable::Create(grid, {})->order(), ElementsAre(0, 1, 2));
  EXPECT_THAT(ReplicaTable::Create(grid, changes)->order(), ElementsAre(0, 2));
  EXPECT_THAT(ReplicaTable::Create(grid, changes, {2, 0})->order(), ElementsAre(2, 0));
  EXPECT_EQ(ReplicaTable::Create(grid, changes, {2, 0})->FirstPresent(), 0);
}

TEST(ReplicaTableTest, OrderOfOtherReplicasThanThereAre_IsRefused) {
  const Grid grid = AGrid(2, 1, 3, 1);
  const auto error = [&grid](std::vector<int32_t> order) {
    const SlotChange change{.dp = 1, .pp = 0, .ranks = {}};
    return std::string(ReplicaTable::Create(grid, {change}, order).status().message());
  };
  EXPECT_EQ(error({0}), "its order has 1 replicas; there are 2");
  EXPECT_EQ(error({0, 2, 0}), "its order has 3 replicas; there are 2");
  EXPECT_EQ(error({0, 1}), "its order has replica 1, which is not there");
  EXPECT_EQ(error({0, 3}), "its order has replica 3, which is not there");
  EXPECT_EQ(error({-1, 0}), "its order has replica -1, which is not there");
  EXPECT_EQ(error({2, 2}), "its order has replica 2 twice");
}

TEST(ReplicaTableTest, ChangesThatDoNotFit_AreNamed) {
  const Grid grid = AGrid(2, 1, 2, 2);
  const auto error = [&grid](std::vector<SlotChange> changes) {
    return std::string(ReplicaTable::Create(grid, changes).status().message());
  };
  EXPECT_THAT(error({{.dp = 2, .pp = 0}}), HasSubstr("does not have the slot of dp 2 and pp 0"));
  EXPECT_THAT(error({{.dp = 0, .pp = 0}, {.dp = 0, .pp = 0}}), HasSubstr("changed twice"));
  EXPECT_THAT(error({{.dp = 0, .pp = 0, .ranks = Ranks({0, 1, 2})}}), HasSubstr("has 3 ranks"));
  EXPECT_THAT(error({{.dp = 0, .pp = 0, .ranks = Ranks({99})}}), HasSubstr("has rank 99"));
  EXPECT_THAT(error({{.dp = 0, .pp = 0, .ranks = Ranks({2})}}),
              HasSubstr("rank 2 is in two slots"));
}

}  // namespace
}  // namespace phalanx::plan
