// The rung `restart`: modules go on with lower degrees on what is left of their ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/prng.h"
#include "core/plan/layout_change.h"
#include "core/plan/loss.h"
#include "core/plan/lowered.h"
#include "core/plan/memory_estimate.h"
#include "tests/support/specs.h"
#include "tests/unit/core/plan/after.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using job::Rung;
using support::AJob;
using support::ClipVision;
using support::Llama;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

AJob DeepLanguage(const support::Layout& layout) {
  AJob job;
  job.Module("language",
             Llama({.hidden_size = 64, .layers = 8, .heads = 16, .kv_heads = 4, .mlp_size = 256}),
             layout);
  return job;
}

Change BackIn(const Plan& plan, const RankList& ranks) {
  Change change{.spares = false};
  for (Rank rank : ranks) change.returned[rank] = plan.DeviceOf(rank);
  return change;
}

TEST(LowerDegreesTest, DpIsLoweredFirst_ThenPp_ThenTp) {
  const auto text = [](const Degrees& degrees) {
    return absl::StrCat("tp", degrees.tp, " pp", degrees.pp, " dp", degrees.dp);
  };
  std::vector<std::string> tried;
  for (const Degrees& degrees : LowerDegrees({.tp = 2, .dp = 2, .pp = 2}, 7))
    tried.push_back(text(degrees));
  EXPECT_THAT(tried, ElementsAre("tp2 pp2 dp1", "tp2 pp1 dp2", "tp1 pp2 dp2", "tp1 pp1 dp2"));
  tried.clear();
  for (const Degrees& degrees : LowerDegrees({.tp = 2, .dp = 2, .pp = 2}, 3))
    tried.push_back(text(degrees));
  EXPECT_THAT(tried, ElementsAre("tp2 pp1 dp1", "tp1 pp2 dp1", "tp1 pp1 dp2"));
  EXPECT_THAT(LowerDegrees({.tp = 2}, 0), IsEmpty());
}

TEST(RestartTest, LastReplicaThatLosesAStage_GoesOnWithFewerStages) {
  const Plan healthy = MustPlan(DeepLanguage({.pp = 2}), 2);
  const auto next = LayoutAfter(healthy, {.lost = Ranks({1}), .spares = false});
  ASSERT_TRUE(next.ok()) << next.status();
  ASSERT_EQ(next->taken.size(), 1u);
  EXPECT_EQ(next->taken[0].rung, Rung::kRestart);
  EXPECT_EQ(next->taken[0].why, "the module goes on with tp 1, dp 1, pp 1");
  const Plan plan = *Expand(healthy.spec, next->layout);
  EXPECT_EQ(plan.replicas(0).degrees(), Degrees{});
  EXPECT_EQ(plan.replicas(0).Ranks(0, 0), Ranks({0}));
  EXPECT_EQ(plan.modules[0].layers(0).count, 8);
  EXPECT_EQ(plan.stages, 1);
  EXPECT_EQ(plan.parallel(0).pp, 1);
  EXPECT_EQ(plan.spec.modules[0].parallel.pp, 2) << "the document stays";
  EXPECT_EQ(plan.world, 2);
  EXPECT_THAT(plan.layout.idle, IsEmpty());
  EXPECT_EQ(plan.Reporter(), Rank{0});
  EXPECT_THAT(ToWords(ChangesBetween(healthy, plan)), ElementsAre("language pp 2 -> 1"));
  // The same with the other one.
  EXPECT_EQ(Without(healthy, {0}).replicas(0).Ranks(0, 0), Ranks({1}));
}

TEST(RestartTest, LadderOfItAlone_LowersDp_AndRanksKeepTheirStages) {
  AJob job = DeepLanguage({.dp = 2, .pp = 2});
  job.spec().recovery.ladder = {Rung::kRestart};
  const Plan healthy = MustPlan(job, 4);
  // 0 and 1 are of stage 0, 2 and 3 of stage 1.
  const Plan plan = Without(healthy, {2});
  EXPECT_EQ(plan.replicas(0).degrees(), (Degrees{.pp = 2}));
  EXPECT_EQ(plan.replicas(0).Ranks(0, 0), Ranks({0}));
  EXPECT_EQ(plan.replicas(0).Ranks(0, 1), Ranks({3}));
  EXPECT_EQ(plan.layout.idle, Ranks({1}));
  EXPECT_EQ(plan.layout.modules[0].state_home, job::StateHome::kHost);
  EXPECT_THAT(ToWords(ChangesBetween(healthy, plan)), ElementsAre("language dp 2 -> 1"));
  // Two more: nobody is left for one of the stages at which they were.
  const Plan one = Without(plan, {0, 1});
  EXPECT_EQ(one.replicas(0).degrees(), Degrees{});
  EXPECT_EQ(one.replicas(0).Ranks(0, 0), Ranks({3}));
}

TEST(RestartTest, TpIsLoweredLast_ToWhateverIsLeft) {
  AJob job = DeepLanguage({.tp = 4});
  job.spec().recovery.ladder = {Rung::kRestart, Rung::kWait};
  const Plan plan = Without(MustPlan(job, 4), {1});
  EXPECT_EQ(plan.replicas(0).degrees(), (Degrees{.tp = 3}));
  EXPECT_EQ(plan.replicas(0).Ranks(0, 0), Ranks({0, 2, 3}));
  EXPECT_THAT(ToWords(ChangesBetween(MustPlan(job, 4), plan)),
              ElementsAre("language tp 4 -> 3 in replica 0"));
}

TEST(RestartTest, TensorGroupsStayTogether) {
  AJob job = DeepLanguage({.tp = 2, .dp = 2, .pp = 2});
  job.spec().recovery.ladder = {Rung::kRestart};
  // One rank of each group of stage 0 is left: they make one group.
  const Plan plan = Without(MustPlan(job, 8), {0, 3, 7});
  EXPECT_EQ(plan.replicas(0).degrees(), (Degrees{.tp = 2, .pp = 2}));
  EXPECT_EQ(plan.replicas(0).Ranks(0, 0), Ranks({1, 2}));
  EXPECT_EQ(plan.replicas(0).Ranks(0, 1), Ranks({4, 5}));
  EXPECT_EQ(plan.layout.idle, Ranks({6}));
}

TEST(RestartTest, OtherRungsComeFirst_AsTheLadderSays) {
  AJob job = DeepLanguage({.tp = 2, .dp = 2});
  const Plan shrunk = Without(MustPlan(job, 4), {1});
  EXPECT_FALSE(shrunk.modules[0].lowered());
  job.spec().recovery.ladder = {Rung::kRestart, Rung::kShrink};
  const Plan lowered = Without(MustPlan(job, 4), {1});
  EXPECT_TRUE(lowered.modules[0].lowered());
  EXPECT_EQ(lowered.replicas(0).Ranks(0, 0), Ranks({2, 3}));
  const auto never = LayoutAfter(MustPlan(DeepLanguage({.pp = 2}), 2),
                                 {.lost = Ranks({1}), .spares = false, .restart = false});
  EXPECT_THAT(std::string(never.status().message()), HasSubstr("no replica of module language"));
}

TEST(RestartTest, ModuleBesideIt_StaysAsItIs) {
  AJob job;
  job.Module("vision", ClipVision(), {.dp = 2});
  job.Module("language", Llama({.layers = 4}), {.pp = 2});
  job.Edge("vision", "language");
  const Plan plan = Without(MustPlan(job, 4), {3});
  EXPECT_FALSE(plan.modules[0].lowered());
  EXPECT_TRUE(plan.modules[1].lowered());
  EXPECT_EQ(plan.stages, 2);
  EXPECT_EQ(plan.replicas(1).Ranks(0, 0), Ranks({2}));
}

TEST(RestartTest, EverySchedule_GoesOnWithOneStage) {
  using job::ScheduleName;
  for (const ScheduleName name : {ScheduleName::k1F1B, ScheduleName::kInterleaved,
                                  ScheduleName::kZeroBubbleH1, ScheduleName::kZeroBubbleV}) {
    AJob job = DeepLanguage({.pp = 2});
    job.spec().schedule = {.name = name};
    if (name == ScheduleName::kInterleaved) job.spec().schedule.chunks = 2;
    const Plan plan = Without(MustPlan(job, 2), {0});
    EXPECT_EQ(plan.modules[0].pp(), 1);
    EXPECT_EQ(plan.spec.schedule.name, name);
  }
}

TEST(RestartTest, WhatDoesNotFitMemory_IsNotTaken) {
  AJob job = DeepLanguage({.dp = 2, .pp = 4});
  job.spec().recovery.ladder = {Rung::kRestart};
  job.spec().recovery.state_home = job::StateHome::kHost;
  const Plan healthy = MustPlan(job, 8);
  const auto most_of = [](const Plan& plan) {
    int64_t most = 0;
    for (const MemoryEstimate& need : EstimateMemory(plan)) most = std::max(most, need.total());
    return most;
  };
  // Of 5 ranks tp1 pp4 dp1 takes 4.
  const RankList lost = Ranks({0, 2, 4});
  const Plan four = Without(healthy, {0, 2, 4});
  EXPECT_EQ(four.replicas(0).degrees(), (Degrees{.pp = 4}));
  MemoryLimits limits;
  limits.devices.assign(8, most_of(four));
  EXPECT_EQ(MustPlanAfter(healthy, {.lost = lost, .spares = false}, limits).layout, four.layout);
  // With less nothing fits: whatever has fewer stages holds more.
  limits.devices.assign(8, most_of(four) - 1);
  const auto none = LayoutAfter(healthy, {.lost = lost, .spares = false}, limits);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("no lower degrees fit"));
}

TEST(RestartTest, NarrowedStageWithoutRoom_RestartsInstead) {
  // Drop-replica is not allowed, so replica 1 would be one rank wide.
  AJob job = DeepLanguage({.tp = 2, .dp = 2});
  job.spec().recovery.ladder = {Rung::kShrink, Rung::kRestart};
  job.spec().recovery.state_home = job::StateHome::kHost;
  const Plan healthy = MustPlan(job, 4);
  const auto most_of = [](const Plan& plan) {
    int64_t most = 0;
    for (const MemoryEstimate& need : EstimateMemory(plan)) most = std::max(most, need.total());
    return most;
  };
  const Plan shrunk = Without(healthy, {3});
  ASSERT_FALSE(shrunk.modules[0].lowered());
  MemoryLimits limits;
  limits.devices.assign(4, most_of(shrunk) - 1);
  const Plan lowered = MustPlanAfter(healthy, {.lost = Ranks({3}), .spares = false}, limits);
  EXPECT_EQ(lowered.replicas(0).degrees(), (Degrees{.tp = 2}));
}

TEST(RestartTest, DevicesThatMayNotBeUsed_AreLeftOut) {
  AJob job = DeepLanguage({.dp = 3});
  job.spec().recovery.ladder = {Rung::kRestart};
  const Plan healthy = MustPlan(job, 3);
  const Plan plan =
      MustPlanAfter(healthy, {.lost = Ranks({0}), .spares = false, .unfit = Ranks({1})});
  EXPECT_EQ(plan.replicas(0).degrees(), Degrees{});
  EXPECT_EQ(plan.replicas(0).Ranks(0, 0), Ranks({2}));
  EXPECT_EQ(plan.layout.idle, Ranks({1}));
}

TEST(RestartTest, LayoutsThatCannotBe_AreRefused) {
  AJob job = DeepLanguage({.tp = 2, .pp = 2});
  job.spec().recovery.ladder = {Rung::kRestart};
  const Plan healthy = MustPlan(job, 4);
  const Layout good = Without(healthy, {1, 3}).layout;
  ASSERT_TRUE(good.modules[0].lowered.has_value());
  const auto why = [&](const std::function<void(LoweredGrid&)>& spoil) {
    Layout layout = good;
    spoil(*layout.modules[0].lowered);
    return std::string(Expand(healthy.spec, std::move(layout)).status().message());
  };
  EXPECT_THAT(why([](LoweredGrid& l) { l.ranks.pop_back(); }), HasSubstr("it is lowered to"));
  EXPECT_THAT(why([](LoweredGrid& l) { l.ranks[0] = Rank{7}; }), HasSubstr("none of its module"));
  EXPECT_THAT(why([](LoweredGrid& l) { l.ranks.back() = l.ranks.front(); }), HasSubstr("twice"));
  EXPECT_THAT(why([](LoweredGrid& l) { l.tp = 0; }), HasSubstr("it is lowered to"));
  EXPECT_THAT(why([](LoweredGrid& l) { l.layers.push_back(1); }), HasSubstr("has layers of"));
  EXPECT_THAT(why([](LoweredGrid& l) { l.layers[0] += 1; }), HasSubstr("layers"));
  EXPECT_THAT(why([](LoweredGrid& l) { l.ranks[0] = Rank{1}; }), HasSubstr("lost or idle"));
}

// Random jobs of two modules, beside each other or on the same ranks.
Plan DrawPlan(Prng& prng) {
  const auto one_to = [&prng](int32_t end) { return 1 + static_cast<int32_t>(prng.Below(end)); };
  AJob job;
  const support::Layout language{.tp = one_to(3), .dp = one_to(3), .pp = one_to(3)};
  const int32_t ranks = language.tp * language.dp * language.pp;
  const bool colocated = prng.Below(2) == 0;
  support::Layout vision{.dp = colocated ? ranks : one_to(3)};
  if (colocated) vision.offset = 0;
  job.Module("vision", ClipVision({.hidden_size = 8, .layers = 2, .heads = 2, .mlp_size = 16}),
             vision);
  support::Layout placed = language;
  if (colocated) placed.offset = 0;
  job.Module("language",
             Llama({.hidden_size = 12, .layers = 4, .heads = 6, .kv_heads = 2, .mlp_size = 24}),
             placed);
  job.Edge("vision", "language", {.projector = 16}).Batch(24, 2);
  static const std::vector<std::vector<Rung>> kLadders = {
      job::AllRungs(),
      {Rung::kRestart},
      {Rung::kShrink, Rung::kRestart},
      {Rung::kDropReplica, Rung::kRestart, Rung::kWait}};
  job.spec().recovery.ladder = kLadders[prng.Below(kLadders.size())];
  if (prng.Below(2) == 0) job.spec().recovery.state_home = job::StateHome::kHost;
  return MustPlan(job, job.spec().World() + static_cast<int32_t>(prng.Below(3)));
}

RankList DrawLost(Prng& prng, const Plan& plan) {
  const std::set<Rank> gone(plan.layout.lost.begin(), plan.layout.lost.end());
  RankList lost;
  for (Rank rank{0}; rank.value < plan.world; ++rank.value) {
    if (!gone.contains(rank) && prng.Below(3) == 0) lost.push_back(rank);
  }
  return lost;
}

// What is said of a module that has restarted follows from who is left.
void ExpectFirstThatFits(const Plan& plan, const ModulePlan& module) {
  const job::Parallel& written = plan.module_spec(module.index).parallel;
  int64_t left = module.grid.size();
  for (Rank rank : plan.layout.lost) left -= module.grid.Contains(rank) ? 1 : 0;
  const std::vector<Degrees> tried =
      LowerDegrees({.tp = written.tp, .cp = written.cp, .dp = written.dp, .pp = written.pp}, left);
  ASSERT_FALSE(tried.empty());
  EXPECT_EQ(module.replicas.degrees(), tried.front());
  const Degrees degrees = module.replicas.degrees();
  std::set<Rank> ranks;
  for (int32_t pp = 0; pp < degrees.pp; ++pp) {
    for (int32_t dp = 0; dp < degrees.dp; ++dp) {
      for (int32_t tp = 0; tp < degrees.tp; ++tp) {
        const Rank rank = module.replicas.At(dp, pp, 0, tp);
        EXPECT_TRUE(ranks.insert(rank).second);
        const auto place = plan.PlaceOf(rank, module.index);
        ASSERT_TRUE(place.has_value());
        EXPECT_EQ(
            *place,
            (Place{.module = module.index, .tp = tp, .dp = dp, .pp = pp, .width = degrees.tp}));
      }
    }
  }
  int32_t layers = 0;
  for (const LayerRange& range : module.stage_layers) {
    EXPECT_GE(range.count, 1);
    layers += range.count;
  }
  EXPECT_EQ(layers, plan.module_spec(module.index).architecture.layers);
}

TEST(RestartTest, AnyLosses_GiveAPlanThatFits_AndReturnsTheHealthyOne) {
  int32_t restarts = 0, other_stages = 0;
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Prng prng(seed);
    const Plan healthy = DrawPlan(prng);
    Plan plan = healthy;
    RankList all;
    for (int loss = 0; loss < 3; ++loss) {
      const RankList lost = DrawLost(prng, plan);
      if (lost.empty()) continue;
      const auto next = LayoutAfter(plan, {.lost = lost, .spares = false});
      if (!next.ok()) {
        EXPECT_EQ(next.status().code(), absl::StatusCode::kFailedPrecondition);
        continue;
      }
      all.insert(all.end(), lost.begin(), lost.end());
      auto after = Expand(healthy.spec, next->layout);
      ASSERT_TRUE(after.ok()) << after.status();
      plan = *std::move(after);
      EXPECT_EQ(plan.digest, Expand(plan.spec, plan.layout)->digest);
      int32_t working = 0;
      for (Rank rank{0}; rank.value < plan.world; ++rank.value)
        working += plan.PlacesOf(rank).empty() ? 0 : 1;
      EXPECT_EQ(static_cast<size_t>(working) + plan.layout.lost.size() + plan.layout.idle.size(),
                plan.node_of.size());
      for (const ModulePlan& module : plan.modules) {
        if (!module.lowered()) continue;
        ++restarts;
        other_stages += module.pp() == plan.module_spec(module.index).parallel.pp ? 0 : 1;
        ExpectFirstThatFits(plan, module);
      }
    }
    if (all.empty()) continue;
    Layout at_once = LayoutAfter(healthy, {.lost = all, .spares = false})->layout;
    at_once.epoch = plan.layout.epoch;
    for (size_t m = 0; m < at_once.modules.size(); ++m)
      at_once.modules[m].order = plan.layout.modules[m].order;
    EXPECT_EQ(at_once, plan.layout);
    Plan back = MustPlanAfter(plan, BackIn(plan, plan.layout.lost));
    EXPECT_EQ(back.digest, healthy.digest);
    back.layout.epoch = healthy.layout.epoch;
    EXPECT_EQ(back.layout, healthy.layout);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(restarts, 300);
  EXPECT_GT(other_stages, 100);
}

}  // namespace
}  // namespace phalanx::plan
