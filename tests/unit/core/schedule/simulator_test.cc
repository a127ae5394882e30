#include "core/schedule/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "core/schedule/bound.h"
#include "core/schedule/checker.h"
#include "core/schedule/pipeline.h"
#include "tests/unit/core/schedule/plans.h"

namespace phalanx::schedule {
namespace {

using support::AJob;
using support::ClipVision;
using support::LargeLlama;
using support::Llama;
using support::NoArchitecture;

constexpr double kRounding = 1e-12;

TEST(SimulatorTest, Simulate_EqualStagesUndividedBackward_HasTheBubbleOfTheFormula) {
  for (int32_t p = 1; p <= 16; ++p) {
    for (int64_t m : {1, 2, 3, 8, 15, 16, 17, 64}) {
      const plan::Plan plan = Chain(p, m);
      const Simulation simulation = Simulate(plan, Programs(plan), EqualCosts(plan, {1, 2, 0}));
      EXPECT_NEAR(simulation.bubble, (p - 1.0) / (static_cast<double>(m) + p - 1.0), kRounding)
          << p << " stages, " << m << " microbatches";
    }
  }
}

TEST(SimulatorTest, Simulate_DividedBackward_HidesTheWeightPassesOfTheDrain) {
  // Last backward chain: only input gradients are waited for. (p - 1)(F + B) + m (F + B + W).
  for (int32_t p = 1; p <= 16; ++p) {
    for (int64_t m : {1, 4, 16, 64}) {
      const plan::Plan plan = Chain(p, m);
      const Simulation simulation = Simulate(plan, Programs(plan), EqualCosts(plan, {1, 1, 1}));
      EXPECT_NEAR(simulation.step, 2.0 * (p - 1) + 3.0 * static_cast<double>(m), kRounding);
    }
  }
}

TEST(SimulatorTest, Simulate_EqualStages_IsWithinFivePercentOfTheBoundAndLivesAsStated) {
  for (int32_t p = 1; p <= 16; ++p) {
    for (int64_t m = 1; m <= 64; m += m < 18 ? 1 : 23) {  // to 18, then 41 and 64
      const plan::Plan plan = Chain(p, m);
      const std::vector<Program> programs = Programs(plan);
      const auto report = CheckStep(plan, programs);
      ASSERT_TRUE(report.ok()) << report.status();
      for (int32_t stage = 0; stage < p; ++stage) {
        EXPECT_EQ(report->live_activations_max[static_cast<size_t>(stage)],
                  std::min<int64_t>(p - stage, m));
      }
      const Simulation simulation = Simulate(plan, programs, EqualCosts(plan, {1, 1, 1}));
      EXPECT_LE(simulation.lower_bound, simulation.bubble + kRounding);
      EXPECT_LE(1 - simulation.lower_bound, 1.05 * (1 - simulation.bubble));
    }
  }
}

TEST(SimulatorTest, Simulate_MessagesTakeTime_AddsThemOnTheCriticalPath) {
  const plan::Plan plan = Chain(3, 1);
  CostModel costs = EqualCosts(plan, {1, 1, 1});
  costs.message = 0.25;
  // Forward and backward through three stages, four messages, the last weight pass.
  EXPECT_NEAR(Simulate(plan, Programs(plan), costs).step, 6 + 4 * 0.25 + 1, kRounding);
}

TEST(SimulatorTest, Simulate_SteadyState_HidesMessages) {
  const plan::Plan plan = Chain(2, 64);
  CostModel costs = EqualCosts(plan, {1, 1, 1});
  const double free = Simulate(plan, Programs(plan), costs).step;
  costs.message = 0.01;
  const double paid = Simulate(plan, Programs(plan), costs).step;
  // With two stages and no slack each microbatch waits for its own round trip, no more.
  EXPECT_LE(paid - free, 64 * 2 * 0.01 + kRounding);
}

TEST(SimulatorTest, Simulate_CollectivesTakeTime_AddsWhatNoPassHides) {
  // One rank: 4 microbatches of 3, then everything behind one another.
  const plan::Plan one = Chain(1, 4);
  CostModel costs = EqualCosts(one, {1, 1, 1, /*reduce=*/2, /*update=*/0.5, /*gather=*/0.25});
  EXPECT_NEAR(Simulate(one, Programs(one), costs).step, 12 + 2 + 0.5 + 0.25, kRounding);
  // Two stages: the last one's reduction runs beside the first one's last passes, and its gather
  // beside the first forward pass of the next step.
  const plan::Plan two = Chain(2, 4);
  costs = EqualCosts(two, {1, 1, 1, 2, 0.5, 0.25});
  costs.parts[0][1].gather = 1.25;
  const Simulation simulation = Simulate(two, Programs(two), costs);
  EXPECT_NEAR(simulation.step, 2 + 12 + 2 + 0.5 + 0.25, kRounding);
  costs.parts[0][1].gather = 1.75;
  EXPECT_NEAR(Simulate(two, Programs(two), costs).step, simulation.step + 0.5, kRounding);
  costs.parts[0][1].reduce = 3;  // its last weight pass is two passes before the other's
  EXPECT_NEAR(Simulate(two, Programs(two), costs).step, simulation.step + 0.5, kRounding);
}

TEST(SimulatorTest, Simulate_ReductionsOfARank_RunOneAfterTheOther) {
  const plan::Plan plan = ChainUnder(job::ScheduleName::kInterleaved, 1, 2, 2);
  const Simulation simulation =
      Simulate(plan, Programs(plan), EqualCosts(plan, {1, 1, 1, 2, 0, 0}));
  // The second chunk's weights are done before the first one's backward of the last microbatch.
  EXPECT_NEAR(simulation.step, 12 + 2, kRounding);
  EXPECT_NEAR(Simulate(plan, Programs(plan), EqualCosts(plan, {1, 1, 1, 10, 0, 0})).step,
              12 - 2 + 10 + 10, kRounding);
}

// Two equal parts of a layer each, of which a backward pass comes to the second one first.
PartCost InTwoSlices(PartCost cost) {
  cost.slices = {{.share = 0.5, .complete = 0.5, .needed = 0.5},
                 {.share = 0.5, .complete = 1, .needed = 0}};
  return cost;
}

TEST(SimulatorTest, Simulate_ReplicasAlone_HideSumsUpdatesAndGathersBesidePasses) {
  const plan::Plan plan =
      PlanOf(AJob().Module("language", NoArchitecture(), {.dp = 2}).Batch(4, 1));
  const auto step = [&](const PartCost& cost) {
    return Simulate(plan, Programs(plan), EqualCosts(plan, cost)).step;
  };
  PartCost cost = {1, 1, 1, /*reduce=*/2, /*update=*/0.5, /*gather=*/0.25};
  EXPECT_NEAR(step(cost), 6 + 2 + 0.5 + 0.25, kRounding);
  // The last backward pass is [4, 6]: a half of the sums goes from 5 on, the other from 6. The
  // first forward pass waits for 0.25 of update and 0.125 of gather; the second half is there at
  // 0.625 and needed half a pass after 0.375.
  cost = InTwoSlices(cost);
  EXPECT_NEAR(step(cost), 6 + 1 + 0.375, kRounding);
  // The norm of what is summed last, and weights that are made ready in the first forward pass.
  cost.norm = 0.5;
  cost.prepare = 0.25;
  EXPECT_NEAR(step(cost), 6 + 1 + 0.375 + 0.25 + 0.25, kRounding);
}

TEST(SimulatorTest, Simulate_EqualLayersInDataParallel_TakesTheTimeOfItsFormula) {
  const plan::Plan plan =
      PlanOf(AJob().Module("language", NoArchitecture(), {.dp = 2}).Batch(4, 1));
  for (const int n : {1, 2, 5, 16}) {
    for (const auto& [r, u, g] : {std::array{0.5, 0.25, 0.125}, std::array{1.5, 0.25, 2.0},
                                  std::array{4.0, 2.0, 0.5}, std::array{0.0, 0.0, 0.0}}) {
      PartCost cost = {1, 1, 1, r, u, g};
      for (int layer = n; layer-- > 0;) {
        cost.slices.push_back({.share = 1.0 / n,
                               .complete = static_cast<double>(n - layer) / n,
                               .needed = static_cast<double>(layer) / n});
      }
      const double others = (n - 1.0) / n;
      const double sums = std::max(r / n, r - 2 * others);
      const double gathers = std::max((u + g) / n, std::max(u, g) + std::min(u, g) / n - others);
      EXPECT_NEAR(Simulate(plan, Programs(plan), EqualCosts(plan, cost)).step, 6 + sums + gathers,
                  kRounding)
          << n << " layers, " << r << ", " << u << ", " << g;
    }
  }
}

TEST(SimulatorTest, Simulate_UpdateThatIsLong_HoldsUpTheFirstPassBetweenItsLayers) {
  const plan::Plan plan =
      PlanOf(AJob().Module("language", NoArchitecture(), {.dp = 2}).Batch(4, 1));
  const PartCost cost = InTwoSlices({1, 1, 1, 0, /*update=*/3, 0});
  // Half of it stands before the first pass, whose first half is done at 2; the second one waits
  // for the other half of the update until 3, instead of 0.5.
  EXPECT_NEAR(Simulate(plan, Programs(plan), EqualCosts(plan, cost)).step, 6 + 2.5, kRounding);
}

TEST(SimulatorTest, Simulate_RanksWithMessages_BeginSumsBehindThePass) {
  const plan::Plan plan =
      PlanOf(AJob().Module("language", NoArchitecture(), {.dp = 2, .pp = 2}).Batch(4, 1));
  PartCost inside = InTwoSlices({1, 1, 1, 2, 0, 0}), behind = inside;
  behind.slices[0].complete = 1;
  const auto step = [&](const PartCost& cost) {
    return Simulate(plan, Programs(plan), EqualCosts(plan, cost)).step;
  };
  EXPECT_EQ(step(inside), step(behind));
  // 2 microbatches through 2 stages, their fill and drain, and all of the sum.
  EXPECT_NEAR(step(inside), 2 + 6 + 2, kRounding);
}

TEST(SimulatorTest, Simulate_ModulesOnTheSameRanks_HideWhatFitsBesideEachOther) {
  const plan::Plan plan = PlanOf(AJob()
                                     .Module("vision", NoArchitecture(), {.dp = 2, .offset = 0})
                                     .Module("language", NoArchitecture(), {.dp = 2, .offset = 0})
                                     .Edge("vision", "language")
                                     .Batch(2, 1));
  CostModel costs = EqualCosts(plan, InTwoSlices({1, 1, 1, /*reduce=*/1, 0, 0}));
  const auto step = [&] { return Simulate(plan, Programs(plan), costs).step; };
  // Forward until 2, language's backward pass [2, 4], vision's [4, 6]: half of its sum is left.
  EXPECT_NEAR(step(), 6 + 0.5, kRounding);
  // Language's halves are needed at 1 and at 1.5.
  costs.parts[1][0].gather = 1;
  EXPECT_NEAR(step(), 6 + 0.5, kRounding);
  costs.parts[1][0].gather = 3;
  EXPECT_NEAR(step(), 6 + 0.5 + 1.5, kRounding);
}

TEST(SimulatorTest, SimulatePlan_OfReplicas_AgreesWithAllRanks) {
  for (const bool apart : {false, true}) {
    const support::Layout language = {.dp = 2, .pp = apart ? 2 : 1, .offset = apart ? 2 : 0};
    const plan::Plan plan = PlanOf(AJob()
                                       .Module("vision", ClipVision(), {.dp = 2, .offset = 0})
                                       .Module("language", Llama(), language)
                                       .Edge("vision", "language")
                                       .Batch(8, 2));
    const CostModel costs = CostFromShapes(plan);
    EXPECT_FALSE(costs.parts[1][0].slices.empty());
    const double step = Simulate(plan, Programs(plan), costs).step;
    EXPECT_NEAR(SimulatePlan(plan, costs)->step, step, 1e-9 * step) << apart;
  }
}

TEST(SimulatorTest, Simulate_IdleRanks_DoNotCount) {
  const plan::Plan plan = PlanOf(AJob()
                                     .Module("vision", NoArchitecture())
                                     .Module("language", NoArchitecture(), {.offset = 5})
                                     .Edge("vision", "language")
                                     .Batch(1, 1));
  // Two ranks busy 3 each in F F B B: (1 + 1 + 1 + 1) + 1.
  const Simulation simulation = Simulate(plan, Programs(plan), EqualCosts(plan, {1, 1, 1}));
  EXPECT_NEAR(simulation.step, 5, kRounding);
  EXPECT_NEAR(simulation.bubble, 1 - 6.0 / 10, kRounding);
}

TEST(SimulatorTest, Simulate_Timeline_NeverRunsTwoPassesOfARankAtOnce) {
  for (const NamedPlan& graph : Graphs()) {
    const Simulation simulation =
        Simulate(graph.plan, Programs(graph.plan), EqualCosts(graph.plan, {1, 1.5, 0.5}));
    std::vector<double> free(static_cast<size_t>(graph.plan.world), 0);
    for (const TimedInstruction& timed : simulation.timeline) {
      if (!IsPass(timed.instruction.op)) continue;
      double& end = free[static_cast<size_t>(timed.rank.value)];
      EXPECT_LE(end, timed.begin + kRounding) << graph.name;
      end = timed.end;
    }
  }
}

TEST(SimulatorTest, SimulatePlan_EveryGraph_AgreesWithAllRanks) {
  for (const NamedPlan& graph : Graphs()) {
    // Who waits for whom among the ranks of one part, only the ranks themselves show.
    const bool rough =
        graph.name == "replica without samples" ||
        MakePipeline(graph.plan).crews.size() > MakePipeline(graph.plan).parts.size();
    const CostModel costs = EqualCosts(graph.plan, {1, 1, 1});
    const Simulation all = Simulate(graph.plan, Programs(graph.plan), costs);
    const auto preview = SimulatePlan(graph.plan, costs);
    ASSERT_TRUE(preview.ok()) << preview.status();
    if (rough) {
      EXPECT_GE(preview->step, all.step - kRounding) << graph.name;
      EXPECT_LE(preview->step, 1.06 * all.step) << graph.name;
      continue;
    }
    EXPECT_NEAR(preview->step, all.step, kRounding) << graph.name;
    EXPECT_NEAR(preview->bubble, all.bubble, kRounding) << graph.name;
    EXPECT_NEAR(preview->lower_bound, all.lower_bound, kRounding) << graph.name;
  }
}

TEST(CostModelTest, CostFromShapes_WithoutShapes_IsTheTextbookBubble) {
  const plan::Plan plan = Chain(4, 8);
  EXPECT_NEAR(SimulatePlan(plan, CostFromShapes(plan))->bubble, 3.0 / 11, kRounding);
}

TEST(CostModelTest, CostFromShapes_LayersKnown_GivesEachPartItsLayers) {
  const plan::Plan plan =
      PlanOf(AJob()
                 .Module("vision", NoArchitecture(4), {.pp = 2})
                 .Module("language", NoArchitecture(9), {.pp = 2, .layers = {3, 6}})
                 .Edge("vision", "language"));
  const CostModel costs = CostFromShapes(plan);
  EXPECT_EQ(costs.parts[0][1].forward, 2);
  EXPECT_EQ(costs.parts[1][1].forward, 6);
  EXPECT_EQ(costs.parts[1][1].backward_input, 12);
}

TEST(CostModelTest, CostFromShapes_TensorParallel_DividesTheWork) {
  const auto forward = [](int32_t tp) {
    const plan::Plan plan = PlanOf(AJob().Module("language", Llama(), {.tp = tp, .pp = 2}));
    return CostFromShapes(plan).parts[0][0].forward;
  };
  EXPECT_NEAR(forward(1), 2 * forward(2), 1e-9 * forward(1));
}

TEST(CostModelTest, CostFromShapes_OfTheUpdate_FallsWithWhatARankHas) {
  const auto cost = [](int32_t tp, int32_t dp, bool frozen = false) {
    const plan::Plan plan =
        PlanOf(AJob().Module("language", Llama(), {.tp = tp, .dp = dp, .frozen = frozen}));
    return CostFromShapes(plan).parts[0][0];
  };
  EXPECT_EQ(cost(1, 1).reduce, 0) << "nobody to reduce with";
  EXPECT_EQ(cost(1, 1).gather, 0);
  EXPECT_GT(cost(1, 1).update, 0);
  // Gradients travel in 4 bytes, as weights do here; of n replicas a rank sends (n - 1) / n.
  EXPECT_EQ(cost(1, 4).reduce, cost(1, 4).gather);
  EXPECT_NEAR(cost(1, 4).reduce / cost(1, 3).reduce, (3.0 / 4) / (2.0 / 3), 0.05);
  EXPECT_NEAR(cost(1, 4).update / cost(1, 1).update, 0.25, 1e-9);
  // Of two with two homes each gets all sums, and updates all.
  EXPECT_NEAR(cost(1, 4).reduce / cost(1, 2).reduce, (3.0 / 4) / (2 * 1.0 / 2), 0.05);
  EXPECT_EQ(cost(1, 2).gather, 0);
  EXPECT_NEAR(cost(1, 2).update, cost(1, 1).update, 1e-9 * cost(1, 1).update);
  EXPECT_LT(cost(2, 2).reduce, cost(1, 2).reduce);
  EXPECT_EQ(cost(1, 2, true).reduce + cost(1, 2, true).update + cost(1, 2, true).gather, 0);
}

TEST(CostModelTest, CostFromShapes_Slices_LieWherePassesComeToTheirLayers) {
  const auto slices = [](support::Layout layout) {
    const plan::Plan plan =
        PlanOf(AJob()
                   .Module("language",
                           LargeLlama({.layers = 4, .vocabulary = 32000, .context = 32}), layout)
                   .Batch(4, 1));
    return CostFromShapes(plan).parts[0][0].slices;
  };
  // The last layer with the head, the other three, the embedding.
  const std::vector<UpdateSlice> whole = slices({.dp = 2});
  ASSERT_EQ(whole.size(), 5u);
  double all = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    all += whole[i].share;
    if (i == 0) continue;
    EXPECT_GE(whole[i].complete, whole[i - 1].complete);
    EXPECT_LE(whole[i].needed, whole[i - 1].needed);
  }
  EXPECT_NEAR(all, 1, kRounding);
  EXPECT_GT(whole[0].complete, 1.0 / 4) << "the head's products come first";
  EXPECT_LT(whole[0].needed, 3.0 / 4) << "and go last";
  EXPECT_NEAR(whole[3].complete, 1, kRounding);
  EXPECT_EQ(whole[3].needed, 0);
  EXPECT_EQ(whole[4].complete, 1);
  EXPECT_EQ(slices({.tp = 2, .dp = 2}).size(), 1u) << "copies are folded first and spread behind";
  EXPECT_TRUE(slices({}).empty()) << "passes wait for the update";
}

TEST(CostModelTest, CostFromShapes_HeadAndProjector_WeighOnTheLastStage) {
  const auto plan_with = [](int64_t projector) {
    return PlanOf(AJob()
                      .Module("vision", ClipVision(), {.pp = 2})
                      .Module("language", Llama(), {.pp = 2, .layers = {2, 2}})
                      .Edge("vision", "language", {.projector = projector})
                      .Batch(4, 2));
  };
  const CostModel costs = CostFromShapes(plan_with(32));
  EXPECT_GT(costs.parts[0][1].forward, costs.parts[0][0].forward);
  EXPECT_GT(costs.parts[1][1].forward, costs.parts[1][0].forward);
  EXPECT_GT(CostFromShapes(plan_with(64)).parts[0][1].forward, costs.parts[0][1].forward);
}

std::vector<PartCost> Seconds(std::initializer_list<PartCost> parts) { return parts; }

TEST(BoundTest, StepLowerBound_OneSlowStage_IsItsWorkBetweenFillAndDrain) {
  const Pipeline pipeline = MakePipeline(Chain(3, 10));
  // Stage 1 waits for F of stage 0, works 10 x 6, and after its last input gradient stage 0 still
  // runs B and W, of which W of stage 1 hides 2: 1 + 60 + (1 + 3 - 2).
  EXPECT_NEAR(StepLowerBound(pipeline, Seconds({{1, 1, 3}, {2, 2, 2}, {1, 1, 1}}), {}), 63,
              kRounding);
}

TEST(BoundTest, StepLowerBound_OneMicrobatch_IsItsPath) {
  const Pipeline pipeline = MakePipeline(Chain(3, 1));
  EXPECT_NEAR(StepLowerBound(pipeline, Seconds({{1, 1, 1}, {2, 2, 2}, {4, 4, 4}}), {}), 15,
              kRounding);
}

TEST(BoundTest, StepLowerBound_WeightsDelayed_TakesTheLargerOfBothForms) {
  const Pipeline pipeline = MakePipeline(Chain(4, 8));
  const std::vector<PartCost> equal(4, PartCost{1, 1, 1});
  // Last stage: 3 + 8 x 3 with weights, 3 + 8 x 2 + 3 + 1 without.
  EXPECT_NEAR(StepLowerBound(pipeline, equal, {.weights_delayed = true}), 27, kRounding);
}

TEST(BoundTest, StepLowerBound_FewActivationsAllowed_CountsTheirLives) {
  const Pipeline pipeline = MakePipeline(Chain(2, 10));
  const std::vector<PartCost> equal(2, PartCost{1, 1, 1});
  const auto bound = [&](int32_t limit) {
    return StepLowerBound(pipeline, equal, {.live_activations_max = {limit, limit}});
  };
  // One at a time at stage 0: 10 lives of F + (F + B) + B + W.
  EXPECT_NEAR(bound(1), 50, kRounding);
  EXPECT_NEAR(bound(2), 32, kRounding);  // stage 1: 1 + 30 + 1
}

}  // namespace
}  // namespace phalanx::schedule
