// Rank, group, stage and bridge tables of multi-module layouts, as plans of whole jobs. Bare grids:
// grid_test.cc. Every row has the name under which it is known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <ostream>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/plan/plan.h"
#include "core/plan/samples.h"
#include "tests/support/specs.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::NoArchitecture;
using NumberLists = std::vector<std::vector<int>>;
using Axes = std::vector<Axis>;
using enum Axis;

constexpr std::array<job::MeshAxis, 4> kPipelineInsideData = {
    job::MeshAxis::kTensor, job::MeshAxis::kContext, job::MeshAxis::kPipeline,
    job::MeshAxis::kData};

NumberLists ToNumbers(const std::vector<RankList>& lists) {
  NumberLists numbers;
  for (const RankList& list : lists) {
    numbers.emplace_back();
    for (Rank rank : list) numbers.back().push_back(rank.value);
  }
  return numbers;
}

NumberLists Groups(const Grid& grid, const Axes& axes) {
  const auto groups = grid.Groups(axes);
  EXPECT_TRUE(groups.ok()) << groups.status();
  return groups.ok() ? ToNumbers(*groups) : NumberLists();
}

// ---- Groups ----

struct GroupCase {
  std::string id;
  support::Layout layout;
  bool expert = false;
  Axes axes;
  NumberLists groups;
};

class GroupTable : public testing::TestWithParam<GroupCase> {};

TEST_P(GroupTable, Groups_OfAPlannedModule_MatchTable) {
  const GroupCase& row = GetParam();
  const Plan plan = MustPlan(AJob().Module("language", NoArchitecture(), row.layout));
  ASSERT_EQ(plan.modules.size(), 1u);
  const ModulePlan& module = plan.modules[0];
  EXPECT_EQ(Groups(row.expert ? module.expert_grid : module.grid, row.axes), row.groups);
}

INSTANTIATE_TEST_SUITE_P(
    Rows, GroupTable,
    testing::ValuesIn(std::vector<GroupCase>{
        GroupCase{"G1", {.tp = 2, .dp = 4}, false, {kTensor}, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}},
        GroupCase{"G3",
                  {.tp = 2, .cp = 2, .dp = 2},
                  false,
                  {kTensor, kContext},
                  {{0, 1, 2, 3}, {4, 5, 6, 7}}},
        GroupCase{"G4", {.tp = 2, .dp = 2, .offset = 4}, false, {kTensor}, {{4, 5}, {6, 7}}},
        GroupCase{"G9",
                  {.tp = 2, .dp = 2, .pp = 2, .ep = 2, .expt_tp = 2},
                  true,
                  {kExpertTensor, kExpert},
                  {{0, 1, 2, 3}, {4, 5, 6, 7}}},
        GroupCase{"G10",
                  {.tp = 2, .dp = 2, .pp = 2},
                  false,
                  {kPipeline},
                  {{0, 4}, {1, 5}, {2, 6}, {3, 7}}},
        GroupCase{"G10e",
                  {.tp = 2, .dp = 2, .pp = 2, .ep = 2, .expt_tp = 2},
                  true,
                  {kPipeline},
                  {{0, 4}, {1, 5}, {2, 6}, {3, 7}}},
        GroupCase{"P1tp", {.tp = 2, .dp = 2}, false, {kTensor}, {{0, 1}, {2, 3}}},
        GroupCase{"P1dp", {.tp = 2, .dp = 2}, false, {kData}, {{0, 2}, {1, 3}}},
        GroupCase{"P1all",
                  {.tp = 2, .dp = 2},
                  false,
                  {kTensor, kContext, kData, kPipeline},
                  {{0, 1, 2, 3}}},
        GroupCase{"P1e", {.tp = 2, .dp = 2}, true, {kExpertData}, {{0, 1, 2, 3}}},
        GroupCase{"P1eep", {.tp = 2, .dp = 2}, true, {kExpert}, {{0}, {1}, {2}, {3}}},
        GroupCase{"P2tp", {.tp = 2, .pp = 2, .offset = 4}, false, {kTensor}, {{4, 5}, {6, 7}}},
        GroupCase{"P2pp", {.tp = 2, .pp = 2, .offset = 4}, false, {kPipeline}, {{4, 6}, {5, 7}}},
        GroupCase{
            "P2mp", {.tp = 2, .pp = 2, .offset = 4}, false, {kTensor, kPipeline}, {{4, 5, 6, 7}}},
        GroupCase{
            "P2tpdp", {.tp = 2, .pp = 2, .offset = 4}, false, {kTensor, kData}, {{4, 5}, {6, 7}}},
        GroupCase{"P2e", {.tp = 2, .pp = 2, .offset = 4}, true, {kExpertData}, {{4, 5}, {6, 7}}},
        GroupCase{"P2eall",
                  {.tp = 2, .pp = 2, .offset = 4},
                  true,
                  {kExpertTensor, kExpert, kPipeline},
                  {{4, 6}, {5, 7}}}}),
    [](const auto& row) { return row.param.id; });

TEST(TableTest, G8_DataGroups_AreTwentyFourOfFive) {
  const Plan plan =
      MustPlan(AJob().Module("language", NoArchitecture(),
                             {.tp = 2, .cp = 3, .dp = 5, .pp = 4, .order = kPipelineInsideData}),
               120);
  const NumberLists groups = Groups(plan.modules[0].grid, {kData});
  EXPECT_EQ(groups.size(), 24u);
  for (const auto& group : groups) EXPECT_EQ(group.size(), 5u);
  EXPECT_EQ(plan.modules[0].grid.GroupName(Axes{kData, kPipeline}), "dp-pp");
}

TEST(TableTest, G16_MoreRanksThanDevices_AreRefused) {
  const auto plan = MakePlan(AJob().Module("language", NoArchitecture(), {.tp = 4, .dp = 4}),
                             MakeCluster(1, 8), Epoch{1});
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(TableTest, G17_TensorGroup_OfEachRank_IsTheOneItReducesOver) {
  const Plan plan =
      MustPlan(AJob().Module("language", NoArchitecture(), {.tp = 2, .cp = 2, .dp = 2}));
  std::vector<int> sums;
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    const Place place = plan.PlacesOf(Rank{rank})[0];
    int sum = 0;
    for (Rank member : plan.TensorGroup(0, place.dp, place.pp, place.cp)) sum += member.value;
    sums.push_back(sum);
  }
  EXPECT_EQ(sums, (std::vector<int>{1, 1, 5, 5, 9, 9, 13, 13}));
}

// Sizes of the groups that a rank of each production module is in.
TEST(TableTest, GroupSizes_OfProductionRanks_MatchTable) {
  const Plan plan = MustPlan(AJob()
                                 .Module("vision", NoArchitecture(), {.tp = 2, .dp = 2})
                                 .Module("language", NoArchitecture(), {.tp = 2, .pp = 2})
                                 .Edge("vision", "language"));
  const auto size = [&](int module, int rank, const Axes& axes) {
    const auto group = plan.modules[static_cast<size_t>(module)].grid.GroupOf(Rank{rank}, axes);
    EXPECT_TRUE(group.ok()) << group.status();
    return group.ok() ? group->size() : 0;
  };
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(size(0, rank, {kTensor}), 2u);
    EXPECT_EQ(size(0, rank, {kPipeline}), 1u);
    EXPECT_EQ(size(0, rank, {kData}), 2u);
    EXPECT_EQ(size(0, rank, {kData, kContext}), 2u);
  }
  for (int rank = 4; rank < 8; ++rank) {
    EXPECT_EQ(size(1, rank, {kTensor}), 2u);
    EXPECT_EQ(size(1, rank, {kPipeline}), 2u);
    EXPECT_EQ(size(1, rank, {kData}), 1u);
    EXPECT_EQ(size(1, rank, {kData, kContext}), 1u);
  }
}

// ---- Stages ----

struct StageRow {
  std::string module;
  std::vector<int> stages, warmups;  // of each pipeline rank
};

void ExpectStages(const Plan& plan, int total, const std::vector<StageRow>& rows) {
  EXPECT_EQ(plan.stages, total);
  ASSERT_EQ(plan.modules.size(), rows.size());
  for (size_t m = 0; m < rows.size(); ++m) {
    SCOPED_TRACE(rows[m].module);
    std::vector<int> stages, warmups;
    for (int32_t pp = 0; pp < plan.modules[m].pp(); ++pp) {
      stages.push_back(plan.modules[m].GraphStage(pp));
      warmups.push_back(plan.stages - stages.back() - 1);
    }
    EXPECT_EQ(stages, rows[m].stages);
    EXPECT_EQ(warmups, rows[m].warmups);
  }
}

TEST(TableTest, Stages_AndForwardsBeforeTheSteadyState_MatchTable) {
  const auto chain = [](int32_t encoder, int32_t language) {
    return MustPlan(AJob()
                        .Module("encoder", NoArchitecture(), {.pp = encoder})
                        .Module("language", NoArchitecture(), {.pp = language})
                        .Edge("encoder", "language"));
  };
  ExpectStages(chain(1, 1), 2, {{"encoder", {0}, {1}}, {"language", {1}, {0}}});
  ExpectStages(chain(1, 3), 4, {{"encoder", {0}, {3}}, {"language", {1, 2, 3}, {2, 1, 0}}});
  ExpectStages(chain(2, 2), 4, {{"encoder", {0, 1}, {3, 2}}, {"language", {2, 3}, {1, 0}}});
  const Plan four = MustPlan(AJob()
                                 .Module("image", NoArchitecture())
                                 .Module("audio", NoArchitecture())
                                 .Module("language", NoArchitecture(), {.pp = 2})
                                 .Module("generator", NoArchitecture())
                                 .Edge("image", "language")
                                 .Edge("audio", "language")
                                 .Edge("language", "generator"));
  ExpectStages(four, 4,
               {{"image", {0}, {3}},
                {"audio", {0}, {3}},
                {"language", {1, 2}, {2, 1}},
                {"generator", {3}, {0}}});
  EXPECT_EQ(four.PlacesOf(Rank{2}), (std::vector<Place>{{.module = 2, .pp = 0}}));
}

// ---- Bridges ----

// Samples [first, first + count) of the microbatch that a lane of the source sends to one of the
// destination.
struct Sent {
  int from_lane, to_lane;
  int64_t first, count;
  friend bool operator==(const Sent&, const Sent&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Sent& sent) {
    return out << sent.from_lane << "->" << sent.to_lane << " " << sent.first << "+" << sent.count;
  }
};

struct BridgeCase {
  std::string id;
  support::Layout source, language;
  NumberLists from_lanes, to_lanes;
  std::vector<Sent> links;  // of a microbatch of `samples`
  int64_t samples = 4;
};

// Tensor groups of the stage of a module that an edge touches, lane by lane.
NumberLists LanesOf(const Plan& plan, int32_t module, int32_t stage) {
  std::vector<RankList> lanes;
  for (int32_t dp = 0; dp < plan.parallel(module).dp; ++dp) {
    lanes.push_back(plan.TensorGroup(module, dp, stage));
  }
  return ToNumbers(lanes);
}

class BridgeTable : public testing::TestWithParam<BridgeCase> {};

TEST_P(BridgeTable, LanesAndLinks_OfAnEdge_MatchTable) {
  const BridgeCase& row = GetParam();
  const Plan plan = MustPlan(AJob()
                                 .Module("encoder", NoArchitecture(), row.source)
                                 .Module("language", NoArchitecture(), row.language)
                                 .Edge("encoder", "language")
                                 .Batch(row.samples, row.samples / row.language.dp));
  ASSERT_EQ(plan.microbatches, 1);
  const auto link = static_cast<int32_t>(plan.links.size()) - 1;
  const Link& ends = plan.links.back();
  EXPECT_EQ(LanesOf(plan, 0, ends.from.stage), row.from_lanes);
  EXPECT_EQ(LanesOf(plan, 1, ends.to.stage), row.to_lanes);
  std::vector<Sent> links;
  std::set<std::tuple<int64_t, int, Rank>> received;  // sample, slice, by whom
  for (const LinkMessage& message : LinkMessages(plan, link, SamplesOfMicrobatch(plan, 0))) {
    const auto from = plan.PlaceOf(message.from, 0), to = plan.PlaceOf(message.to, 1);
    ASSERT_TRUE(from.has_value() && to.has_value());
    EXPECT_EQ(from->pp, ends.from.stage);
    EXPECT_EQ(to->pp, ends.to.stage);
    // Every tensor rank has a slice of its own at both ends; no leader sends for the others.
    EXPECT_EQ(message.from_slices, plan.Width(0, from->dp, from->pp));
    EXPECT_EQ(message.from_slice, from->tp);
    EXPECT_EQ(message.to_slices, plan.Width(1, to->dp, to->pp));
    EXPECT_EQ(message.to_slice, to->tp);
    // Validity comes to each of them once.
    for (int64_t i = 0; message.flags && i < message.count; ++i) {
      EXPECT_TRUE(received.insert({message.first + i, message.to_slice, message.to}).second);
    }
    if (message.from_slice == 0 && message.to_slice == 0)
      links.push_back({from->dp, to->dp, message.first, message.count});
  }
  EXPECT_EQ(links, row.links);
  EXPECT_EQ(received.size(), static_cast<size_t>(row.samples * row.language.tp));
}

INSTANTIATE_TEST_SUITE_P(
    Apart, BridgeTable,
    testing::ValuesIn(std::vector<BridgeCase>{
        BridgeCase{"B1",
                   {.tp = 2, .dp = 2},
                   {.tp = 4},
                   {{0, 1}, {2, 3}},
                   {{4, 5, 6, 7}},
                   {{0, 0, 0, 2}, {1, 0, 2, 2}}},
        BridgeCase{"B2",
                   {.tp = 4},
                   {.tp = 2, .dp = 2},
                   {{0, 1, 2, 3}},
                   {{4, 5}, {6, 7}},
                   {{0, 0, 0, 2}, {0, 1, 2, 2}}},
        BridgeCase{"B3", {.tp = 2}, {.tp = 2, .offset = 4}, {{0, 1}}, {{4, 5}}, {{0, 0, 0, 4}}},
        BridgeCase{"B4",
                   {.dp = 4},
                   {.tp = 4},
                   {{0}, {1}, {2}, {3}},
                   {{4, 5, 6, 7}},
                   {{0, 0, 0, 1}, {1, 0, 1, 1}, {2, 0, 2, 1}, {3, 0, 3, 1}}},
        BridgeCase{"B5",
                   {.tp = 4},
                   {.dp = 4},
                   {{0, 1, 2, 3}},
                   {{4}, {5}, {6}, {7}},
                   {{0, 0, 0, 1}, {0, 1, 1, 1}, {0, 2, 2, 1}, {0, 3, 3, 1}}},
        BridgeCase{"B6", {.tp = 2}, {.tp = 2, .pp = 3}, {{0, 1}}, {{2, 3}}, {{0, 0, 0, 4}}},
        BridgeCase{
            "B7", {.tp = 2, .pp = 2}, {.tp = 2, .pp = 2}, {{2, 3}}, {{4, 5}}, {{0, 0, 0, 4}}},
        // No ratio is refused: lanes meet where their samples do.
        BridgeCase{"ThreeToTwo",
                   {.dp = 3},
                   {.dp = 2},
                   {{0}, {1}, {2}},
                   {{3}, {4}},
                   {{0, 0, 0, 2}, {1, 0, 2, 1}, {1, 1, 3, 1}, {2, 1, 4, 2}},
                   6}}),
    [](const auto& row) { return row.param.id; });

// One grid of eight ranks, stages inside lanes, as source and as destination.
INSTANTIATE_TEST_SUITE_P(
    EightRanks, BridgeTable,
    testing::ValuesIn(std::vector<BridgeCase>{
        BridgeCase{"FromTp2Pp2Dp2",
                   {.tp = 2, .dp = 2, .pp = 2, .order = kPipelineInsideData},
                   {},
                   {{2, 3}, {6, 7}},
                   {{8}},
                   {{0, 0, 0, 2}, {1, 0, 2, 2}}},
        BridgeCase{"ToTp2Pp2Dp2",
                   {.offset = 8},
                   {.tp = 2, .dp = 2, .pp = 2, .order = kPipelineInsideData, .offset = 0},
                   {{8}},
                   {{0, 1}, {4, 5}},
                   {{0, 0, 0, 2}, {0, 1, 2, 2}}},
        BridgeCase{"FromTp4Pp2",
                   {.tp = 4, .pp = 2, .order = kPipelineInsideData},
                   {},
                   {{4, 5, 6, 7}},
                   {{8}},
                   {{0, 0, 0, 4}}},
        BridgeCase{"ToTp4Pp2",
                   {.offset = 8},
                   {.tp = 4, .pp = 2, .order = kPipelineInsideData, .offset = 0},
                   {{8}},
                   {{0, 1, 2, 3}},
                   {{0, 0, 0, 4}}},
        BridgeCase{"FromPp2Dp4",
                   {.dp = 4, .pp = 2, .order = kPipelineInsideData},
                   {},
                   {{1}, {3}, {5}, {7}},
                   {{8}},
                   {{0, 0, 0, 1}, {1, 0, 1, 1}, {2, 0, 2, 1}, {3, 0, 3, 1}}},
        BridgeCase{"ToPp2Dp4",
                   {.offset = 8},
                   {.dp = 4, .pp = 2, .order = kPipelineInsideData, .offset = 0},
                   {{8}},
                   {{0}, {2}, {4}, {6}},
                   {{0, 0, 0, 1}, {0, 1, 1, 1}, {0, 2, 2, 1}, {0, 3, 3, 1}}},
        BridgeCase{"FromTp2Pp4",
                   {.tp = 2, .pp = 4, .order = kPipelineInsideData},
                   {},
                   {{6, 7}},
                   {{8}},
                   {{0, 0, 0, 4}}},
        BridgeCase{"ToTp2Pp4",
                   {.offset = 8},
                   {.tp = 2, .pp = 4, .order = kPipelineInsideData, .offset = 0},
                   {{8}},
                   {{0, 1}},
                   {{0, 0, 0, 4}}}}),
    [](const auto& row) { return row.param.id; });

INSTANTIATE_TEST_SUITE_P(
    Colocated, BridgeTable,
    testing::ValuesIn(std::vector<BridgeCase>{
        BridgeCase{"C1",
                   {.tp = 2, .dp = 4},
                   {.tp = 4, .dp = 2, .offset = 0},
                   {{0, 1}, {2, 3}, {4, 5}, {6, 7}},
                   {{0, 1, 2, 3}, {4, 5, 6, 7}},
                   {{0, 0, 0, 1}, {1, 0, 1, 1}, {2, 1, 2, 1}, {3, 1, 3, 1}}},
        BridgeCase{"C2",
                   {.tp = 4, .dp = 2},
                   {.tp = 2, .dp = 4, .offset = 0},
                   {{0, 1, 2, 3}, {4, 5, 6, 7}},
                   {{0, 1}, {2, 3}, {4, 5}, {6, 7}},
                   {{0, 0, 0, 1}, {0, 1, 1, 1}, {1, 2, 2, 1}, {1, 3, 3, 1}}},
        BridgeCase{"C3",
                   {.tp = 2, .dp = 2, .offset = 4},
                   {.dp = 4, .offset = 4},
                   {{4, 5}, {6, 7}},
                   {{4}, {5}, {6}, {7}},
                   {{0, 0, 0, 1}, {0, 1, 1, 1}, {1, 2, 2, 1}, {1, 3, 3, 1}}},
        BridgeCase{"C7",
                   {.tp = 4, .dp = 2},
                   {.tp = 4, .dp = 2, .offset = 0},
                   {{0, 1, 2, 3}, {4, 5, 6, 7}},
                   {{0, 1, 2, 3}, {4, 5, 6, 7}},
                   {{0, 0, 0, 2}, {1, 1, 2, 2}}},
        // Language models of two stages, these inside the lanes or around them. Samples decide who
        // sends to whom, so lanes on ranks of the second stage reach their own replica in both.
        BridgeCase{"FanInStagesInside",
                   {.tp = 2, .dp = 4},
                   {.tp = 2, .dp = 2, .pp = 2, .order = kPipelineInsideData, .offset = 0},
                   {{0, 1}, {2, 3}, {4, 5}, {6, 7}},
                   {{0, 1}, {4, 5}},
                   {{0, 0, 0, 1}, {1, 0, 1, 1}, {2, 1, 2, 1}, {3, 1, 3, 1}}},
        BridgeCase{"FanInStagesAround",
                   {.tp = 2, .dp = 4},
                   {.tp = 2, .dp = 2, .pp = 2, .offset = 0},
                   {{0, 1}, {2, 3}, {4, 5}, {6, 7}},
                   {{0, 1}, {2, 3}},
                   {{0, 0, 0, 1}, {1, 0, 1, 1}, {2, 1, 2, 1}, {3, 1, 3, 1}}},
        BridgeCase{"FanOutStagesInside",
                   {.tp = 4, .dp = 2},
                   {.dp = 4, .pp = 2, .order = kPipelineInsideData, .offset = 0},
                   {{0, 1, 2, 3}, {4, 5, 6, 7}},
                   {{0}, {2}, {4}, {6}},
                   {{0, 0, 0, 1}, {0, 1, 1, 1}, {1, 2, 2, 1}, {1, 3, 3, 1}}},
        BridgeCase{"FanOutStagesAround",
                   {.tp = 4, .dp = 2},
                   {.dp = 4, .pp = 2, .offset = 0},
                   {{0, 1, 2, 3}, {4, 5, 6, 7}},
                   {{0}, {1}, {2}, {3}},
                   {{0, 0, 0, 1}, {0, 1, 1, 1}, {1, 2, 2, 1}, {1, 3, 3, 1}}}}),
    [](const auto& row) { return row.param.id; });

// (dp, tp) of C3 and (dp, pp, tp) of a language model with its stages inside the lanes.
TEST(TableTest, Places_OfColocatedModules_MatchTable) {
  const Plan c3 = MustPlan(AJob()
                               .Module("encoder", NoArchitecture(), {.tp = 2, .dp = 2, .offset = 4})
                               .Module("language", NoArchitecture(), {.dp = 4, .offset = 4})
                               .Edge("encoder", "language"));
  for (int i = 0; i < 4; ++i) {
    const std::vector<Place> places = c3.PlacesOf(Rank{4 + i});
    ASSERT_EQ(places.size(), 2u);
    EXPECT_EQ(places[0], (Place{.module = 0, .tp = i % 2, .dp = i / 2, .width = 2}));
    EXPECT_EQ(places[1], (Place{.module = 1, .dp = i}));
  }
  const Plan staged =
      MustPlan(AJob()
                   .Module("encoder", NoArchitecture(), {.tp = 2, .dp = 4})
                   .Module("language", NoArchitecture(),
                           {.tp = 2, .dp = 2, .pp = 2, .order = kPipelineInsideData, .offset = 0})
                   .Edge("encoder", "language"));
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(staged.PlaceOf(Rank{rank}, 1),
              (Place{.module = 1, .tp = rank % 2, .dp = rank / 4, .pp = rank / 2 % 2, .width = 2}));
  }
}

}  // namespace
}  // namespace phalanx::plan
