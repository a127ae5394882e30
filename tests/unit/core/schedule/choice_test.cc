#include "core/schedule/choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/job/graph.h"
#include "core/schedule/pipeline.h"
#include "core/schedule/simulator.h"
#include "tests/unit/core/schedule/plans.h"

namespace phalanx::schedule {
namespace {

using job::ScheduleName;
using plan::ScheduleCandidate;
using support::AJob;
using support::ClipVision;
using support::Layout;
using support::Llama;
using support::NoArchitecture;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

plan::Plan Choose(const job::JobSpec& spec) {
  auto plan = PlanJob(spec, plan::MakeCluster(1, spec.World()), Epoch{1});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

AJob AutoDecoder(int32_t layers, int32_t stages, int64_t microbatches) {
  return AJob()
      .Module("language", Llama({.layers = layers}), {.pp = stages})
      .Batch(microbatches, 1)
      .Schedule(ScheduleName::kAuto);
}
AJob EncoderOnTheSameRanks() {
  return AJob()
      .Module("vision", ClipVision(), {.dp = 4})
      .Module("language", Llama({.layers = 8}), {.pp = 4, .offset = 0})
      .Edge("vision", "language", {.projector = 32})
      .Batch(8, 1)
      .Schedule(ScheduleName::kAuto);
}

std::vector<ScheduleName> Names(const plan::Plan& plan) {
  std::vector<ScheduleName> names;
  for (const ScheduleCandidate& candidate : plan.candidates) {
    names.push_back(candidate.schedule.name);
  }
  return names;
}
const ScheduleCandidate& Chosen(const plan::Plan& plan) {
  return *std::find_if(plan.candidates.begin(), plan.candidates.end(), [&](const auto& candidate) {
    return candidate.schedule.name == plan.spec.schedule.name &&
           candidate.schedule.chunks == plan.spec.schedule.chunks &&
           candidate.schedule.encoder_chunks == plan.spec.schedule.encoder_chunks;
  });
}

TEST(ChoiceTest, PlanJob_NamedSchedule_IsMakePlan) {
  const job::JobSpec spec = AutoDecoder(8, 4, 8).Schedule(ScheduleName::kZeroBubbleH1);
  const plan::Plan plan = Choose(spec);
  EXPECT_EQ(plan.digest, PlanOf(spec).digest);
  EXPECT_THAT(plan.candidates, IsEmpty());
}

TEST(ChoiceTest, PlanJob_Pipeline_TakesTheFastestAndListsTheOthers) {
  const job::JobSpec spec = AutoDecoder(8, 4, 8);
  const plan::Plan plan = Choose(spec);
  EXPECT_THAT(Names(plan), ElementsAre(ScheduleName::k1F1B, ScheduleName::kZeroBubbleH1,
                                       ScheduleName::kInterleaved, ScheduleName::kZeroBubbleV));
  const ScheduleCandidate& chosen = Chosen(plan);
  for (const ScheduleCandidate& candidate : plan.candidates) {
    EXPECT_EQ(candidate.left_out, "");
    EXPECT_GT(candidate.memory, 0);
    EXPECT_GE(1.01 * candidate.step, chosen.step);
    if (candidate.step <= chosen.step) {
      EXPECT_GE(candidate.memory, chosen.memory);
    }
  }
  EXPECT_LT(chosen.step, plan.candidates[0].step);  // better than 1f1b
  // The plan is that of the schedule: layers, chunks, digest, and the figures are its own.
  job::JobSpec named = spec;
  named.schedule = plan.spec.schedule;
  EXPECT_EQ(plan.digest, PlanOf(named).digest);
  const Simulation simulation = *SimulatePlan(plan, CostFromShapes(plan));
  EXPECT_NEAR(simulation.step, chosen.step, 1e-9 * chosen.step);
  EXPECT_NEAR(simulation.bubble, chosen.bubble, 1e-9);
  EXPECT_EQ(Choose(spec).digest, plan.digest);
}

TEST(ChoiceTest, PlanJob_OfAJobWithData_IsThePlanOfItsSchedule) {
  for (int32_t stages : {4, 512}) {  // of so many nothing is simulated
    job::JobSpec spec = AutoDecoder(2 * stages, stages, 4 * stages);
    spec.data = job::Data{.shards = {"a.tar", "b.tar"}, .validation = {"c.tar"}, .tokenizer = "t"};
    const plan::Plan plan = Choose(spec);
    EXPECT_EQ(plan.candidates.empty(), stages == 512);
    EXPECT_THAT(plan.spec.data->shards, ElementsAre("a.tar", "b.tar"));
    EXPECT_THAT(plan.spec.data->validation, ElementsAre("c.tar"));
    spec.schedule = plan.spec.schedule;
    EXPECT_EQ(plan.digest, PlanOf(spec).digest);
  }
}

TEST(ChoiceTest, PlanJob_OneStage_TakesTheSimplest) {
  const plan::Plan plan = Choose(AutoDecoder(4, 1, 4));
  EXPECT_EQ(plan.spec.schedule.name, ScheduleName::k1F1B);
  EXPECT_THAT(Names(plan), ElementsAre(ScheduleName::k1F1B, ScheduleName::kZeroBubbleH1));
}

TEST(ChoiceTest, PlanJob_TooFewLayers_SaysWhyChunksAreLeftOut) {
  const plan::Plan plan = Choose(AutoDecoder(4, 4, 8));
  EXPECT_EQ(plan.spec.schedule.name, ScheduleName::kZeroBubbleH1);
  EXPECT_THAT(plan.candidates[2].left_out, HasSubstr("every chunk of every stage needs a layer"));
  EXPECT_EQ(plan.candidates[3].step, 0);
}

TEST(ChoiceTest, PlanJob_LayersUnknown_ComparesWithoutChunks) {
  const plan::Plan plan = Choose(AJob()
                                     .Module("language", NoArchitecture(), {.pp = 4})
                                     .Batch(8, 1)
                                     .Schedule(ScheduleName::kAuto));
  EXPECT_EQ(plan.spec.schedule.name, ScheduleName::kZeroBubbleH1);
  // In units of a forward: 2 (p - 1) + 3 M, and the p - 1 that the weight passes fill.
  EXPECT_NEAR(plan.candidates[0].step, 2 * 3 + 3 * 8, 1e-9);
  EXPECT_NEAR(plan.candidates[1].step, 3 + 3 * 8, 1e-9);
  EXPECT_EQ(plan.candidates[2].left_out, "the number of layers is not known");
}

TEST(ChoiceTest, PlanJob_EncoderOnTheSameRanks_TriesPhases) {
  AJob job = EncoderOnTheSameRanks();
  job.spec().schedule.encoder_chunks = 8;
  const plan::Plan plan = Choose(job);
  std::vector<int32_t> encoder_chunks;
  for (const ScheduleCandidate& candidate : plan.candidates) {
    if (candidate.schedule.name != ScheduleName::kThreePhase) continue;
    encoder_chunks.push_back(candidate.schedule.encoder_chunks);
  }
  EXPECT_THAT(encoder_chunks, ElementsAre(1, 2, 4, 8));
  EXPECT_GE(1.01 * plan.candidates[4].step, Chosen(plan).step);
}

TEST(ChoiceTest, PlanJob_WrittenChunks_AreThoseOfInterleaved) {
  const plan::Plan plan = Choose(AutoDecoder(16, 4, 8).Schedule(ScheduleName::kAuto, 4));
  EXPECT_EQ(plan.candidates[2].schedule.chunks, 4);
  EXPECT_EQ(plan.modules[0].chunks(), plan.spec.schedule.chunks);
}

TEST(ChoiceTest, PlanJob_VeryLongStep_IsChosenFromItsBeginning) {
  const plan::Plan plan = Choose(AutoDecoder(8, 4, 60'000));
  EXPECT_EQ(plan.microbatches, 60'000);
  // Bubbles vanish, so the least memory decides.
  for (const ScheduleCandidate& candidate : plan.candidates) {
    if (candidate.step <= 1.01 * Chosen(plan).step) {
      EXPECT_GE(candidate.memory, Chosen(plan).memory);
    }
  }
}

// What it takes to fill and to drain is there once, however many microbatches are simulated.
TEST(ChoiceTest, PlanJob_LongStep_HasTheTimesOfAllOfIt) {
  const plan::Plan chosen = Choose(EncoderOnTheSameRanks().Batch(4096, 1));
  int32_t compared = 0;
  for (const ScheduleCandidate& candidate : chosen.candidates) {
    if (!candidate.left_out.empty()) continue;
    job::JobSpec spec = EncoderOnTheSameRanks().Batch(4096, 1);
    spec.schedule = candidate.schedule;
    const plan::Plan plan = PlanOf(spec);
    const Simulation whole = *SimulatePlan(plan, CostFromShapes(plan));
    EXPECT_NEAR(candidate.step, whole.step, 0.005 * whole.step) << compared;
    EXPECT_NEAR(candidate.bubble, whole.bubble, 0.005) << compared;
    ++compared;
  }
  EXPECT_GT(compared, 3);
}

TEST(ChoiceTest, PlanJob_TooManyStagesToSimulate_GetsTheSimplest) {
  const plan::Plan plan = Choose(AutoDecoder(600, 600, 1000));
  EXPECT_EQ(plan.spec.schedule.name, ScheduleName::k1F1B);
  EXPECT_THAT(plan.candidates, IsEmpty());
  for (const int32_t stages : {100, 200})
    EXPECT_FALSE(Choose(AutoDecoder(stages, stages, 1000)).candidates.empty()) << stages;
}

// 2^20 ways lead from the first module to the language module.
TEST(ChoiceTest, PlanJob_ManyWaysThroughTheGraph_TakesNoTimeForEach) {
  AJob job;
  const Layout together = {.offset = 0};
  job.Module("m0", NoArchitecture(1), together);
  for (int i = 0; i < 20; ++i) {
    const std::string from = absl::StrCat("m", i),
                      to = i == 19 ? "language" : absl::StrCat("m", i + 1);
    for (const std::string& side : {absl::StrCat("a", i), absl::StrCat("b", i)}) {
      job.Module(side, NoArchitecture(1), together).Edge(from, side);
    }
    job.Module(to, NoArchitecture(1), together);
    job.Edge(absl::StrCat("a", i), to).Edge(absl::StrCat("b", i), to);
  }
  const plan::Plan plan = Choose(job.Batch(2, 1).Schedule(ScheduleName::kAuto));
  EXPECT_EQ(plan.modules.size(), 61u);
  EXPECT_EQ(plan.stages, 41);
}

// What the rules for documents count is no less than what planning does.
TEST(ChoiceTest, PlanningLoad_OfAnyLayout_CountsEveryPartOfEveryClass) {
  using job::MeshAxis;
  const std::array<job::MeshAxis, 4> orders[] = {
      {MeshAxis::kTensor, MeshAxis::kContext, MeshAxis::kData, MeshAxis::kPipeline},
      {MeshAxis::kPipeline, MeshAxis::kTensor, MeshAxis::kContext, MeshAxis::kData},
      {MeshAxis::kTensor, MeshAxis::kPipeline, MeshAxis::kContext, MeshAxis::kData}};
  constexpr int32_t kRanks = 24;
  int32_t exact = 0;
  for (const auto& order : orders) {
    for (int32_t first : {1, 2, 3, 4, 12}) {
      for (int32_t second : {1, 2, 3, 8, 24}) {
        for (int32_t chunks : {1, 3}) {
          const job::JobSpec spec =
              AJob()
                  .Module("beside", NoArchitecture(), {.dp = 5})
                  .Module("encoder", NoArchitecture(),
                          {.dp = kRanks / first, .pp = first, .order = order})
                  .Module("language", NoArchitecture(),
                          {.dp = kRanks / second, .pp = second, .offset = 5})
                  .Edge("encoder", "language")
                  .Batch(kRanks, 1)
                  .Schedule(
                      chunks > 1 && second > 1 ? ScheduleName::kInterleaved : ScheduleName::k1F1B,
                      second > 1 ? chunks : 1);
          int64_t load = 0;
          for (const RankClass& ranks : MakePipeline(PlanOf(spec)).classes) {
            load += static_cast<int64_t>(ranks.parts.size() * ranks.parts.size());
          }
          EXPECT_GE(job::PlanningLoad(spec), load) << first << " " << second;
          if (first == 1 || second == 1 || order == orders[0]) {
            EXPECT_LE(job::PlanningLoad(spec), 2 * load) << first << " " << second;
          }
          exact += job::PlanningLoad(spec) == load ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(exact, 100);
}

TEST(ChoiceTest, PlanJob_NoSoundLayout_ReportsItsViolations) {
  const absl::Status status =
      PlanJob(AutoDecoder(2, 4, 8), plan::MakeCluster(1, 4), Epoch{1}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("every stage needs a layer"));
  EXPECT_TRUE(absl::IsResourceExhausted(
      PlanJob(AutoDecoder(8, 4, 8), plan::MakeCluster(1, 3), Epoch{1}).status()));
}

}  // namespace
}  // namespace phalanx::schedule
