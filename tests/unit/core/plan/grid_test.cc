#include "core/plan/grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace phalanx::plan {
namespace {

using ::testing::HasSubstr;
using NumberLists = std::vector<std::vector<int>>;
using Axes = std::vector<Axis>;
using enum Axis;

Grid MakeGrid(std::vector<AxisSize> axes, int32_t offset = 0) {
  auto grid = Grid::Create(offset, std::move(axes));
  EXPECT_TRUE(grid.ok()) << grid.status();
  return *std::move(grid);
}

NumberLists ToNumbers(const absl::StatusOr<std::vector<RankList>>& groups) {
  EXPECT_TRUE(groups.ok()) << groups.status();
  NumberLists numbers;
  for (const RankList& group : *groups) {
    numbers.emplace_back();
    for (Rank rank : group) numbers.back().push_back(rank.value);
  }
  return numbers;
}

NumberLists Canonical(const Grid& grid, const Axes& axes) { return ToNumbers(grid.Groups(axes)); }
NumberLists Listed(const Grid& grid, const Axes& axes) {
  return ToNumbers(grid.ListedGroups(axes));
}

// Listed groups along `axes` with one coordinate of pp.
NumberLists AtStage(const Grid& grid, const Axes& axes, int32_t pp) {
  NumberLists chosen;
  for (const std::vector<int>& group : Listed(grid, axes)) {
    if (grid.Coordinate(Rank{group.front()}, kPipeline) == pp) chosen.push_back(group);
  }
  return chosen;
}

// Cases G1 to G15 of the reference tables.
TEST(GridTest, Groups_OfTensorAndDataGrid_MatchTable) {
  EXPECT_EQ(Canonical(MakeGrid({{kTensor, 2}, {kData, 4}}), {kTensor}),
            (NumberLists{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(Canonical(MakeGrid({{kTensor, 2}, {kData, 2}}, 4), {kTensor}),
            (NumberLists{{4, 5}, {6, 7}}));
}

TEST(GridTest, Groups_OfTensorContextData_ListedAndCanonicalDiffer) {
  const Grid grid = MakeGrid({{kTensor, 2}, {kContext, 2}, {kData, 2}});
  EXPECT_EQ(Listed(grid, {kTensor, kContext}), (NumberLists{{0, 2, 1, 3}, {4, 6, 5, 7}}));
  EXPECT_EQ(Canonical(grid, {kTensor, kContext}), (NumberLists{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(grid.GroupName(Axes{kTensor, kContext}), "cp-tp");
  EXPECT_EQ(grid.GroupName(Axes{kTensor, kData}), "dp-tp");
  EXPECT_EQ(grid.GroupName(Axes{kContext, kTensor, kData}), "dp-cp-tp");
}

TEST(GridTest, Groups_WithAxisOfSizeOne_AreSingletons) {
  const Grid grid = MakeGrid({{kTensor, 1}, {kContext, 2}, {kData, 4}});
  EXPECT_EQ(Listed(grid, {kTensor}), (NumberLists{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}));
  EXPECT_EQ(Listed(grid, {kTensor, kContext}), (NumberLists{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
}

TEST(GridTest, Groups_OfAxesInAnotherOrder_MatchTable) {
  const Grid grid = MakeGrid({{kData, 2}, {kContext, 2}, {kTensor, 2}});
  EXPECT_EQ(Listed(grid, {kData}), (NumberLists{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(Listed(grid, {kTensor}), (NumberLists{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(Listed(grid, {kData, kContext}), (NumberLists{{0, 2, 1, 3}, {4, 6, 5, 7}}));
}

TEST(GridTest, Groups_OfLargerGrid_HaveTableCounts) {
  const Grid grid = MakeGrid({{kTensor, 2}, {kContext, 3}, {kPipeline, 4}, {kData, 5}});
  const NumberLists groups = Canonical(grid, {kData});
  ASSERT_EQ(groups.size(), 24u);
  EXPECT_EQ(groups.front().size(), 5u);
  EXPECT_EQ(grid.GroupName(Axes{kPipeline, kData}), "dp-pp");
}

TEST(GridTest, View_SharingPipeline_HasTableGroups) {
  const Grid base = MakeGrid({{kTensor, 2}, {kData, 2}, {kPipeline, 2}});
  const Grid view = MakeGrid({{kExpertTensor, 2}, {kExpert, 2}, {kPipeline, 2}});
  EXPECT_TRUE(base.CheckView(view, Axes{kPipeline}).ok());
  EXPECT_EQ(Canonical(view, {kExpertTensor, kExpert}), (NumberLists{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(view.GroupName(Axes{kExpertTensor, kExpert}), "ep-expt_tp");
  EXPECT_EQ(Canonical(view, {kPipeline}), (NumberLists{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
}

TEST(GridTest, View_WithOtherEnumeration_IsRefusedNamingBoth) {
  const Grid base = MakeGrid({{kTensor, 2}, {kData, 2}, {kPipeline, 2}});
  const absl::Status status =
      base.CheckView(MakeGrid({{kPipeline, 2}, {kExpert, 4}}), Axes{kPipeline});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("[0,4][1,5][2,6][3,7]"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("[0,1][2,3][4,5][6,7]"));
  EXPECT_FALSE(base.CheckView(MakeGrid({{kTensor, 2}, {kData, 2}}), Axes{}).ok()) << "another span";
}

TEST(GridTest, Groups_OfBoundaryStages_MatchTable) {
  const Grid g12 = MakeGrid({{kTensor, 2}, {kContext, 1}, {kPipeline, 2}, {kData, 2}});
  EXPECT_EQ(AtStage(g12, {kTensor, kContext}, 1), (NumberLists{{2, 3}, {6, 7}}));
  EXPECT_EQ(AtStage(g12, {kTensor, kContext}, 0), (NumberLists{{0, 1}, {4, 5}}));
  const Grid g13 = MakeGrid({{kTensor, 4}, {kContext, 1}, {kPipeline, 2}, {kData, 1}});
  EXPECT_EQ(AtStage(g13, {kTensor, kContext}, 1), (NumberLists{{4, 5, 6, 7}}));
  EXPECT_EQ(AtStage(g13, {kTensor, kContext}, 0), (NumberLists{{0, 1, 2, 3}}));
  const Grid g14 = MakeGrid({{kTensor, 1}, {kContext, 1}, {kPipeline, 2}, {kData, 4}});
  EXPECT_EQ(AtStage(g14, {kTensor, kContext}, 1), (NumberLists{{1}, {3}, {5}, {7}}));
  EXPECT_EQ(AtStage(g14, {kTensor, kContext}, 0), (NumberLists{{0}, {2}, {4}, {6}}));
  const Grid g15 = MakeGrid({{kTensor, 2}, {kContext, 1}, {kPipeline, 4}, {kData, 1}});
  EXPECT_EQ(AtStage(g15, {kTensor, kContext}, 3), (NumberLists{{6, 7}}));
  EXPECT_EQ(AtStage(g15, {kTensor, kContext}, 0), (NumberLists{{0, 1}}));
}

// Cases P1 to P2e: an encoder tp2 dp2 at 0, a language module tp2 pp2 at 4.
TEST(GridTest, Groups_OfProductionLayout_MatchTable) {
  const Grid encoder = MakeGrid({{kTensor, 2}, {kContext, 1}, {kData, 2}, {kPipeline, 1}});
  EXPECT_EQ(Canonical(encoder, {kTensor}), (NumberLists{{0, 1}, {2, 3}}));
  EXPECT_EQ(Canonical(encoder, {kData}), (NumberLists{{0, 2}, {1, 3}}));
  EXPECT_EQ(Canonical(encoder, {kTensor, kData}), (NumberLists{{0, 1, 2, 3}}));
  const Grid encoder_experts =
      MakeGrid({{kExpertTensor, 1}, {kExpert, 1}, {kExpertData, 4}, {kPipeline, 1}});
  EXPECT_EQ(Canonical(encoder_experts, {kExpertData}), (NumberLists{{0, 1, 2, 3}}));
  EXPECT_EQ(Canonical(encoder_experts, {kExpert}), (NumberLists{{0}, {1}, {2}, {3}}));
  const Grid language = MakeGrid({{kTensor, 2}, {kContext, 1}, {kData, 1}, {kPipeline, 2}}, 4);
  EXPECT_EQ(Canonical(language, {kTensor}), (NumberLists{{4, 5}, {6, 7}}));
  EXPECT_EQ(Canonical(language, {kPipeline}), (NumberLists{{4, 6}, {5, 7}}));
  EXPECT_EQ(Canonical(language, {kTensor, kPipeline}), (NumberLists{{4, 5, 6, 7}}));
  EXPECT_EQ(Canonical(language, {kTensor, kData}), (NumberLists{{4, 5}, {6, 7}}));
  const Grid language_experts =
      MakeGrid({{kExpertTensor, 1}, {kExpert, 1}, {kExpertData, 2}, {kPipeline, 2}}, 4);
  EXPECT_EQ(Canonical(language_experts, {kExpertData}), (NumberLists{{4, 5}, {6, 7}}));
  EXPECT_EQ(Canonical(language_experts, {kExpertTensor, kExpert, kPipeline}),
            (NumberLists{{4, 6}, {5, 7}}));
}

// pp inside dp: the ranks of stage 0 are 0, 1, 4, 5, and the expert axes factor just those.
TEST(GridTest, View_OverPipelineInsideData_FactorsTheRanksOfEachStage) {
  const Grid base = MakeGrid({{kTensor, 2}, {kContext, 1}, {kPipeline, 2}, {kData, 2}});
  const auto view =
      Grid::CreateView(0, {{kExpertTensor, 4}, {kExpert, 1}, {kExpertData, 1}}, {kPipeline, 2}, 2);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(Canonical(*view, {kExpertTensor}), (NumberLists{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_TRUE(base.CheckView(*view, Axes{kPipeline}).ok())
      << base.CheckView(*view, Axes{kPipeline});
  for (int32_t rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(view->RankAt(view->CoordinatesOf(Rank{rank})), Rank{rank});
    EXPECT_EQ(view->Coordinate(Rank{rank}, kPipeline), base.Coordinate(Rank{rank}, kPipeline));
  }
}

TEST(GridTest, Create_OfBadAxes_IsRefused) {
  EXPECT_FALSE(Grid::Create(0, {}).ok());
  EXPECT_FALSE(Grid::Create(-1, {{kTensor, 2}}).ok());
  EXPECT_FALSE(Grid::Create(0, {{kTensor, 0}}).ok());
  EXPECT_FALSE(Grid::Create(0, {{kTensor, 2}, {kTensor, 2}}).ok());
  EXPECT_FALSE(Grid::Create(1, {{kTensor, kWorldMax}}).ok());
  EXPECT_FALSE(Grid::Create(0, {{kTensor, 1 << 30}, {kData, 1 << 30}}).ok());
  EXPECT_TRUE(Grid::Create(0, {{kTensor, kWorldMax}}).ok());
  EXPECT_FALSE(Grid::CreateView(0, {{kExpert, 3}}, {kPipeline, 2}, 2).ok());
}

TEST(GridTest, Groups_OfUnknownOrRepeatedAxis_AreRefusedByName) {
  const Grid grid = MakeGrid({{kTensor, 2}, {kData, 2}});
  EXPECT_THAT(std::string(grid.Groups(Axes{kExpert}).status().message()),
              HasSubstr("unknown axis ep"));
  EXPECT_FALSE(grid.Groups(Axes{kTensor, kTensor}).ok());
  EXPECT_FALSE(grid.GroupOf(Rank{0}, Axes{kExpert}).ok());
  EXPECT_EQ(grid.AxisLength(kExpert), 1);
}

// Every grid of up to 64 ranks, all subsets of axes, against the stated rule done the slow way.
TEST(GridTest, Groups_OfEverySmallGrid_FollowTheRule) {
  const Axes names = {kTensor, kContext, kData, kPipeline};
  for (int32_t tp = 1; tp <= 4; ++tp) {
    for (int32_t cp = 1; cp <= 3; ++cp) {
      for (int32_t dp = 1; dp <= 4; ++dp) {
        for (int32_t pp = 1; tp * cp * dp * pp <= 64 && pp <= 4; ++pp) {
          const Grid grid =
              MakeGrid({{kTensor, tp}, {kContext, cp}, {kData, dp}, {kPipeline, pp}}, 5);
          for (int32_t rank = 5; rank < 5 + grid.size(); ++rank) {
            const auto c = grid.CoordinatesOf(Rank{rank});
            ASSERT_EQ(rank, 5 + c[0] + tp * (c[1] + cp * (c[2] + dp * c[3])));
            ASSERT_EQ(grid.RankAt(c), Rank{rank});
          }
          for (unsigned subset = 0; subset < 16; ++subset) {
            Axes axes;
            for (size_t i = 0; i < 4; ++i) {
              if (subset >> i & 1) axes.push_back(names[i]);
            }
            // Ranks by their coordinates outside the subset, slowest first.
            std::map<std::vector<int32_t>, std::vector<int>> expected;
            for (int32_t rank = 5; rank < 5 + grid.size(); ++rank) {
              const auto c = grid.CoordinatesOf(Rank{rank});
              std::vector<int32_t> key;
              for (size_t i = 4; i-- > 0;) {
                if (!(subset >> i & 1)) key.push_back(c[i]);
              }
              expected[key].push_back(rank);
            }
            NumberLists rule;
            for (const auto& [key, ranks] : expected) rule.push_back(ranks);
            const NumberLists groups = Canonical(grid, axes);
            ASSERT_EQ(groups, rule);
            for (const std::vector<int>& group : groups) {
              const auto of = grid.GroupOf(Rank{group.back()}, axes);
              ASSERT_TRUE(of.ok());
              ASSERT_EQ(ToNumbers(std::vector<RankList>{*of}), NumberLists{group});
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace phalanx::plan
