// What beginnings of a step say of all of it.
#include "core/schedule/long_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/schedule/simulator.h"
#include "tests/unit/core/schedule/plans.h"

namespace phalanx::schedule {
namespace {

using job::ScheduleName;
using support::AJob;
using support::Layout;

constexpr int64_t kMicrobatches = 384;

// An encoder of as many stages on the ranks of a pipeline: ranks wait in every microbatch.
plan::Plan Colocated(ScheduleName name, int32_t stages) {
  return PlanOf(AJob()
                    .Module("vision", support::ClipVision({.layers = 16}),
                            {.dp = 4 / stages, .pp = stages, .offset = 0})
                    .Module("language", support::Llama({.layers = 16}), {.pp = 4, .offset = 0})
                    .Edge("vision", "language", {.projector = 32})
                    .Batch(kMicrobatches, 1)
                    .Schedule(name, name == ScheduleName::kInterleaved ? 2 : 1));
}

double BusiestOf(const plan::Plan& plan, const CostModel& costs) {
  const Pipeline pipeline = MakePipeline(plan);
  double longest = 0;
  for (const RankClass& ranks : pipeline.classes) {
    double here = 0;
    for (const int32_t p : ranks.parts) {
      const Part& part = pipeline.parts[static_cast<size_t>(p)];
      const auto m = static_cast<size_t>(part.module);
      const PartCost& cost =
          costs.parts[m][static_cast<size_t>(part.stage * pipeline.chunks[m] + part.chunk)];
      here += cost.forward + cost.backward_input + cost.backward_weight;
    }
    longest = std::max(longest, here);
  }
  return longest;
}

TEST(LongStepTest, TimeOfStep_FromItsBeginnings_IsThatOfAllOfIt) {
  double furthest = 1;  // of what the pace of the busiest rank would say
  for (const ScheduleName name :
       {ScheduleName::k1F1B, ScheduleName::kZeroBubbleH1, ScheduleName::kInterleaved}) {
    for (const int32_t stages : {1, 2, 4}) {
      if (stages == 1 && name == ScheduleName::kInterleaved) continue;
      const plan::Plan plan = Colocated(name, stages);
      const CostModel costs = CostFromShapes(plan);
      const Simulation whole = *SimulatePlan(plan, costs);
      const int64_t half = WholeRounds(plan, 8 * plan.stages);
      const StepTime time = *TimeOfStep(plan, costs, {half, 2 * half});
      EXPECT_NEAR(time.step, whole.step, 0.01 * whole.step) << stages;
      EXPECT_NEAR(time.passes, whole.passes, 0.01 * whole.passes) << stages;
      EXPECT_NEAR(time.bubble, whole.bubble, 0.01) << stages;
      plan::Plan beginning = plan;
      beginning.microbatches = 2 * half;
      const double said = SimulatePlan(beginning, costs)->step +
                          static_cast<double>(kMicrobatches - 2 * half) * BusiestOf(plan, costs);
      furthest = std::min(furthest, said / whole.step);
    }
  }
  EXPECT_LT(furthest, 0.95) << "which this test is about";
}

TEST(LongStepTest, TimeOfStep_OfAllMicrobatches_IsTheSimulation) {
  const plan::Plan plan = Colocated(ScheduleName::k1F1B, 2);
  const CostModel costs = CostFromShapes(plan);
  const Simulation whole = *SimulatePlan(plan, costs);
  const StepTime time = *TimeOfStep(plan, costs, {8, kMicrobatches});
  EXPECT_EQ(time.step, whole.step);
  EXPECT_EQ(time.passes, whole.passes);
  EXPECT_NEAR(time.bubble, whole.bubble, 1e-12);
}

TEST(LongStepTest, TimeOfStep_ThatTakesLonger_IsWhatItTakesAtLeast) {
  const plan::Plan plan = Colocated(ScheduleName::k1F1B, 2);
  const CostModel costs = CostFromShapes(plan);
  const double step = SimulatePlan(plan, costs)->step;
  const std::vector<int64_t> beginnings = {16, kMicrobatches};
  const StepTime longer = *TimeOfStep(plan, costs, beginnings, {.most = 0.99 * step});
  EXPECT_TRUE(longer.too_long);
  EXPECT_EQ(longer.step, step);
  EXPECT_FALSE(TimeOfStep(plan, costs, beginnings, {.most = step})->too_long);
  // The first beginning and the least that is added to it tell as much.
  const double pace = step / kMicrobatches;
  const StepTime first =
      *TimeOfStep(plan, costs, {16, 17}, {.least_pace = pace, .most = 0.5 * step});
  EXPECT_TRUE(first.too_long);
  plan::Plan beginning = plan;
  beginning.microbatches = 16;
  EXPECT_EQ(first.step, SimulatePlan(beginning, costs)->step + (kMicrobatches - 16) * pace);
}

TEST(LongStepTest, WholeRounds_AreThoseOfTheLanguageModule) {
  const plan::Plan plan = Colocated(ScheduleName::k1F1B, 2);
  EXPECT_EQ(WholeRounds(plan, 1), 4);
  EXPECT_EQ(WholeRounds(plan, 8), 8);
  EXPECT_EQ(WholeRounds(plan, kMicrobatches + 1), kMicrobatches);
}

}  // namespace
}  // namespace phalanx::schedule
