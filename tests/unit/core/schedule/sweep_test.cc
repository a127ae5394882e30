// Every schedule over pipelines of 1 to 16 stages and 1 to 64 microbatches, and over module graphs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "core/plan/activations.h"
#include "core/schedule/builder.h"
#include "core/schedule/checker.h"
#include "core/schedule/order_rules.h"
#include "core/schedule/simulator.h"
#include "tests/unit/core/schedule/plans.h"

namespace phalanx::schedule {
namespace {

using job::ScheduleName;
using support::AJob;
using support::Layout;
using support::NoArchitecture;

constexpr double kSweepRounding = 1e-9;
constexpr uint64_t kSweepSeed = 20240903;

// The checker passes, and no rank keeps more than the plan says; how many it keeps.
std::vector<int32_t> ExpectSound(const std::string& name, const plan::Plan& plan,
                                 const std::vector<Program>& programs) {
  const auto report = CheckStep(plan, programs);
  EXPECT_TRUE(report.ok()) << name << ": " << report.status();
  if (!report.ok()) return {};
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    int64_t stated = 0;
    for (const plan::Place& place : plan.PlacesOf(Rank{rank})) {
      stated += plan::ActivationsKeptMax(plan, place.module, place.pp, plan.microbatches);
    }
    EXPECT_LE(report->live_activations_max[static_cast<size_t>(rank)], stated)
        << name << " rank " << rank;
  }
  return report->live_activations_max;
}

// Step over the bound.
double OverBound(const plan::Plan& plan, const std::vector<Program>& programs,
                 const CostModel& costs) {
  const Simulation simulation = Simulate(plan, programs, costs);
  return (1 - simulation.lower_bound) / (1 - simulation.bubble);
}

struct ChainCase {
  const char* name;
  ScheduleName schedule;
  int32_t chunks;
  bool always;  // near the bound for any number of microbatches; else for as many as stages
  PartCost cost = {1, 1, 1};
};

TEST(SweepTest, BuildStep_EqualStages_IsSoundAndNearTheBound) {
  const ChainCase cases[] = {
      {"1f1b", ScheduleName::k1F1B, 1, true},
      {"zero_bubble_h1", ScheduleName::kZeroBubbleH1, 1, true},
      {"interleaved 2", ScheduleName::kInterleaved, 2, false},
      {"interleaved 3", ScheduleName::kInterleaved, 3, false},
      {"interleaved 4", ScheduleName::kInterleaved, 4, false},
      {"zero_bubble_v", ScheduleName::kZeroBubbleV, 2, false},
      {"1f1b, backward undivided", ScheduleName::k1F1B, 1, true, {1, 2, 0}},
      {"interleaved 2, backward undivided", ScheduleName::kInterleaved, 2, false, {1, 2, 0}},
      {"interleaved 4, backward undivided", ScheduleName::kInterleaved, 4, false, {1, 2, 0}},
  };
  for (const ChainCase& c : cases) {
    double worst = 0;
    for (const auto& [stages, microbatches] : SizesToSweep(kSweepSeed, 60)) {
      const plan::Plan plan = ChainUnder(c.schedule, stages, microbatches, c.chunks);
      const std::string name =
          absl::StrCat(c.name, ", ", stages, " stages, ", microbatches, " microbatches");
      const CostModel costs = EqualCosts(plan, c.cost);
      const std::vector<Program> programs = *BuildStepWithCosts(plan, costs);
      ExpectSound(name, plan, programs);
      const double ratio = OverBound(plan, programs, costs);
      EXPECT_GE(ratio, 1 - kSweepRounding) << name;
      if (!c.always && microbatches < stages) continue;
      EXPECT_LE(ratio, 1.05) << name;
      worst = std::max(worst, ratio);
    }
    std::printf("%s: at most %.3f of the bound\n", c.name, worst);
  }
}

TEST(SweepTest, BuildStep_OneForwardOneBackward_KeepsExactlyWhatIsStated) {
  for (int32_t stages : {1, 2, 5, 16}) {
    for (int64_t microbatches : {1, 4, 40}) {
      const plan::Plan plan = ChainUnder(ScheduleName::k1F1B, stages, microbatches);
      const std::vector<int32_t> kept = ExpectSound("1f1b", plan, Programs(plan));
      for (int32_t stage = 0; stage < stages; ++stage) {
        EXPECT_EQ(kept[static_cast<size_t>(stage)],
                  std::min<int64_t>(stages - stage, microbatches));
      }
    }
  }
}

TEST(SweepTest, BuildStep_GraphsOfEverySizeUnderEverySchedule_IsSound) {
  for (const auto& [stages, microbatches] : SizesToSweep(kSweepSeed + 1, 8)) {
    for (const NamedPlan& graph : GraphsOf(stages, microbatches)) {
      for (const NamedPlan& c : UnderEverySchedule(graph)) {
        ExpectSound(c.name, c.plan, Programs(c.plan));
      }
    }
  }
}

// Closed forms of the bubble, in passes of one unit.
TEST(SweepTest, Simulate_ZeroBubble_TakesTheTimeOfItsFormula) {
  for (int32_t stages = 2; stages <= 16; stages += 2) {
    for (int64_t microbatches : {2 * stages, 4 * stages}) {
      const plan::Plan h1 = ChainUnder(ScheduleName::kZeroBubbleH1, stages, microbatches);
      const auto m = static_cast<double>(microbatches);
      for (const PartCost& cost : {PartCost{1, 1, 1}, PartCost{1, 1.5, 0.75}}) {
        const CostModel costs = EqualCosts(h1, cost);
        const double step = Simulate(h1, *BuildStepWithCosts(h1, costs), costs).step;
        const double work = cost.forward + cost.backward_input + cost.backward_weight;
        // (p - 1)(F + B - W) idle
        EXPECT_NEAR(
            step,
            m * work + (stages - 1) * (cost.forward + cost.backward_input - cost.backward_weight),
            kSweepRounding)
            << stages;
      }
    }
  }
}

TEST(SweepTest, BuildStep_EveryGraphUnderEverySchedule_IsSound) {
  for (const NamedPlan& graph : Graphs()) {
    for (const NamedPlan& c : UnderEverySchedule(graph)) {
      const std::vector<Program> programs = Programs(c.plan);
      ExpectSound(c.name, c.plan, programs);
      for (int32_t rank = 0; rank < c.plan.world; ++rank) {
        const auto program = BuildStepOf(c.plan, Rank{rank});
        ASSERT_TRUE(program.ok());
        EXPECT_EQ(*program, programs[static_cast<size_t>(rank)]) << c.name << " rank " << rank;
      }
      for (int64_t microbatches : {1, 9}) {
        std::vector<Program> evaluation;
        for (int32_t rank = 0; rank < c.plan.world; ++rank) {
          evaluation.push_back(BuildEvaluationOf(c.plan, Rank{rank}, microbatches));
        }
        const absl::Status status = CheckEvaluation(c.plan, evaluation, microbatches);
        EXPECT_TRUE(status.ok()) << c.name << ": " << status;
      }
    }
  }
}

// An encoder of `encoder` on the ranks of a language model of `language`.
job::JobSpec Colocated(const Layout& encoder, Layout language, int64_t microbatches,
                       int32_t encoder_chunks) {
  language.offset = 0;
  AJob job;
  job.Module("vision", NoArchitecture(), encoder)
      .Module("language", NoArchitecture(), language)
      .Edge("vision", "language")
      .Batch(microbatches * language.dp * 2, 2)
      .Schedule(ScheduleName::kThreePhase);
  job.spec().schedule.encoder_chunks = encoder_chunks;
  return job;
}

struct ColocatedCase {
  Layout encoder, language;
  bool fills = true;  // no tensor group of the encoder joins ranks of several stages
};
std::vector<ColocatedCase> ColocatedCases() {
  using A = job::MeshAxis;
  const std::array<A, 4> stages_inside = {A::kTensor, A::kContext, A::kPipeline, A::kData};
  return {
      {{.dp = 2}, {.pp = 2}},
      {{.dp = 4}, {.pp = 4}},
      {{.dp = 8}, {.pp = 8}},
      {{.dp = 4}, {.tp = 2, .pp = 2}},
      {{.tp = 2, .dp = 2}, {.tp = 2, .pp = 2}},
      {{.tp = 2, .dp = 2}, {.pp = 4}, false},
      {{.tp = 2, .dp = 2}, {.dp = 2, .pp = 2}},
      {{.tp = 2, .dp = 2}, {.dp = 2, .pp = 2, .order = stages_inside}, false},
      {{.dp = 4}, {.dp = 2, .pp = 2, .order = stages_inside}},
      {{.tp = 4}, {.pp = 4}, false},
      {{.dp = 16}, {.tp = 2, .dp = 2, .pp = 4}},
  };
}
CostModel ColocatedCosts(const plan::Plan& plan, double encoder) {
  CostModel costs = EqualCosts(plan, {1, 1, 1});
  costs.parts[0].assign(costs.parts[0].size(), {encoder, encoder, encoder});
  return costs;
}

TEST(SweepTest, BuildStep_ThreePhase_WholeOrInChunks_IsSoundAndChunksShrinkTheBubble) {
  for (double encoder : {0.1, 0.5, 1.0, 4.0}) {
    for (const ColocatedCase& c : ColocatedCases()) {
      for (int64_t microbatches : {1, 2, 3, 8, 31}) {
        double whole = 0;
        for (int32_t chunks : {1, 2, 4, 8}) {
          if (chunks > microbatches) continue;
          const plan::Plan plan = PlanOf(Colocated(c.encoder, c.language, microbatches, chunks));
          const std::string name =
              absl::StrCat("encoder dp ", c.encoder.dp, ", language pp ", c.language.pp, ", ",
                           microbatches, " microbatches, ", chunks, " chunks");
          const CostModel costs = ColocatedCosts(plan, encoder);
          const std::vector<Program> programs = *BuildStepWithCosts(plan, costs);
          ExpectSound(name, plan, programs);
          const Simulation simulation = Simulate(plan, programs, costs);
          const auto m = static_cast<double>(microbatches);
          if (chunks == 1) {
            // Encoder forward, 1F1B, encoder backward.
            const double phases =
                m * encoder + (2.0 * (c.language.pp - 1) + 3 * m) + 2 * m * encoder;
            EXPECT_LE(simulation.step, 1.05 * phases) << name;
            whole = simulation.bubble;
          } else if (c.fills) {
            EXPECT_LT(simulation.bubble, whole - kSweepRounding) << name;
          } else {
            EXPECT_LE(simulation.bubble, whole + kSweepRounding) << name;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace phalanx::schedule
