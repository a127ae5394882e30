#include "core/wire/plan_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/plan/plan.h"
#include "tests/support/specs.h"
#include "tests/unit/core/wire/pictured.h"

namespace phalanx::wire {
namespace {

using ::testing::SizeIs;
using Json = nlohmann::json;
using support::AJob;
using support::ClipVision;
using support::Llama;
using support::NoArchitecture;

// The production layout of the reference: encoder tp2 dp2 at 0, language tp2 pp2 at 4.
Json Production() {
  return Json::parse(JsonOf(MustPlan(AJob()
                                         .Module("vision", ClipVision(), {.tp = 2, .dp = 2})
                                         .Module("language", Llama(), {.tp = 2, .pp = 2})
                                         .Edge("vision", "language", {.projector = 32})
                                         .Batch(6, 2)),
                            {.bubble = 0.25, .lower_bound = 0.2}));
}

TEST(PlanJsonTest, Document_OfAJob_HasEveryDocumentedKeyInOrder) {
  const std::string text = JsonOf(MustPlan(AJob().Module("language", Llama())), {});
  std::vector<std::string> keys;
  const auto document = nlohmann::ordered_json::parse(text);
  for (const auto& [key, value] : document.items()) keys.push_back(key);
  EXPECT_THAT(keys, testing::ElementsAre("apiVersion", "kind", "digest", "world", "epoch",
                                         "modules", "edges", "ranks", "idle", "idle_devices",
                                         "stages", "schedule", "replicas", "segments", "shares",
                                         "shares_left_out", "state_homes", "memory"));
  EXPECT_EQ(document["apiVersion"], "phalanx/v1");
  EXPECT_EQ(document["kind"], "Plan");
}

TEST(PlanJsonTest, Groups_OfProductionLayout_MatchReferenceTable) {
  const Json plan = Production();
  const Json& vision = plan["modules"][0]["groups"];
  EXPECT_EQ(vision["tp"], Json::parse("[[0,1],[2,3]]"));
  EXPECT_EQ(vision["dp"], Json::parse("[[0,2],[1,3]]"));
  EXPECT_EQ(vision["dp-cp-tp"], Json::parse("[[0,1,2,3]]"));
  EXPECT_EQ(vision["expt_dp"], Json::parse("[[0,1,2,3]]"));
  EXPECT_EQ(vision["ep"], Json::parse("[[0],[1],[2],[3]]"));
  EXPECT_FALSE(vision.contains("embedding"));
  const Json& language = plan["modules"][1]["groups"];
  EXPECT_EQ(language["tp"], Json::parse("[[4,5],[6,7]]"));
  EXPECT_EQ(language["pp"], Json::parse("[[4,6],[5,7]]"));
  EXPECT_EQ(language["pp-tp"], Json::parse("[[4,5,6,7]]"));
  EXPECT_EQ(language["dp-cp"], Json::parse("[[4],[5],[6],[7]]"));
  EXPECT_EQ(language["pp-dp-cp-tp"], Json::parse("[[4,5,6,7]]"));
  EXPECT_EQ(language["expt_dp"], Json::parse("[[4,5],[6,7]]"));
  EXPECT_EQ(language["ep-expt_tp"], Json::parse("[[4],[5],[6],[7]]"));
  EXPECT_EQ(language["pp-ep-expt_tp"], Json::parse("[[4,6],[5,7]]"));
  EXPECT_EQ(language["embedding"], Json::parse("[[4,6],[5,7]]"));
  EXPECT_EQ(language["position_embedding"], Json::parse("[[4],[5]]"));
}

TEST(PlanJsonTest, EmbeddingGroups_OfOneStage_HaveOneRank) {
  const Json plan =
      Json::parse(JsonOf(MustPlan(AJob().Module("language", Llama(), {.tp = 2})), {}));
  EXPECT_EQ(plan["modules"][0]["groups"]["embedding"], Json::parse("[[0],[1]]"));
}

TEST(PlanJsonTest, Edges_ShowLanesAndSamplesOfTheFirstMicrobatch) {
  const Json edge = Production()["edges"][0];
  EXPECT_EQ(edge["from"], "vision");
  EXPECT_EQ(edge["to"], "language");
  EXPECT_EQ(edge["colocated"], false);
  EXPECT_EQ(edge["from_lanes"], Json::parse("[[0,1],[2,3]]"));
  EXPECT_EQ(edge["to_lanes"], Json::parse("[[4,5]]"));
  EXPECT_EQ(edge["links"], Json::parse(R"([{"from_lane":0,"to_lane":0,"first":0,"count":1},
                                          {"from_lane":1,"to_lane":0,"first":1,"count":1}])"));
}

TEST(PlanJsonTest, Ranks_ShowPlaceStagesLayersAndWarmup) {
  const Json rank = Production()["ranks"][6];
  EXPECT_EQ(rank["rank"], 6);
  EXPECT_EQ(rank["node"], "node-0");
  EXPECT_EQ(rank["device"], 6);
  const Json& module = rank["modules"][0];
  EXPECT_EQ(module["name"], "language");
  EXPECT_EQ(module["coordinates"], Json::parse(R"({"tp":0,"cp":0,"dp":0,"pp":1})"));
  EXPECT_EQ(module["first_stage"], false);
  EXPECT_EQ(module["last_stage"], true);
  EXPECT_EQ(module["embedding"], false);
  EXPECT_EQ(module["head"], true);
  EXPECT_EQ(module["stages"], Json::parse("[2]"));
  EXPECT_EQ(module["layers"], Json::parse("[[2,2]]"));
  EXPECT_EQ(module["warmup"], 0);
  EXPECT_EQ(Production()["ranks"][0]["modules"][0]["warmup"], 2);
  EXPECT_EQ(Production()["ranks"][0]["modules"][0]["embedding"], false);
  EXPECT_EQ(Production()["stages"], 3);
}

TEST(PlanJsonTest, Warmup_UnderAnotherSchedule_IsNull) {
  const Json plan = Json::parse(JsonOf(
      MustPlan(
          AJob().Module("language", Llama(), {.pp = 2}).Schedule(job::ScheduleName::kZeroBubbleH1)),
      {}));
  EXPECT_TRUE(plan["ranks"][0]["modules"][0]["warmup"].is_null());
  EXPECT_EQ(plan["schedule"]["name"], "zero_bubble_h1");
}

TEST(PlanJsonTest, Schedule_HasTheCallersFigures) {
  const Json schedule = Production()["schedule"];
  EXPECT_EQ(schedule["name"], "1f1b");
  EXPECT_EQ(schedule["microbatches"], 3);
  EXPECT_EQ(schedule["bubble"], 0.25);
  EXPECT_EQ(schedule["lower_bound"], 0.2);
}

TEST(PlanJsonTest, Candidates_ShowWhatWasTriedAndWhatWasChosen) {
  const plan::Plan plan = Chosen();
  const Json json = Json::parse(JsonOf(plan, {}));
  ASSERT_EQ(json["candidates"].size(), plan.candidates.size());
  int chosen = 0;
  for (const Json& candidate : json["candidates"]) {
    if (candidate["chosen"] == false) continue;
    ++chosen;
    EXPECT_EQ(candidate["name"], json["schedule"]["name"]);
    EXPECT_EQ(candidate["chunks"], json["schedule"]["chunks"]);
    EXPECT_GT(candidate["memory"], 0);
  }
  EXPECT_EQ(chosen, 1);
  EXPECT_EQ(json["candidates"][0]["name"], "1f1b");
  EXPECT_EQ(json["candidates"][0]["step"], plan.candidates[0].step);
  EXPECT_EQ(json["candidates"][0]["bubble"], plan.candidates[0].bubble);
  EXPECT_TRUE(json["candidates"][0]["left_out"].is_null());
  EXPECT_EQ(json["candidates"][2]["name"], "interleaved");
  EXPECT_EQ(json["candidates"][2]["chunks"], 3);
  EXPECT_EQ(json["candidates"][2]["left_out"], plan.candidates[2].left_out);
  EXPECT_TRUE(json["candidates"][2]["step"].is_null());
  EXPECT_FALSE(Production().contains("candidates")) << "its schedule was named, or not looked for";
}

TEST(PlanJsonTest, Candidates_OfUnknownShapes_HaveNoMemory) {
  const auto plan =
      schedule::PlanJob(AJob().Module("language", NoArchitecture(), {.pp = 2}).Batch(4, 1),
                        plan::MakeCluster(1, 2), Epoch{1});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Json json = Json::parse(JsonOf(*plan, {}));
  EXPECT_TRUE(json["candidates"][0]["memory"].is_null());
  EXPECT_GT(json["candidates"][0]["step"], 0);
}

TEST(PlanJsonTest, Replicas_ShowUnitsOfEachRank) {
  const Json replicas = Production()["replicas"];
  ASSERT_THAT(replicas, SizeIs(4));
  EXPECT_EQ(replicas[0]["module"], "vision");
  EXPECT_EQ(replicas[0]["samples"], 3);
  const Json& last = replicas[3];
  EXPECT_EQ(last["pp"], 1);
  EXPECT_EQ(last["width"], 2);
  EXPECT_EQ(last["ranks"], Json::parse("[6,7]"));
  EXPECT_EQ(last["samples"], 6);
  EXPECT_EQ(last["units"]["attention"], Json::parse("[[0,4],[4,4]]"));
  EXPECT_EQ(last["units"]["mlp"], Json::parse("[[0,4],[4,4]]"));
  EXPECT_EQ(last["units"]["vocabulary"], Json::parse("[[0,6],[6,6]]"));
}

TEST(PlanJsonTest, Segments_ShowHoldersOfEveryReplica) {
  const Json segment = Production()["segments"][1];
  EXPECT_EQ(segment["module"], "vision");
  EXPECT_EQ(segment["family"], "attention");
  EXPECT_EQ(segment["first"], 2);
  EXPECT_EQ(segment["count"], 2);
  EXPECT_EQ(segment["holders"], Json::parse("[[1],[3]]"));
}

TEST(PlanJsonTest, Shares_ShowTheirHomes) {
  const Json plan = Production();
  ASSERT_FALSE(plan["shares"].empty());
  for (const Json& share : plan["shares"]) {
    const Json& segment = plan["segments"][share["segment"].get<size_t>()];
    EXPECT_EQ(segment["module"], share["module"]);
    EXPECT_EQ(segment["pp"], share["pp"]);
    EXPECT_GT(share["count"].get<int64_t>(), 0);
    // The primary holds the segment.
    bool held = false;
    for (const Json& replica : segment["holders"]) {
      for (const Json& rank : replica) held |= rank == share["homes"][0];
    }
    EXPECT_TRUE(held) << share;
  }
  EXPECT_EQ(plan["shares_left_out"], false);
}

TEST(PlanJsonTest, AbsentReplica_HasALaneWithoutRanks) {
  const Json plan = Json::parse(PlanJson(ToProto(WithoutAReplica(), {})));
  EXPECT_EQ(plan["edges"][0]["from_lanes"], Json::parse("[[3],[],[5]]"));
}

TEST(PlanJsonTest, SharesOfALargePlan_AreLeftOutAndTheirRuleStays) {
  const job::JobSpec spec =
      AJob()
          .Module("language", Llama({.hidden_size = 256, .mlp_size = 1024}), {.tp = 8, .dp = 1024})
          .Batch(1024, 1);
  const Json plan = Json::parse(PlanJson(ToProto(MustPlan(spec, 1024, 8), {})));
  EXPECT_EQ(plan["shares"], Json::array());
  EXPECT_EQ(plan["shares_left_out"], true);
  ASSERT_THAT(plan["state_homes"], SizeIs(8));
  const Json& state = plan["state_homes"][7];
  EXPECT_EQ(state["module"], "language");
  EXPECT_EQ(state["pp"], 0);
  EXPECT_EQ(state["tp"], 7);
  ASSERT_THAT(state["homes"], SizeIs(1024));
  EXPECT_EQ(state["homes"][1023][0], 8191);
}

TEST(PlanJsonTest, Memory_OfEveryRank_AddsUp) {
  const Json memory = Production()["memory"];
  ASSERT_THAT(memory, SizeIs(8));
  for (const Json& rank : memory) {
    EXPECT_GT(rank["parameters"].get<int64_t>(), 0);
    EXPECT_EQ(rank["total"].get<int64_t>(),
              rank["parameters"].get<int64_t>() + rank["gradients"].get<int64_t>() +
                  rank["optimizer"].get<int64_t>() + rank["activations"].get<int64_t>());
  }
}

TEST(PlanJsonTest, Idle_NumbersGapsAndWhatIsBeyondTheWorld) {
  const Json plan =
      Json::parse(JsonOf(MustPlan(AJob()
                                      .Module("vision", ClipVision(), {.dp = 2})
                                      .Module("language", Llama(), {.dp = 2, .offset = 4})
                                      .Edge("vision", "language"),
                                  2, 4),
                         {}));
  EXPECT_EQ(plan["world"], 6);
  EXPECT_EQ(plan["idle"], Json::parse("[2,3,6,7]"));
  EXPECT_EQ(plan["idle_devices"][2], Json::parse(R"({"node":"node-1","device":2})"));
  EXPECT_THAT(plan["ranks"], SizeIs(6));
  EXPECT_EQ(plan["ranks"][2]["modules"], Json::array());
}

TEST(PlanJsonTest, Colocated_Modules_AreSaidToBe) {
  const Json plan =
      Json::parse(JsonOf(MustPlan(AJob()
                                      .Module("vision", ClipVision(), {.dp = 4})
                                      .Module("language", Llama(), {.tp = 4, .offset = 0})
                                      .Edge("vision", "language")),
                         {}));
  EXPECT_EQ(plan["edges"][0]["colocated"], true);
  EXPECT_THAT(plan["ranks"][0]["modules"], SizeIs(2));
}

TEST(PlanJsonTest, Plan_WithoutArchitecture_HasNoFigures) {
  const Json plan =
      Json::parse(JsonOf(MustPlan(AJob().Module("language", NoArchitecture(), {.pp = 2})), {}));
  EXPECT_EQ(plan["segments"], Json::array());
  EXPECT_EQ(plan["memory"], Json::array());
  EXPECT_TRUE(plan["replicas"][0]["units"].is_null());
  EXPECT_EQ(plan["ranks"][1]["modules"][0]["layers"], Json::parse("[[0,0]]"));
}

TEST(PlanJsonTest, Loss_ListsMovesWithWhereTheyComeFrom) {
  AJob job;
  job.Module("language", Llama(), {.tp = 2, .dp = 2, .pp = 2}).Batch(8, 2);
  const auto preview = schedule::PreviewJob(job, plan::MakeCluster(1, 8), {}, {Rank{2}});
  ASSERT_TRUE(preview.ok()) << preview.status();
  const Json shown = Json::parse(JsonOf(preview->plan, FiguresOf(*preview)));
  EXPECT_EQ(shown["lost"], Json::parse("[2]"));
  EXPECT_EQ(shown["steps_lost"], 0);
  EXPECT_EQ(shown["safe_again_steps"], preview->loss->moves.safe_again_steps);
  EXPECT_GT(shown["step_ratio"], 1.0);
  int64_t elements = 0;
  for (const Json& move : shown["moves"]) {
    EXPECT_EQ(move["module"], "language");
    EXPECT_NE(move["from"], 2);
    EXPECT_EQ(move["from_pp"], 0) << "the stage of rank 2";
    EXPECT_EQ(move["to_pp"], 0);
    elements += move["count"].get<int64_t>();
  }
  EXPECT_GT(elements, 0);
  EXPECT_EQ(shown["bytes_moved"], 12 * elements);
  EXPECT_EQ(shown["moves_left_out"], false);
}

TEST(PlanJsonTest, Restart_HasTheHealthyGridAndTheOneThatFollows) {
  const Restarted restarted = MustRestart();
  const Json json = Json::parse(JsonOf(restarted.plan, restarted.figures));
  const Json& module = json["modules"][0];
  EXPECT_EQ(module["axes"]["pp"], 2) << "the healthy grid";
  EXPECT_EQ(module["stage_layers"].size(), 1u);
  EXPECT_EQ(module["restart"], Json({{"tp", 2}, {"dp", 1}, {"pp", 1}, {"ranks", {2, 3}}}));
  EXPECT_EQ(json["idle"].size(), 1u);
  ASSERT_GT(json["moves"].size(), 0u);
  for (const Json& move : json["moves"]) {
    EXPECT_EQ(move["to_pp"], 0);
    EXPECT_EQ(move["from_pp"], 0) << "stage 1 has the rest on the ranks that are left";
  }
}

}  // namespace
}  // namespace phalanx::wire
