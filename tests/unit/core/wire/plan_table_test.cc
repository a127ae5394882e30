// The plan as a table, as `phalanx plan` prints it.
#include "core/wire/plan_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/plan/loss.h"
#include "core/plan/memory_fit.h"
#include "core/plan/plan.h"
#include "core/wire/plan_dot.h"
#include "tests/support/specs.h"
#include "tests/unit/core/wire/pictured.h"

namespace phalanx::wire {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using support::NoArchitecture;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(PlanTableTest, Table_OfAWideJob_StaysWithinAHundredColumns) {
  const plan::Plan plan =
      MustPlan(AJob()
                   .Module("a-vision-encoder-with-a-long-name", ClipVision(), {.dp = 16})
                   .Module("language",
                           Llama({.hidden_size = 512,
                                  .layers = 64,
                                  .heads = 64,
                                  .kv_heads = 8,
                                  .mlp_size = 100000,
                                  .vocabulary = 1000000}),
                           {.tp = 2, .dp = 2, .pp = 16})
                   .Edge("a-vision-encoder-with-a-long-name", "language", {.projector = 128})
                   .Batch(100, 2)
                   .Schedule(job::ScheduleName::kInterleaved, 4),
               20, 4);
  const std::string table = PlanTable(plan, {.bubble = 0.25, .lower_bound = 0.2});
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  EXPECT_THAT(table, HasSubstr("and 16 ranks more: see -o json"));
  EXPECT_THAT(table, HasSubstr("bubble 25.0 % (lower bound 20.0 %)"));
}

TEST(PlanTableTest, Table_OfASmallJob_ReadsAsPrinted) {
  const plan::Plan plan = MustPlan(AJob()
                                       .Module("vision", ClipVision(), {.dp = 2})
                                       .Module("language", Llama(), {.tp = 2, .pp = 2})
                                       .Edge("vision", "language", {.projector = 32})
                                       .Batch(6, 2));
  const std::string table = PlanTable(plan, {.bubble = 0.25, .lower_bound = 0.2});
  EXPECT_THAT(table,
              HasSubstr("MODULE    FAMILY       RANKS  TP  CP  DP  PP  LAYERS  SAMPLES/LANE\n"
                        "vision    clip_vision  0-1    1   1   2   1   2       3\n"
                        "language  llama        2-5    2   1   1   2   2+2     6\n"));
  EXPECT_THAT(table, HasSubstr("vision -> language  2:1    apart        mlp 32\n"));
  EXPECT_THAT(table,
              HasSubstr("4     node-0/4  language  0/0/0/1      2      2-3     0-3    0-3  0-5"));
  EXPECT_THAT(table, HasSubstr("Idle devices: 2 (node-0/6, node-0/7)\n"));
}

TEST(PlanTableTest, HostMemory_IsThatOfTheNodeWithMost_WhereAnyIsTaken) {
  AJob job = AJob().Module("language", Llama(), {.tp = 3}).Batch(4, 1);
  job.spec().checkpoint = job::Checkpoint{.directory = "checkpoints"};
  const plan::Plan plan = MustPlan(job, 2, 2);
  const std::vector<plan::HostEstimate> nodes =
      plan::HostMemoryOf(plan, plan::EstimateMemory(plan));
  ASSERT_GT(nodes[0].total(), nodes[1].total());
  EXPECT_THAT(PlanTable(plan, {}),
              HasSubstr(absl::StrCat(
                  "Host memory, at most on node-0: ", plan::FormatBytes(nodes[0].total()),
                  "\n  second homes ", plan::FormatBytes(nodes[0].copies), ", checkpoints ",
                  plan::FormatBytes(nodes[0].snapshot), "\n")));
  EXPECT_THAT(PlanTable(MustPlan(AJob().Module("language", Llama(), {.dp = 2}).Batch(4, 1)), {}),
              Not(HasSubstr("Host memory")));
}

TEST(PlanTableTest, Table_AfterALoss_ListsHitReplicasAndTheOthers) {
  const job::JobSpec spec = AJob()
                                .Module("vision", ClipVision(), {.dp = 4})
                                .Module("language", Llama(), {.tp = 2, .dp = 3, .pp = 2})
                                .Edge("vision", "language", {.projector = 32})
                                .Batch(16, 2);
  // Ranks 4 to 9 are the first stage of the language model, two a replica.
  const auto plan =
      plan::PlanWithout(MustPlan(spec, 1, 16), plan::RankList{Rank{9}, Rank{2}, Rank{4}, Rank{5}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const schedule::Preview::Loss loss{
      .moves = {.bytes = 5 << 20, .steps_lost = 3, .safe_again_steps = 4}, .step_ratio = 1.5};
  const std::string table = PlanTable(*plan, {.loss = loss});
  EXPECT_THAT(
      table,
      HasSubstr(
          "\nStep: 1.500 times the healthy one\nState to move: 5.0 MiB, at most 3 steps lost\n"
          "Safe again: after at most 4 steps\n"));
  EXPECT_THAT(table, HasSubstr("Lost: ranks 2, 4, 5, 9\n\n"
                               "REPLICAS           WIDTHS    SAMPLES\n"
                               "vision 2           left out  -\n"
                               "vision, 3 others   1         5 to 6\n"
                               "language 0         left out  -\n"
                               "language 2         1,2       6\n"
                               "language, 1 other  2         10\n"));
  EXPECT_THAT(table, HasSubstr("\n9     node-0/9   (lost)\n"));
  EXPECT_THAT(table, HasSubstr("\n10    node-0/10  (idle)\n"));
  EXPECT_THAT(PlanTable(*plan, {.loss = schedule::Preview::Loss{.moves = {.steps_lost = 1}}}),
              HasSubstr(", at most 1 step lost\nSafe again: before the first step\n"));
}

TEST(PlanTableTest, Restart_IsSaid) {
  const Restarted restarted = MustRestart();
  EXPECT_THAT(PlanTable(restarted.plan, restarted.figures),
              HasSubstr("Lost: rank 0\nRestart: language pp 2 -> 1 on ranks 2, 3\n\nStep: 2.000"));
}

TEST(PlanTableTest, Candidates_AreListedWithTheReason) {
  const std::string table = PlanTable(Chosen(), {.bubble = 0.25, .lower_bound = 0.2});
  EXPECT_THAT(table, HasSubstr("SCHEDULE TRIED"));
  EXPECT_THAT(table, ::testing::ContainsRegex("STEP +BUBBLE +MEMORY\n"));
  EXPECT_THAT(table, ::testing::ContainsRegex("\n1f1b  +1\\.[0-9]+  +[0-9.]+ %  +[0-9.]+ MiB\n"));
  EXPECT_THAT(table, ::testing::ContainsRegex("\ninterleaved, 3 chunks  +-  +-  +-  +left out: "));
  EXPECT_THAT(table, ::testing::ContainsRegex("  1\\.000  .*  chosen\n"));
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST(PlanTableTest, CandidatesOfALoweredPlan_HaveTheirMemoryAsWritten) {
  const plan::Plan written = Chosen();
  plan::Layout layout = written.layout;
  layout.modules[0].recompute = job::Recompute::kFull;
  auto lowered = plan::Expand(written.spec, std::move(layout));
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  lowered->candidates = written.candidates;
  EXPECT_THAT(PlanTable(*lowered, {}), HasSubstr("BUBBLE  MEMORY AS WRITTEN"));
}

TEST(PlanTableTest, Plan_WithoutArchitecture_HasNoFigures) {
  EXPECT_THAT(PlanTable(MustPlan(AJob().Module("language", NoArchitecture(), {.pp = 2})), {}),
              HasSubstr("language  -       0-1    1   1   1   2   -       "));
}

TEST(PlanTableTest, SamplesOfUnequalReplicas_AreTheirRange) {
  const std::string table = PlanTable(WithoutAReplica(), {});
  EXPECT_THAT(table, HasSubstr("2 to 4"));
}

// Not the document's degrees.
TEST(PlanTableTest, WidthsAndReplicas_AreThoseThatAreThere) {
  EXPECT_THAT(PlanTable(WithoutAReplica(), {}), HasSubstr(" 2:1 "));
  EXPECT_THAT(PlanDot(WithoutAReplica()), HasSubstr("tp1 pp2 dp2"));
  EXPECT_THAT(PlanDot(WithoutAReplica()), HasSubstr("label=\"2:1"));
  const job::JobSpec spec = AJob().Module("language", Llama(), {.tp = 4, .dp = 2}).Batch(4, 1);
  plan::Layout layout = MustPlan(spec).layout;
  layout.modules[0].changes = {{.dp = 1, .pp = 0, .ranks = {Rank{4}, Rank{6}, Rank{7}}}};
  const absl::StatusOr<plan::Plan> plan = plan::Expand(spec, layout);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(PlanTable(*plan, {}), HasSubstr(" 3 to 4 "));
}

TEST(PlanTableTest, Table_OfSharedRanksAndAGap_ShowsEachModuleOfARankAndTheIdleOne) {
  job::JobSpec spec = AJob()
                          .Module("vision", ClipVision(), {.dp = 2})
                          .Module("audio", support::Whisper(), {.tp = 2, .offset = 0})
                          .Module("language", Llama(), {.tp = 2, .offset = 3})
                          .Edge("vision", "language", {.projector = 32})
                          .Edge("audio", "language", {.projector = 32})
                          .Batch(4, 2);
  spec.modules[0].frozen = true;
  spec.modules[2].recompute = job::Recompute::kSelective;
  const std::string table = PlanTable(MustPlan(spec), {});
  EXPECT_THAT(
      table,
      HasSubstr("MODULE    FAMILY       RANKS  TP  CP  DP  PP  LAYERS  SAMPLES/LANE  NOTES\n"
                "vision    clip_vision  0-1    1   1   2   1   2       2             frozen\n"
                "audio     whisper      0-1    2   1   1   1   2       4\n"
                "language  llama        3-4    2   1   1   1   4       4             recompute "
                "selective\n"));
  EXPECT_THAT(table, HasSubstr("\n1     node-0/1  vision    0/0/1/0      0      0-1     0-3 "));
  EXPECT_THAT(table, HasSubstr("\n                audio     1/0/0/0      0      0-1     2-3 "));
  EXPECT_THAT(table, HasSubstr("\n2     node-0/2  (idle)\n"));
  EXPECT_THAT(table, HasSubstr("Idle devices: 4 (node-0/2, node-0/5, node-0/6, node-0/7)\n"));
}

TEST(PlanTableTest, Table_OfChunks_ListsStagesAndLayersOfEach) {
  const auto table = [](job::ScheduleName name, int32_t chunks, int32_t layers) {
    return PlanTable(MustPlan(AJob()
                                  .Module("language", Llama({.layers = layers}), {.pp = 2})
                                  .Batch(4, 1)
                                  .Schedule(name, chunks)),
                     {});
  };
  const std::string loop = table(job::ScheduleName::kInterleaved, 3, 6);
  EXPECT_THAT(loop, HasSubstr("  1/1/1+1/1/1  "));
  EXPECT_THAT(loop, HasSubstr("  0/0/0/0      0,2,4  0,2,4   "));
  EXPECT_THAT(loop, HasSubstr("  0/0/0/1      1,3,5  1,3,5   "));
  const std::string vee = table(job::ScheduleName::kZeroBubbleV, 2, 12);
  EXPECT_THAT(vee, HasSubstr("  0/0/0/0      0,3    0-2,9-11  "));
  EXPECT_THAT(vee, HasSubstr("  0/0/0/1      1,2    3-5,6-8   "));
  EXPECT_THAT(table(job::ScheduleName::kInterleaved, 4, 8), HasSubstr("  0,2,+2  0,2,+2  "));
}

}  // namespace
}  // namespace phalanx::wire
