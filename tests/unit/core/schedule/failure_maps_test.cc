// Plans that lost ranks: that they are sound, and how fast the simulator says they are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/prng.h"
#include "core/plan/loss.h"
#include "core/plan/ruler.h"
#include "core/plan/samples.h"
#include "core/plan/units.h"
#include "core/schedule/checker.h"
#include "core/schedule/cost_model.h"
#include "core/schedule/program.h"
#include "core/schedule/simulator.h"
#include "tests/unit/core/schedule/plans.h"

namespace phalanx::schedule {
namespace {

using plan::RankList;
using support::AJob;
using support::ClipVision;
using support::Llama;

constexpr uint64_t kMapSeed = 4711;
constexpr double kMapRounding = 1e-9;

// PHALANX_FAILURE_MAPS is the number of maps of a one-time run.
uint64_t MapCount() {
  const char* count = std::getenv("PHALANX_FAILURE_MAPS");
  if (count != nullptr) return std::strtoull(count, nullptr, 10);
  return kSanitized ? 100 : 1000;
}

int32_t Below(Prng& prng, int32_t bound) {
  return static_cast<int32_t>(prng.Below(static_cast<uint64_t>(bound)));
}

plan::Plan Without(const plan::Plan& healthy, const RankList& lost) {
  auto plan = plan::PlanWithout(healthy, lost);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

// ---- Soundness ----

// Any widths, with a colocated encoder one time in two.
job::JobSpec DrawJob(Prng& prng) {
  const int32_t kv_heads = 1 << Below(prng, 4);
  const int32_t tp = 1 + Below(prng, 6), dp = 1 + Below(prng, 4), pp = 1 + Below(prng, 3);
  AJob job;
  if (Below(prng, 2) == 0) {
    const int32_t encoder_tp = tp % 2 == 0 ? 2 : 1;
    const bool apart = Below(prng, 3) == 0;
    support::Layout language = {.tp = tp, .dp = dp, .pp = pp};
    if (!apart) language.offset = 0;
    job.Module("vision", ClipVision(),
               {.tp = encoder_tp, .dp = apart ? dp : tp * dp * pp / encoder_tp});
    job.Module("language", Llama({.layers = 6, .heads = 8, .kv_heads = kv_heads, .mlp_size = 104}),
               language);
    job.Edge("vision", "language", {.projector = 32});
  } else {
    job.Module("language", Llama({.layers = 6, .heads = 8, .kv_heads = kv_heads}),
               {.tp = tp, .dp = dp, .pp = pp});
  }
  job.Batch(2 * dp + Below(prng, 6), 1 + Below(prng, 2));
  return job;
}

RankList DrawLoss(Prng& prng, const plan::Plan& plan) {
  RankList lost;
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    if (Below(prng, 6) == 0) lost.push_back(Rank{rank});
  }
  if (lost.empty()) lost.push_back(Rank{Below(prng, plan.world)});
  return lost;
}

// Runs of a slot's tensor ranks are all `units`, each once.
void ExpectOwnedOnce(const std::vector<plan::UnitRange>& runs, int64_t units) {
  int64_t end = 0;
  for (const plan::UnitRange& run : runs) {
    EXPECT_EQ(run.first, end);
    EXPECT_GT(run.count, 0);
    end = run.end();
  }
  EXPECT_EQ(end, units);
}

// Of each family of units that a part has in a stage.
std::map<plan::UnitFamily, int64_t> UnitsOfStage(const plan::Plan& plan,
                                                 const plan::ModulePlan& module, int32_t pp) {
  const job::Architecture& architecture = plan.module_spec(module.index).architecture;
  std::map<plan::UnitFamily, int64_t> units;
  if (module.IsFirst(pp, 0) || pp == module.LastStage()) {
    const int64_t blocks = plan::CountUnits(architecture).vocabulary_blocks;
    if (blocks > 0) units[{.kind = plan::UnitKind::kVocabulary}] = blocks;
  }
  for (size_t i = 0; i < plan.spec.edges.size(); ++i) {
    const job::Edge& edge = plan.spec.edges[i];
    if (edge.from != module.index || !edge.projector.has_value()) continue;
    if (pp != module.LastStage()) continue;
    units[{.kind = plan::UnitKind::kMlp, .edge = static_cast<int32_t>(i)}] =
        plan::BlockCount(edge.projector->hidden_size, architecture.block);
  }
  return units;
}

void ExpectUnitsHaveOneOwner(const plan::Plan& plan) {
  for (const plan::ModulePlan& module : plan.modules) {
    const job::Architecture& architecture = plan.module_spec(module.index).architecture;
    const plan::UnitCounts all = plan::CountUnits(architecture);
    for (int32_t dp = 0; dp < module.replicas.replicas(); ++dp) {
      if (!module.replicas.Present(dp)) continue;
      for (int32_t pp = 0; pp < module.pp(); ++pp) {
        std::vector<plan::UnitRange> heads, blocks;
        const int32_t width = module.replicas.Width(dp, pp);
        for (int32_t tp = 0; tp < width; ++tp) {
          const plan::TensorUnits units = plan::TensorUnitsOf(architecture, width, tp);
          heads.push_back(units.query_heads);
          blocks.push_back(units.mlp_blocks);
        }
        ExpectOwnedOnce(heads, all.query_heads);
        ExpectOwnedOnce(blocks, all.mlp_blocks);
        for (const auto& [family, count] : UnitsOfStage(plan, module, pp)) {
          std::vector<plan::UnitRange> held;
          plan::Place place{.module = module.index, .dp = dp, .pp = pp, .width = width};
          for (; place.tp < width; ++place.tp) held.push_back(HeldUnits(plan, place, family));
          ExpectOwnedOnce(held, count);
        }
      }
    }
  }
}

// A replica is left out where a stage of it has no rank left, and no other one is. A module none of
// whose replicas is left has restarted.
void ExpectNobodyIdleWhoCouldWork(const plan::Plan& healthy, const plan::Plan& after) {
  const RankList& lost = after.layout.lost;
  for (const plan::ModulePlan& module : healthy.modules) {
    const plan::ModulePlan& left = after.modules[module.index];
    for (int32_t dp = 0; dp < module.replicas.replicas(); ++dp) {
      bool can_work = true;
      for (int32_t pp = 0; pp < module.pp(); ++pp) {
        const RankList ranks = module.replicas.Ranks(dp, pp);
        can_work &= !std::includes(lost.begin(), lost.end(), ranks.begin(), ranks.end());
      }
      EXPECT_EQ(!left.lowered() && left.replicas.Present(dp), can_work) << "replica " << dp;
    }
  }
  for (Rank rank : after.layout.idle) {
    for (const plan::Place& place : healthy.PlacesOf(rank)) {
      if (after.modules[place.module].lowered()) continue;
      EXPECT_FALSE(after.replicas(place.module).Present(place.dp)) << "rank " << rank.value;
    }
  }
}

TEST(FailureMapsTest, WhatIsLeft_OwnsEachUnitOnce_IdlesNobodyOfAReplica_AndPassesTheChecker) {
  uint64_t left = 0, checked = 0;
  for (uint64_t i = 0; i < MapCount(); ++i) {
    SCOPED_TRACE(absl::StrCat("map ", i));
    Prng prng(Hash64(kMapSeed, 1, i));
    const plan::Plan healthy = PlanOf(DrawJob(prng));
    const RankList lost = DrawLoss(prng, healthy);
    const auto after = plan::PlanWithout(healthy, lost);
    if (!after.ok()) {
      EXPECT_EQ(after.status().code(), absl::StatusCode::kFailedPrecondition) << after.status();
      continue;
    }
    ++left;
    ExpectUnitsHaveOneOwner(*after);
    ExpectNobodyIdleWhoCouldWork(healthy, *after);
    for (Rank rank : lost) EXPECT_TRUE(after->PlacesOf(rank).empty());
    if (healthy.world > 16) continue;
    ++checked;
    const auto report = CheckStep(*after, Programs(*after));
    EXPECT_TRUE(report.ok()) << report.status();
    if (HasFailure()) return;
  }
  EXPECT_GT(left, MapCount() / 2);
  EXPECT_GT(checked, MapCount() / 4);
}

// ---- Speed ----

// Twelve heads and blocks divide by 3 and by 4.
job::JobSpec Twelve(const support::Layout& layout) {
  return AJob()
      .Module(
          "language",
          Llama({.hidden_size = 48, .heads = 12, .kv_heads = 12, .mlp_size = 96, .vocabulary = 96}),
          layout)
      .Batch(28, 1);
}

TEST(FailureMapsTest, OneStageAtThreeOfFour_TakesFourThirdsOfTheTimeForEachSample) {
  const plan::Plan healthy = PlanOf(Twelve({.tp = 4, .dp = 2, .pp = 2}));
  const plan::Plan plan = Without(healthy, {healthy.replicas(0).At(1, 0, 0, 2)});
  const CostModel costs = CostFromShapes(plan);
  ASSERT_EQ(costs.replicas[0].kinds.size(), 2u);
  EXPECT_THAT(costs.replicas[0].kind_of, testing::ElementsAre(0, 1));
  const std::vector<PartCost>& whole = costs.replicas[0].kinds[0].parts;
  const std::vector<PartCost>& narrow = costs.replicas[0].kinds[1].parts;
  EXPECT_EQ(costs.replicas[0].kinds[0].ranks, 8);
  EXPECT_EQ(costs.replicas[0].kinds[1].ranks, 7);
  // Only the stage that is hit takes longer for a sample.
  const std::vector<int64_t> samples = plan::LaneSamplesOfStep(plan, 0);
  const double share = static_cast<double>(samples[1]) / static_cast<double>(samples[0]);
  EXPECT_NEAR(narrow[0].forward, whole[0].forward * share * 4 / 3, kMapRounding * whole[0].forward);
  EXPECT_NEAR(narrow[1].forward, whole[1].forward * share, kMapRounding * whole[1].forward);
  // Healthy, all replicas are alike.
  EXPECT_TRUE(CostFromShapes(healthy).replicas[0].kinds.empty());
}

TEST(FailureMapsTest, ReplicaAtThreeOfFour_TakesThreeSamplesOfSeven) {
  // Without a pipeline a step is its microbatches: 14 on each replica, then 16 and 12.
  const plan::Plan healthy = PlanOf(Twelve({.tp = 4, .dp = 2}));
  const plan::Plan plan = Without(healthy, {Rank{5}});
  EXPECT_THAT(plan::LaneSamplesOfStep(plan, 0), testing::ElementsAre(16, 12));
  EXPECT_EQ(plan.microbatches, 16);
  const auto before = SimulatePlan(healthy, CostFromShapes(healthy));
  const auto after = SimulatePlan(plan, CostFromShapes(plan));
  ASSERT_TRUE(before.ok() && after.ok());
  EXPECT_NEAR(after->passes / before->passes, 16.0 / 14, kMapRounding);
  EXPECT_NEAR(after->bubble, 0, kMapRounding) << "both replicas take as long";
  const Simulation exact = Simulate(plan, Programs(plan), CostFromShapes(plan));
  EXPECT_NEAR(exact.passes, after->passes, kMapRounding * exact.passes);
  EXPECT_NEAR(exact.step, after->step, kMapRounding * exact.step);
  EXPECT_NEAR(exact.bubble, after->bubble, kMapRounding);
}

// The simulation of what is left under a way to lose ranks.
Simulation After(plan::Plan healthy, const RankList& lost, job::Widths widths,
                 std::vector<job::Rung> ladder) {
  healthy.spec.recovery.widths = widths;
  healthy.spec.recovery.ladder = std::move(ladder);
  const plan::Plan plan = Without(healthy, lost);
  return *SimulatePlan(plan, CostFromShapes(plan));
}

// Of few samples a replica the passes alone are compared: the ranks of a narrowed stage send more
// gradients each, and a step so short does not hide that.
TEST(FailureMapsTest, OwnWidths_AreNoSlowerThanParity_NorThatThanDroppingReplicas) {
  using enum job::Rung;
  int32_t maps = 0, faster = 0;
  for (uint64_t i = 0; maps < 300; ++i) {
    Prng prng(Hash64(kMapSeed, 2, i));
    const int32_t tp = 2 + Below(prng, 7), dp = 2 + Below(prng, 5), pp = 1 + Below(prng, 2);
    const int32_t samples = maps % 2 == 0 ? 4 : 64;  // of a replica
    const plan::Plan healthy = PlanOf(AJob()
                                          .Module("language",
                                                  Llama({.hidden_size = 512,
                                                         .heads = 32,
                                                         .kv_heads = 8,
                                                         .mlp_size = 2048,
                                                         .block = 16,
                                                         .vocabulary = 1024,
                                                         .context = 1024}),
                                                  {.tp = tp, .dp = dp, .pp = pp})
                                          .Batch(samples * dp, 1));
    // Some replica loses nothing, so that dropping all others leaves it.
    const int32_t safe = Below(prng, dp);
    RankList lost;
    for (int32_t rank = 0; rank < healthy.world; ++rank) {
      if (healthy.PlaceOf(Rank{rank}, 0)->dp != safe && Below(prng, 8) == 0) {
        lost.push_back(Rank{rank});
      }
    }
    if (lost.empty()) continue;
    ++maps;
    SCOPED_TRACE(absl::StrCat("map ", i, ": tp ", tp, " dp ", dp, " pp ", pp));
    const Simulation own = After(healthy, lost, job::Widths::kOwn, {kShrink, kDropReplica});
    const Simulation parity = After(healthy, lost, job::Widths::kParity, {kShrink, kDropReplica});
    const Simulation drop = After(healthy, lost, job::Widths::kOwn, {kDropReplica});
    faster += own.passes < 0.99 * parity.passes ? 1 : 0;
    EXPECT_LE(own.passes, parity.passes * (1 + kMapRounding));
    EXPECT_LE(parity.passes, drop.passes * (1 + kMapRounding));
    if (samples == 4) continue;
    EXPECT_LE(own.step, parity.step * (1 + kMapRounding));
    EXPECT_LE(parity.step, drop.step * (1 + kMapRounding));
  }
  EXPECT_GT(faster, 30);
}

}  // namespace
}  // namespace phalanx::schedule
