#include "core/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/violation.h"
#include "core/plan/cost.h"
#include "tests/support/specs.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using support::NoArchitecture;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

std::vector<Violation> ViolationsOfPlan(const job::JobSpec& spec) {
  return ViolationsOf(MakePlan(spec, MakeCluster(1, 64), Epoch{1}).status());
}

AJob VisionAndLanguage() {
  return AJob()
      .Module("vision", ClipVision(), {.dp = 2})
      .Module("language", Llama(), {.tp = 2, .pp = 2})
      .Edge("vision", "language", {.projector = 48})
      .Batch(8, 2);
}

TEST(PlanTest, Places_OfEncoderBesideLanguage_FollowTheGrids) {
  const Plan plan = MustPlan(VisionAndLanguage());
  EXPECT_EQ(plan.world, 6);
  EXPECT_THAT(plan.PlacesOf(Rank{1}), ElementsAre(Place{.module = 0, .dp = 1}));
  EXPECT_THAT(plan.PlacesOf(Rank{5}),
              ElementsAre(Place{.module = 1, .tp = 1, .pp = 1, .width = 2}));
  EXPECT_EQ(Numbers(plan.TensorGroup(1, 0, 1)), (std::vector<int>{4, 5}));
  EXPECT_EQ(Numbers(plan.DataGroupOf({.module = 0})), (std::vector<int>{0, 1}));
  EXPECT_EQ(plan.Reporter(), Rank{4});
  EXPECT_TRUE(plan.IsSink(1));
  EXPECT_FALSE(plan.IsSink(0));
}

TEST(PlanTest, RankOf_EveryPlaceOfEveryOrder_RoundTrips) {
  using A = job::MeshAxis;
  std::array<A, 4> order = {A::kTensor, A::kContext, A::kData, A::kPipeline};
  int orders = 0;
  do {
    const Plan plan =
        MustPlan(AJob().Module("language", NoArchitecture(),
                               {.tp = 2, .cp = 2, .dp = 3, .pp = 2, .order = order, .offset = 3}));
    std::set<int32_t> seen;
    for (int32_t rank = 0; rank < plan.world; ++rank) {
      for (const Place& place : plan.PlacesOf(Rank{rank})) {
        EXPECT_EQ(plan.RankOf(place), Rank{rank});
        EXPECT_THAT(plan.TensorGroup(0, place.dp, place.pp, place.cp), Contains(Rank{rank}));
        EXPECT_THAT(plan.DataGroupOf(place), Contains(Rank{rank}));
        seen.insert(rank);
      }
    }
    EXPECT_EQ(seen.size(), 24u);
    ++orders;
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(orders, 24);
}

TEST(PlanTest, Links_WithinModulesFirst_ThenEdges) {
  const Plan plan = MustPlan(VisionAndLanguage());
  EXPECT_THAT(plan.links, ElementsAre(Link{.from = {.module = 1}, .to = {.module = 1, .stage = 1}},
                                      Link{.to = {.module = 1}, .edge = 0}));
  EXPECT_THAT(plan.LinksInto({1, 0}), ElementsAre(1));
  EXPECT_THAT(plan.LinksOutOf({0, 0}), ElementsAre(1));
  EXPECT_THAT(plan.LinksInto({1, 1}), ElementsAre(0));
  EXPECT_THAT(plan.LinksOutOf({1, 1}), ElementsAre());
}

TEST(PlanTest, Stages_OfUnequalDepths_TakeTheLongestPath) {
  const Plan plan = MustPlan(AJob()
                                 .Module("vision", NoArchitecture(), {.pp = 2})
                                 .Module("audio", NoArchitecture())
                                 .Module("language", NoArchitecture(), {.pp = 3})
                                 .Edge("vision", "language")
                                 .Edge("audio", "language"));
  EXPECT_EQ(plan.stages, 5);
  EXPECT_EQ(plan.modules[1].first_stage, 0);
  EXPECT_EQ(plan.modules[2].first_stage, 2);
}

// A frozen encoder whose projector trains needs a backward pass on its last stage alone, and what
// it feeds has to hand gradients back.
TEST(PlanTest, Trains_FrozenEncoderWithTrainedProjector_OnItsLastStageAlone) {
  AJob job = VisionAndLanguage();
  job.spec().modules[0].parallel = {.ranks = 2, .pp = 2};
  job.spec().modules[0].frozen = true;
  const Plan plan = MustPlan(job);
  EXPECT_EQ(plan.modules[0].TrainsOf(0), (Trains{.weights = false, .inputs = false}));
  EXPECT_EQ(plan.modules[0].TrainsOf(1), (Trains{.weights = true, .inputs = false}));
  EXPECT_EQ(plan.modules[1].TrainsOf(0), (Trains{.weights = true, .inputs = true}));
}

TEST(PlanTest, Trains_FrozenLanguageBehindTrainedEncoder_PassesGradientsThrough) {
  AJob job = VisionAndLanguage();
  job.spec().modules[1].frozen = true;
  const Plan plan = MustPlan(job);
  EXPECT_EQ(plan.modules[0].TrainsOf(0), (Trains{.weights = true, .inputs = false}));
  for (int32_t stage : {0, 1}) {
    EXPECT_EQ(plan.modules[1].TrainsOf(stage), (Trains{.weights = false, .inputs = true}));
  }
  job.spec().modules[0].frozen = true;
  job.spec().edges[0].projector->frozen = true;
  EXPECT_FALSE(MustPlan(job).modules[1].TrainsOf(1).any());
}

TEST(PlanTest, StageLayers_Written_Win) {
  const Plan plan =
      MustPlan(AJob().Module("language", Llama({.layers = 7}), {.pp = 3, .layers = {4, 2, 1}}));
  EXPECT_THAT(plan.modules[0].stage_layers,
              ElementsAre(LayerRange{0, 4}, LayerRange{4, 2}, LayerRange{6, 1}));
}

TEST(PlanTest, StageLayers_OfChunks_AreInTheOrderOfDataFlow) {
  const Plan plan =
      MustPlan(AJob()
                   .Module("language", Llama({.layers = 8, .vocabulary = 8, .context = 8}),
                           {.pp = 2, .layers = {4, 4}})
                   .Schedule(job::ScheduleName::kInterleaved, 2));
  const ModulePlan& module = plan.modules[0];
  EXPECT_EQ(module.layers(0, 0), (LayerRange{0, 2}));
  EXPECT_EQ(module.layers(1, 0), (LayerRange{2, 2}));
  EXPECT_EQ(module.layers(0, 1), (LayerRange{4, 2}));
  EXPECT_EQ(module.layers(1, 1), (LayerRange{6, 2}));
  EXPECT_EQ(plan.stages, 4);
  EXPECT_THAT(plan.links, ElementsAre(Link{.from = {0, 0, 0}, .to = {0, 1, 0}},
                                      Link{.from = {0, 1, 0}, .to = {0, 0, 1}},
                                      Link{.from = {0, 0, 1}, .to = {0, 1, 1}}));
  EXPECT_TRUE(module.IsFirst(0, 0));
  EXPECT_FALSE(module.IsFirst(0, 1));
  EXPECT_TRUE(module.IsLast(1, 1));
}

TEST(PlanTest, StageLayers_InAVee_TurnAtTheLastStage) {
  const Plan plan =
      MustPlan(AJob()
                   .Module("vision", ClipVision())
                   .Module("language", Llama({.layers = 12, .vocabulary = 8, .context = 8}),
                           {.pp = 3, .layers = {4, 3, 5}})
                   .Edge("vision", "language")
                   .Schedule(job::ScheduleName::kZeroBubbleV));
  const ModulePlan& module = plan.modules[1];
  EXPECT_EQ(module.chunks(), 2);
  EXPECT_EQ(module.order.path, ChunkPath::kVee);
  EXPECT_EQ(module.layers(0, 0), (LayerRange{0, 2}));
  EXPECT_EQ(module.layers(1, 0), (LayerRange{2, 2}));
  EXPECT_EQ(module.layers(2, 0), (LayerRange{4, 3}));
  EXPECT_EQ(module.layers(2, 1), (LayerRange{7, 2}));
  EXPECT_EQ(module.layers(1, 1), (LayerRange{9, 1}));
  EXPECT_EQ(module.layers(0, 1), (LayerRange{10, 2}));
  EXPECT_EQ(plan.stages, 7);
  for (int32_t stage : {0, 1, 2}) {
    EXPECT_EQ(module.GraphStage(stage, 0), 1 + stage);
    EXPECT_EQ(module.GraphStage(stage, 1), 6 - stage);
  }
  EXPECT_TRUE(module.IsFirst(0, 0));
  EXPECT_TRUE(module.IsLast(0, 1));
  EXPECT_FALSE(module.IsLast(2, 1));
  // The rank of the first stage holds both ends.
  EXPECT_EQ(plan.Reporter(), Rank{1});
  EXPECT_EQ(plan.links[2], (Link{.from = {1, 2, 0}, .to = {1, 2, 1}}));
  EXPECT_EQ(plan.links.back(), (Link{.to = {.module = 1}, .edge = 0}));
  EXPECT_EQ(module.TrainsOf(0, 1), (Trains{.weights = true, .inputs = true}));
}

TEST(PlanTest, FlowOf_EveryPlacement_IsTheInverseOfStageAndChunk) {
  for (const auto& [name, chunks] : {std::pair{job::ScheduleName::kInterleaved, 3},
                                     std::pair{job::ScheduleName::kZeroBubbleV, 1}}) {
    const Plan plan =
        MustPlan(AJob().Module("language", NoArchitecture(), {.pp = 4}).Schedule(name, chunks));
    const ModulePlan& module = plan.modules[0];
    for (int32_t flow = 0; flow < module.pp() * module.chunks(); ++flow) {
      EXPECT_EQ(module.FlowOf(module.StageAt(flow), module.ChunkAt(flow)), flow);
    }
    EXPECT_EQ(module.LastStage(), name == job::ScheduleName::kZeroBubbleV ? 0 : 3);
  }
}

// A regressor is fed by the last part of the language model.
TEST(PlanTest, Links_BehindAVee_LeaveFromTheFirstStage) {
  const Plan plan = MustPlan(AJob()
                                 .Module("language", NoArchitecture(), {.pp = 2})
                                 .Module("generator", NoArchitecture())
                                 .Edge("language", "generator")
                                 .Schedule(job::ScheduleName::kZeroBubbleV));
  EXPECT_EQ(plan.links.back(), (Link{.from = {0, 0, 1}, .to = {.module = 1}, .edge = 0}));
}

TEST(PlanTest, StageLayers_ByCost_CoverAllLayersAndSpareTheHead) {
  for (int32_t layers : {4, 7, 32, 33}) {
    for (int32_t parts = 1; parts <= 4; ++parts) {
      const Plan plan = MustPlan(
          AJob().Module("language", Llama({.layers = layers, .vocabulary = 4000}), {.pp = parts}));
      int32_t next = 0;
      for (const LayerRange& range : plan.modules[0].stage_layers) {
        EXPECT_EQ(range.first, next);
        EXPECT_GE(range.count, 1);
        next += range.count;
      }
      EXPECT_EQ(next, layers);
      EXPECT_LE(plan.modules[0].stage_layers.back().count,
                plan.modules[0].stage_layers.front().count);
    }
  }
}

TEST(PlanTest, Communicators_OfEncoderBesideLanguage_AreFewAndInOrder) {
  const std::vector<CommunicatorSpec> all = Communicators(MustPlan(VisionAndLanguage()));
  std::vector<std::string> lines;
  for (const CommunicatorSpec& spec : all) {
    std::string line = spec.name;
    for (Rank rank : spec.ranks) absl::StrAppend(&line, " ", rank.value);
    lines.push_back(line);
  }
  // Vision sends from both replicas; its tensor groups and the language module's data groups have
  // one rank each and are left out.
  EXPECT_THAT(lines,
              ElementsAre("control 0 1 2 3 4 5", "forward 0 1 2 3 4 5", "backward 0 1 2 3 4 5",
                          "vision.dp[0] 0 1", "language.tp[0] 2 3", "language.tp[1] 4 5"));
  EXPECT_EQ(FindCommunicator(all, CommunicatorSpec::Use::kTensor, {Rank{4}, Rank{5}}), 5);
  EXPECT_EQ(FindCommunicator(all, CommunicatorSpec::Use::kData, {Rank{4}, Rank{5}}), -1);
}

TEST(PlanTest, Communicators_OfColocatedModules_ShareEqualGroups) {
  const std::vector<CommunicatorSpec> all =
      Communicators(MustPlan(AJob()
                                 .Module("vision", ClipVision(), {.tp = 2, .dp = 2})
                                 .Module("language", Llama(), {.tp = 2, .dp = 2, .offset = 0})
                                 .Edge("vision", "language")));
  std::vector<std::string> names;
  for (const CommunicatorSpec& spec : all) names.push_back(spec.name);
  EXPECT_THAT(names, ElementsAre("control", "forward", "backward", "vision.tp[0]", "vision.tp[1]",
                                 "vision.dp[0]", "vision.dp[1]"));
}

TEST(PlanTest, Communicators_WithAGap_LeaveIdleRanksOut) {
  const Plan plan = MustPlan(AJob()
                                 .Module("vision", ClipVision(), {.dp = 2})
                                 .Module("language", Llama(), {.dp = 2, .offset = 4})
                                 .Edge("vision", "language"),
                             8);
  EXPECT_EQ(Numbers(Communicators(plan)[0].ranks), (std::vector<int>{0, 1, 4, 5}));
  EXPECT_EQ(Numbers(plan.layout.idle), (std::vector<int>{2, 3, 6, 7}));
  EXPECT_TRUE(plan.PlacesOf(Rank{2}).empty());
}

TEST(PlanTest, ExpertGrid_OfEveryOrder_SharesThePipelineAxis) {
  using A = job::MeshAxis;
  std::array<A, 4> order = {A::kTensor, A::kContext, A::kData, A::kPipeline};
  do {
    const Plan plan =
        MustPlan(AJob().Module("language", NoArchitecture(),
                               {.tp = 2, .dp = 4, .pp = 2, .ep = 2, .expt_tp = 2, .order = order}));
    const std::vector<Axis> shared = {Axis::kPipeline};
    const absl::Status status = plan.modules[0].grid.CheckView(plan.modules[0].expert_grid, shared);
    EXPECT_TRUE(status.ok()) << status;
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(PlanTest, Microbatches_CoverTheLargestReplica) {
  EXPECT_EQ(MustPlan(AJob().Module("language", Llama(), {.dp = 3}).Batch(10, 2)).microbatches, 2);
  EXPECT_EQ(MustPlan(AJob().Module("language", Llama(), {.dp = 3}).Batch(13, 2)).microbatches, 3);
  EXPECT_EQ(MustPlan(AJob().Module("language", Llama(), {.dp = 4}).Batch(2, 2)).microbatches, 1);
}

TEST(PlanTest, MakePlan_OnTooFewDevices_IsResourceExhausted) {
  const absl::Status status = MakePlan(VisionAndLanguage(), MakeCluster(1, 5), Epoch{1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "job test needs 6 devices; there are 5");
}

TEST(PlanTest, MakePlan_OfManyErrors_ReportsAllAtOnce) {
  AJob spec;
  spec.Module("vision", ClipVision(), {.tp = 5})
      .Module("language", Llama({.layers = 2}), {.pp = 3, .offset = 3})
      .Edge("vision", "language", {.projector = 8});
  const std::vector<Violation> violations = ViolationsOfPlan(spec);
  std::vector<std::string> texts;
  for (const Violation& violation : violations) texts.push_back(ToString(violation));
  EXPECT_THAT(
      texts,
      ElementsAre("spec.modules[0].parallel.tp: 5: may not exceed the query heads (4)",
                  "spec.modules[1].parallel.pp: 3: every stage needs a layer, and there are 2",
                  "spec.modules[1].offset: 3: ranks [3, 6) overlap [0, 5) of module 'vision'; "
                  "spans must be equal or disjoint"));
}

TEST(PlanTest, MakePlan_OfBadSpecs_NamesTheField) {
  const auto expect = [](AJob spec, const std::string& field, const std::string& rule) {
    EXPECT_THAT(ViolationsOfPlan(spec), Contains(AllOf(Field(&Violation::field, field),
                                                       Field(&Violation::rule, HasSubstr(rule)))))
        << field;
  };
  expect(AJob().Module("language", Llama(), {.pp = 2, .layers = {4}}),
         "spec.modules[0].parallel.layers", "an entry for each of pp (2) stages");
  expect(AJob().Module("language", Llama(), {.pp = 2, .layers = {4, 1}}),
         "spec.modules[0].parallel.layers", "add up to the module's layers (4), not to 5");
  expect(AJob().Module("language", Llama(), {.pp = 2, .layers = {4, 0}}),
         "spec.modules[0].parallel.layers", "integers from 1 to 4096");
  expect(AJob().Module("language", Llama({.heads = 32, .mlp_size = 64}), {.tp = 9}),
         "spec.modules[0].parallel.tp", "blocks of the MLP");
  expect(AJob().Module("language", Llama({.mlp_size = 96, .vocabulary = 24}), {.tp = 4}),
         "spec.modules[0].parallel.tp", "blocks of the vocabulary");
  expect(AJob()
             .Module("vision", ClipVision({.hidden_size = 64}))
             .Module("language", Llama())
             .Edge("vision", "language"),
         "spec.edges[0].projector", "is required where hidden sizes differ");
  expect(
      AJob().Module("vision", ClipVision()).Module("language", Llama()).Edge("language", "vision"),
      "spec.edges[0].to", "must be a decoder");
  expect(AJob()
             .Module("language", NoArchitecture())
             .Module("other", NoArchitecture())
             .Edge("language", "other")
             .Edge("other", "language"),
         "spec.edges", "no cycle");
  expect(AJob()
             .Module("language", NoArchitecture(), {.pp = 2})
             .Schedule(job::ScheduleName::kZeroBubbleV, 3),
         "spec.schedule.chunks", "zero_bubble_v has 2 chunks a rank");
  expect(AJob()
             .Module("language", NoArchitecture(), {.pp = 2})
             .Schedule(job::ScheduleName::kZeroBubbleH1, 2),
         "spec.schedule.chunks", "one chunk a rank");
  expect(AJob()
             .Module("vision", NoArchitecture())
             .Module("language", NoArchitecture(), {.pp = 2})
             .Edge("vision", "language")
             .Schedule(job::ScheduleName::kThreePhase),
         "spec.schedule.name", "needs an encoder on the ranks of 'language' that feeds it");
  expect(AJob()
             .Module("language", Llama({.layers = 3}), {.pp = 2})
             .Schedule(job::ScheduleName::kZeroBubbleV),
         "spec.schedule.chunks", "every chunk of every stage needs a layer: 2 x 2");
  AJob huge;
  huge.Module("language", NoArchitecture());
  huge.spec().modules[0].parallel.tp = 1 << 30;
  expect(huge, "spec.modules[0].parallel.tp", "an integer from 1 to 1048576");
  AJob uneven;
  uneven.Module("language", NoArchitecture(), {.tp = 3});
  uneven.spec().modules[0].parallel.ranks = 4;
  expect(uneven, "spec.modules[0].parallel.tp", "tp*cp*pp must divide ranks (4)");
  AJob far;
  far.Module("language", NoArchitecture(), {.offset = kWorldMax});
  EXPECT_TRUE(absl::IsInvalidArgument(MakePlan(far, MakeCluster(1, 1), Epoch{1}).status()));
  AJob empty;
  expect(empty.Module("language", NoArchitecture()).Batch(0, 0), "spec.batch.global",
         "is required: an integer from 1 to 16777216");
}

// Anything that changes what a rank does changes the digest; matters of the queue do not.
TEST(PlanTest, Digest_ChangesWithThePlanAndOnlyWithIt) {
  const auto digest = [](const job::JobSpec& spec) { return MustPlan(spec).digest; };
  const job::JobSpec base = VisionAndLanguage();
  std::set<std::string> digests = {digest(base)};
  const auto changes = [&](auto change) {
    job::JobSpec spec = base;
    change(spec);
    EXPECT_TRUE(digests.insert(digest(spec)).second);
  };
  changes([](job::JobSpec& s) { s.seed = 8; });
  changes([](job::JobSpec& s) { s.steps = 2; });
  changes([](job::JobSpec& s) { s.compute = job::Precision::kFp64; });
  changes([](job::JobSpec& s) { s.batch.micro = 1; });
  changes([](job::JobSpec& s) { s.optimizer.learning_rate *= 1 + 1e-15; });
  changes([](job::JobSpec& s) { s.schedule.name = job::ScheduleName::kZeroBubbleH1; });
  changes([](job::JobSpec& s) { s.schedule.name = job::ScheduleName::kZeroBubbleV; });
  changes([](job::JobSpec& s) { s.modules[0].frozen = true; });
  changes([](job::JobSpec& s) { s.modules[1].architecture.rope_theta = 1e6; });
  changes([](job::JobSpec& s) { s.modules[1].parallel.layers = {1, 3}; });
  changes([](job::JobSpec& s) { s.edges[0].projector->hidden_size = 56; });
  changes([](job::JobSpec& s) { s.data = job::Data{.shards = {"a.tar"}}; });
  changes([](job::JobSpec& s) { s.data = job::Data{.shards = {"a.ta", "r"}}; });

  job::JobSpec renamed = base;
  renamed.labels["team"] = "demo";
  renamed.priority = 5;
  EXPECT_EQ(digest(renamed), digest(base));
  EXPECT_EQ(MakePlan(base, MakeCluster(1, 6), Epoch{2})->digest, digest(base)) << "another epoch";
  EXPECT_NE(MakePlan(base, MakeCluster(6, 1), Epoch{1})->digest, digest(base)) << "other devices";
  EXPECT_EQ(MakePlan(base, MakeCluster(1, 6), Epoch{1})->digest, digest(base))
      << "only fewer idle ones";
  EXPECT_EQ(digest(base).size(), 32u);
}

}  // namespace
}  // namespace phalanx::plan
