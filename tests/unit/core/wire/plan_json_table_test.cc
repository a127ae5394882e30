// The rank, group, stage and bridge tables of multi-module layouts as `phalanx plan -o json` shows
// them. The rows themselves are tested against core/plan in tests/unit/core/plan/table_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/wire/job_yaml.h"
#include "core/wire/plan_json.h"
#include "tests/support/specs.h"
#include "tests/unit/core/wire/pictured.h"

namespace phalanx::wire {
namespace {

using Json = nlohmann::json;
using support::AJob;
using support::Layout;
using support::Llama;
using support::NoArchitecture;
using support::Regressor;
using ::testing::HasSubstr;

constexpr std::array<job::MeshAxis, 4> kPipelineInsideData = {
    job::MeshAxis::kTensor, job::MeshAxis::kContext, job::MeshAxis::kPipeline,
    job::MeshAxis::kData};

Json Shown(const job::JobSpec& spec) { return Json::parse(JsonOf(MustPlan(spec, 4, 8), {})); }

// ---- Axes ----

std::string BareJob(const std::string& parallel, int offset = 0) {
  return absl::StrCat(
      "metadata: {name: bare}\nspec:\n  steps: 1\n  batch: {global: 4}\n"
      "  modules:\n    - {name: language, parallel: {",
      parallel, "}, offset: ", offset, "}\n");
}

TEST(PlanJsonTableTest, DataAxes_AreDerivedFromTheRanks) {
  const auto axes = [](const std::string& parallel) {
    auto job = ReadJobFile(BareJob(parallel), job::Purpose::kPlan);
    EXPECT_TRUE(job.ok()) << job.status();
    return Shown(job->spec)["modules"][0];
  };
  const Json plain = axes("ranks: 4, tp: 2");
  EXPECT_EQ(plain["axes"], Json::parse(R"({"tp":2,"cp":1,"dp":2,"pp":1})"));
  EXPECT_EQ(plain["expert_axes"], Json::parse(R"({"expt_tp":1,"ep":1,"expt_dp":4,"pp":1})"));
  const Json experts = axes("ranks: 4, tp: 2, ep: 2, expt_tp: 2");
  EXPECT_EQ(experts["expert_axes"], Json::parse(R"({"expt_tp":2,"ep":2,"expt_dp":1,"pp":1})"));
  EXPECT_EQ(experts["groups"]["ep-expt_tp"], Json::parse("[[0,1,2,3]]"));
}

TEST(PlanJsonTableTest, AxesThatDoNotDivideTheRanks_AreRefused) {
  for (const char* parallel : {"ranks: 4, tp: 3", "ranks: 4, tp: 2, ep: 3, expt_tp: 2"}) {
    const auto job = ReadJobFile(BareJob(parallel), job::Purpose::kPlan);
    EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument) << parallel;
    EXPECT_THAT(std::string(job.status().message()), HasSubstr("must divide ranks (4)"));
  }
}

// ---- Groups and roles ----

TEST(PlanJsonTableTest, Groups_OfProductionLayout_AreAllThere) {
  const Json plan = Shown(AJob()
                              .Module("vision", NoArchitecture(), {.tp = 2, .dp = 2})
                              .Module("language", NoArchitecture(), {.tp = 2, .pp = 2})
                              .Edge("vision", "language"));
  EXPECT_EQ(plan["modules"][0]["groups"], Json::parse(R"({
      "tp":[[0,1],[2,3]], "cp":[[0],[1],[2],[3]], "dp":[[0,2],[1,3]], "pp":[[0],[1],[2],[3]],
      "dp-cp":[[0,2],[1,3]], "cp-tp":[[0,1],[2,3]], "dp-tp":[[0,1,2,3]], "pp-tp":[[0,1],[2,3]],
      "dp-cp-tp":[[0,1,2,3]], "pp-dp-cp-tp":[[0,1,2,3]],
      "expt_tp":[[0],[1],[2],[3]], "ep":[[0],[1],[2],[3]], "expt_dp":[[0,1,2,3]],
      "ep-expt_tp":[[0],[1],[2],[3]], "pp-ep-expt_tp":[[0],[1],[2],[3]]})"));
  EXPECT_EQ(plan["modules"][1]["groups"], Json::parse(R"({
      "tp":[[4,5],[6,7]], "cp":[[4],[5],[6],[7]], "dp":[[4],[5],[6],[7]], "pp":[[4,6],[5,7]],
      "dp-cp":[[4],[5],[6],[7]], "cp-tp":[[4,5],[6,7]], "dp-tp":[[4,5],[6,7]],
      "pp-tp":[[4,5,6,7]], "dp-cp-tp":[[4,5],[6,7]], "pp-dp-cp-tp":[[4,5,6,7]],
      "expt_tp":[[4],[5],[6],[7]], "ep":[[4],[5],[6],[7]], "expt_dp":[[4,5],[6,7]],
      "ep-expt_tp":[[4],[5],[6],[7]], "pp-ep-expt_tp":[[4,6],[5,7]],
      "embedding":[[4,6],[5,7]], "position_embedding":[[4],[5]]})"));
}

struct GroupCase {
  const char* id;
  const char* parallel;
  int offset;
  const char* name;
  const char* groups;
};

class GroupTable : public testing::TestWithParam<GroupCase> {};

TEST_P(GroupTable, Groups_OfAModule_AreUnderTheirName) {
  const GroupCase& row = GetParam();
  auto job = ReadJobFile(BareJob(row.parallel, row.offset), job::Purpose::kPlan);
  ASSERT_TRUE(job.ok()) << job.status();
  const Json plan = Shown(job->spec);
  EXPECT_EQ(plan["modules"][0]["groups"][row.name], Json::parse(row.groups));
}

constexpr GroupCase kGroups[] = {
    {"G1", "ranks: 8, tp: 2", 0, "tp", "[[0,1],[2,3],[4,5],[6,7]]"},
    {"G3", "ranks: 8, tp: 2, cp: 2", 0, "cp-tp", "[[0,1,2,3],[4,5,6,7]]"},
    {"G4", "ranks: 4, tp: 2", 4, "tp", "[[4,5],[6,7]]"},
    {"G9", "ranks: 8, tp: 2, pp: 2, ep: 2, expt_tp: 2", 0, "ep-expt_tp", "[[0,1,2,3],[4,5,6,7]]"},
    {"G10", "ranks: 8, tp: 2, pp: 2, ep: 2, expt_tp: 2", 0, "pp", "[[0,4],[1,5],[2,6],[3,7]]"},
    {"G12", "ranks: 8, tp: 2, pp: 2, order: [tp, cp, pp, dp]", 0, "cp-tp",
     "[[0,1],[2,3],[4,5],[6,7]]"},
    {"G14", "ranks: 8, pp: 2, order: [tp, cp, pp, dp]", 0, "dp", "[[0,2,4,6],[1,3,5,7]]"},
};
INSTANTIATE_TEST_SUITE_P(Rows, GroupTable, testing::ValuesIn(kGroups),
                         [](const auto& row) { return row.param.id; });

TEST(PlanJsonTableTest, Groups_OfAnotherAxisOrder_AreNamedInThatOrder) {
  using A = job::MeshAxis;
  const Json groups = Shown(AJob().Module(
      "language", NoArchitecture(),
      {.tp = 2,
       .dp = 2,
       .pp = 2,
       .order = {A::kTensor, A::kContext, A::kPipeline, A::kData}}))["modules"][0]["groups"];
  EXPECT_EQ(groups["pp"], Json::parse("[[0,2],[1,3],[4,6],[5,7]]"));
  EXPECT_EQ(groups["dp-pp-cp-tp"], Json::parse("[[0,1,2,3,4,5,6,7]]"));
  EXPECT_EQ(groups["embedding"], Json::parse("[[0,2],[1,3],[4,6],[5,7]]"));
}

// Ranks of the middle embed nothing and head nothing.
TEST(PlanJsonTableTest, Embedding_OfALongPipeline_IsAtItsEnds) {
  const Json plan = Shown(AJob().Module("language", Llama(), {.pp = 4}));
  EXPECT_EQ(plan["modules"][0]["groups"]["embedding"], Json::parse("[[0,3]]"));
  EXPECT_EQ(plan["modules"][0]["groups"]["position_embedding"], Json::parse("[[0]]"));
  for (int rank = 0; rank < 4; ++rank) {
    const Json& module = plan["ranks"][rank]["modules"][0];
    EXPECT_EQ(module["embedding"], rank == 0);
    EXPECT_EQ(module["head"], rank == 3);
    EXPECT_EQ(module["first_stage"], rank == 0);
    EXPECT_EQ(module["last_stage"], rank == 3);
  }
}

// ---- Stages ----

struct StageCase {
  std::string id;
  job::JobSpec spec;
  int stages;
  std::vector<std::pair<int, int>> ranks;  // stage and warm-up of each
};

job::JobSpec Chain(int32_t encoder, int32_t language) {
  return AJob()
      .Module("encoder", NoArchitecture(encoder), {.pp = encoder})
      .Module("language", NoArchitecture(language), {.pp = language})
      .Edge("encoder", "language");
}

class StageTable : public testing::TestWithParam<StageCase> {};

TEST_P(StageTable, StagesAndWarmups_OfAGraph_MatchTable) {
  const StageCase& row = GetParam();
  const Json plan = Shown(row.spec);
  EXPECT_EQ(plan["stages"], row.stages);
  ASSERT_EQ(plan["ranks"].size(), row.ranks.size());
  for (size_t rank = 0; rank < row.ranks.size(); ++rank) {
    const Json& module = plan["ranks"][rank]["modules"][0];
    EXPECT_EQ(module["stages"], Json::array({row.ranks[rank].first}));
    EXPECT_EQ(module["warmup"], row.ranks[rank].second);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rows, StageTable,
    testing::Values(StageCase{"OneAndOne", Chain(1, 1), 2, {{0, 1}, {1, 0}}},
                    StageCase{"OneAndThree", Chain(1, 3), 4, {{0, 3}, {1, 2}, {2, 1}, {3, 0}}},
                    StageCase{"TwoAndTwo", Chain(2, 2), 4, {{0, 3}, {1, 2}, {2, 1}, {3, 0}}},
                    StageCase{"TwoEncodersAndAGenerator",
                              AJob()
                                  .Module("image", NoArchitecture())
                                  .Module("audio", NoArchitecture())
                                  .Module("language", NoArchitecture(), {.pp = 2})
                                  .Module("generator", NoArchitecture())
                                  .Edge("image", "language")
                                  .Edge("audio", "language")
                                  .Edge("language", "generator"),
                              4,
                              {{0, 3}, {0, 3}, {1, 2}, {2, 1}, {3, 0}}}),
    [](const auto& row) { return row.param.id; });

TEST(PlanJsonTableTest, Chunks_OfInterleavedStages_ShowStagesAndLayersInDataOrder) {
  const Json plan = Shown(AJob()
                              .Module("language", Llama({.layers = 8}), {.pp = 2})
                              .Batch(4, 1)
                              .Schedule(job::ScheduleName::kInterleaved, 2));
  EXPECT_EQ(plan["stages"], 4);
  for (int pp = 0; pp < 2; ++pp) {
    const Json& module = plan["ranks"][pp]["modules"][0];
    EXPECT_EQ(module["stages"], Json::array({pp, 2 + pp}));
    ASSERT_EQ(module["layers"].size(), 2u);
    EXPECT_TRUE(module["warmup"].is_null());
  }
  const Json& first = plan["ranks"][0]["modules"][0]["layers"];
  const Json& last = plan["ranks"][1]["modules"][0]["layers"];
  EXPECT_EQ(first[0][0], 0);
  EXPECT_EQ(last[0][0], first[0][1]);
  EXPECT_EQ(first[1][0], last[0][0].get<int>() + last[0][1].get<int>());
  EXPECT_EQ(last[1][0].get<int>() + last[1][1].get<int>(), 8);
  EXPECT_EQ(plan["ranks"][0]["modules"][0]["embedding"], true);
  EXPECT_EQ(plan["ranks"][0]["modules"][0]["head"], false);
  EXPECT_EQ(plan["ranks"][1]["modules"][0]["head"], true);
  EXPECT_EQ(plan["schedule"]["name"], "interleaved");
}

// The first ranks of a V hold both ends of the module; what follows it is fed from there.
TEST(PlanJsonTableTest, Chunks_OfAVee_HaveBothEndsOnTheFirstRank) {
  const Json plan = Shown(AJob()
                              .Module("language", Llama({.layers = 8}), {.tp = 2, .pp = 2})
                              .Module("predictor", Regressor({.layers = 2}))
                              .Edge("language", "predictor")
                              .Batch(4, 1)
                              .Schedule(job::ScheduleName::kZeroBubbleV, 2));
  EXPECT_EQ(plan["stages"], 5);
  const Json& first = plan["ranks"][0]["modules"][0];
  const Json& turn = plan["ranks"][2]["modules"][0];
  EXPECT_EQ(first["stages"], Json::parse("[0,3]"));
  EXPECT_EQ(turn["stages"], Json::parse("[1,2]"));
  EXPECT_EQ(first["layers"][0][0], 0);
  EXPECT_EQ(first["layers"][1][0].get<int>() + first["layers"][1][1].get<int>(), 8);
  for (const char* role : {"embedding", "head", "first_stage", "last_stage"}) {
    EXPECT_EQ(first[role], true) << role;
    EXPECT_EQ(turn[role], false) << role;
  }
  EXPECT_EQ(plan["modules"][0]["groups"]["embedding"], Json::parse("[[0],[1]]"));
  EXPECT_EQ(plan["edges"][0]["from_lanes"], Json::parse("[[0,1]]"));
  for (const Json& replica : plan["replicas"]) {
    if (replica["module"] != "language") continue;
    EXPECT_EQ(replica["units"]["vocabulary"].empty(), replica["pp"] != 0);
  }
}

// ---- Edges ----

struct EdgeCase {
  std::string id;
  Layout source, language;
  bool colocated;
  std::string from_lanes, to_lanes;
  std::string links;  // from_lane, to_lane, first, count
};

class EdgeTable : public testing::TestWithParam<EdgeCase> {};

TEST_P(EdgeTable, Edge_OfAPlan_ShowsLanesAndLinks) {
  const EdgeCase& row = GetParam();
  const int64_t samples = 6 * row.language.dp;
  const Json edge = Shown(AJob()
                              .Module("vision", NoArchitecture(), row.source)
                              .Module("language", NoArchitecture(), row.language)
                              .Edge("vision", "language")
                              .Batch(samples, 6))["edges"][0];
  EXPECT_EQ(edge["colocated"], row.colocated);
  EXPECT_EQ(edge["from_lanes"], Json::parse(row.from_lanes));
  EXPECT_EQ(edge["to_lanes"], Json::parse(row.to_lanes));
  Json links = Json::array();
  for (const Json& link : edge["links"]) {
    links.push_back({link["from_lane"], link["to_lane"], link["first"], link["count"]});
  }
  EXPECT_EQ(links, Json::parse(row.links));
}

INSTANTIATE_TEST_SUITE_P(
    Rows, EdgeTable,
    testing::Values(
        EdgeCase{"B1",
                 {.tp = 2, .dp = 2},
                 {.tp = 4},
                 false,
                 "[[0,1],[2,3]]",
                 "[[4,5,6,7]]",
                 "[[0,0,0,3],[1,0,3,3]]"},
        EdgeCase{"B2",
                 {.tp = 4},
                 {.tp = 2, .dp = 2},
                 false,
                 "[[0,1,2,3]]",
                 "[[4,5],[6,7]]",
                 "[[0,0,0,6],[0,1,6,6]]"},
        EdgeCase{
            "B3", {.tp = 2}, {.tp = 2, .offset = 4}, false, "[[0,1]]", "[[4,5]]", "[[0,0,0,6]]"},
        EdgeCase{"B4",
                 {.dp = 4},
                 {.tp = 4},
                 false,
                 "[[0],[1],[2],[3]]",
                 "[[4,5,6,7]]",
                 "[[0,0,0,2],[1,0,2,2],[2,0,4,1],[3,0,5,1]]"},
        EdgeCase{"B5",
                 {.tp = 4},
                 {.dp = 4},
                 false,
                 "[[0,1,2,3]]",
                 "[[4],[5],[6],[7]]",
                 "[[0,0,0,6],[0,1,6,6],[0,2,12,6],[0,3,18,6]]"},
        EdgeCase{"B6", {.tp = 2}, {.tp = 2, .pp = 3}, false, "[[0,1]]", "[[2,3]]", "[[0,0,0,6]]"},
        EdgeCase{"B7",
                 {.tp = 2, .pp = 2},
                 {.tp = 2, .pp = 2},
                 false,
                 "[[2,3]]",
                 "[[4,5]]",
                 "[[0,0,0,6]]"},
        EdgeCase{"ThreeToTwo",
                 {.dp = 3},
                 {.dp = 2},
                 false,
                 "[[0],[1],[2]]",
                 "[[3],[4]]",
                 "[[0,0,0,4],[1,0,4,2],[1,1,6,2],[2,1,8,4]]"},
        // A lane with context parallelism is the ranks that share its samples.
        EdgeCase{"Context",
                 {.dp = 2},
                 {.tp = 2, .cp = 2},
                 false,
                 "[[0],[1]]",
                 "[[2,3,4,5]]",
                 "[[0,0,0,3],[1,0,3,3]]"},
        EdgeCase{"C1",
                 {.tp = 2, .dp = 4},
                 {.tp = 4, .dp = 2, .offset = 0},
                 true,
                 "[[0,1],[2,3],[4,5],[6,7]]",
                 "[[0,1,2,3],[4,5,6,7]]",
                 "[[0,0,0,3],[1,0,3,3],[2,1,6,3],[3,1,9,3]]"},
        EdgeCase{"C2",
                 {.tp = 4, .dp = 2},
                 {.tp = 2, .dp = 4, .offset = 0},
                 true,
                 "[[0,1,2,3],[4,5,6,7]]",
                 "[[0,1],[2,3],[4,5],[6,7]]",
                 "[[0,0,0,6],[0,1,6,6],[1,2,12,6],[1,3,18,6]]"},
        EdgeCase{"C3",
                 {.tp = 2, .dp = 2, .offset = 4},
                 {.dp = 4, .offset = 4},
                 true,
                 "[[4,5],[6,7]]",
                 "[[4],[5],[6],[7]]",
                 "[[0,0,0,6],[0,1,6,6],[1,2,12,6],[1,3,18,6]]"},
        EdgeCase{"C7",
                 {.tp = 4, .dp = 2},
                 {.tp = 4, .dp = 2, .offset = 0},
                 true,
                 "[[0,1,2,3],[4,5,6,7]]",
                 "[[0,1,2,3],[4,5,6,7]]",
                 "[[0,0,0,6],[1,1,6,6]]"},
        // Stages inside the lanes or around them.
        EdgeCase{"FanInStagesInside",
                 {.tp = 2, .dp = 4},
                 {.tp = 2, .dp = 2, .pp = 2, .order = kPipelineInsideData, .offset = 0},
                 true,
                 "[[0,1],[2,3],[4,5],[6,7]]",
                 "[[0,1],[4,5]]",
                 "[[0,0,0,3],[1,0,3,3],[2,1,6,3],[3,1,9,3]]"},
        EdgeCase{"FanInStagesAround",
                 {.tp = 2, .dp = 4},
                 {.tp = 2, .dp = 2, .pp = 2, .offset = 0},
                 true,
                 "[[0,1],[2,3],[4,5],[6,7]]",
                 "[[0,1],[2,3]]",
                 "[[0,0,0,3],[1,0,3,3],[2,1,6,3],[3,1,9,3]]"},
        EdgeCase{"FanOutStagesInside",
                 {.tp = 4, .dp = 2},
                 {.dp = 4, .pp = 2, .order = kPipelineInsideData, .offset = 0},
                 true,
                 "[[0,1,2,3],[4,5,6,7]]",
                 "[[0],[2],[4],[6]]",
                 "[[0,0,0,6],[0,1,6,6],[1,2,12,6],[1,3,18,6]]"},
        EdgeCase{"FanOutStagesAround",
                 {.tp = 4, .dp = 2},
                 {.dp = 4, .pp = 2, .offset = 0},
                 true,
                 "[[0,1,2,3],[4,5,6,7]]",
                 "[[0],[1],[2],[3]]",
                 "[[0,0,0,6],[0,1,6,6],[1,2,12,6],[1,3,18,6]]"}),
    [](const auto& row) { return row.param.id; });

// Two encoders share ranks beside a language model elsewhere; a gap stays idle.
TEST(PlanJsonTableTest, MixedSpans_ShowWhoIsColocatedAndWhatIsIdle) {
  const Json plan = Json::parse(
      JsonOf(MustPlan(AJob()
                          .Module("vision", NoArchitecture(), {.dp = 2})
                          .Module("audio", NoArchitecture(), {.tp = 2, .offset = 0})
                          .Module("language", NoArchitecture(), {.tp = 2, .pp = 2, .offset = 3})
                          .Edge("vision", "language")
                          .Edge("audio", "language"),
                      1, 8),
             {}));
  EXPECT_EQ(plan["ranks"][1]["modules"].size(), 2u);
  EXPECT_EQ(plan["ranks"][2]["modules"], Json::array());
  EXPECT_EQ(plan["idle"], Json::parse("[2,7]"));
  for (const Json& edge : plan["edges"]) EXPECT_EQ(edge["colocated"], false);
}

}  // namespace
}  // namespace phalanx::wire
