// Places whose devices are slow: how samples are dealt then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/violation.h"
#include "core/plan/dealt_anew.h"
#include "core/plan/loss.h"
#include "core/plan/samples.h"
#include "core/plan/speeds.h"
#include "tests/support/specs.h"
#include "tests/unit/core/plan/after.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kHalf = kPaceOfOthers / 2;

job::JobSpec WideReplicas(int32_t dp, int32_t tp, int64_t global) {
  job::JobSpec spec = AJob().Module(
      "language", Llama({.hidden_size = 64, .heads = 16, .kv_heads = 4, .mlp_size = 256}),
      {.tp = tp, .dp = dp});
  spec.batch = {.global = global, .micro = 2};
  return spec;
}

Plan WithSlow(const Plan& plan, SlowPlaces slow) {
  return MustPlanAfter(plan, {.slow = std::move(slow)});
}

TEST(SlowPlacesTest, ReplicaOfASlowPlace_IsDealtFewerSamples) {
  const Plan healthy = MustPlan(WideReplicas(2, 2, 9), 4);
  ASSERT_THAT(LaneSamplesOfStep(healthy, 0), ElementsAre(5, 4));
  const Plan plan = WithSlow(healthy, {{Rank{3}, kHalf}});
  EXPECT_THAT(plan.layout.modules[0].speeds, ElementsAre(kSpeedOfFastest, kSpeedOfFastest / 2));
  EXPECT_THAT(LaneSamplesOfStep(plan, 0), ElementsAre(6, 3));
  EXPECT_EQ(plan.layout.epoch, Epoch{healthy.layout.epoch.value + 1});
  EXPECT_THAT(plan.layout.lost, IsEmpty());
  EXPECT_EQ(plan.layout.nodes, healthy.layout.nodes);
  EXPECT_NE(plan.digest, healthy.digest);
}

TEST(SlowPlacesTest, OfTwoInAReplica_TheSlowerOneCounts) {
  const Plan plan = WithSlow(MustPlan(WideReplicas(2, 2, 8), 4),
                             {{Rank{2}, kHalf}, {Rank{3}, kPaceOfOthers / 4}});
  EXPECT_THAT(plan.layout.modules[0].speeds, ElementsAre(kSpeedOfFastest, kSpeedOfFastest / 4));
}

TEST(SlowPlacesTest, OnceNobodyIsSlow_TheLayoutIsAsAdmitted) {
  const Plan healthy = MustPlan(WideReplicas(2, 2, 8), 4);
  const Plan slow = WithSlow(healthy, {{Rank{0}, kHalf}});
  const Plan again = WithSlow(slow, {});
  Layout expected = healthy.layout;
  expected.epoch = again.layout.epoch;
  EXPECT_EQ(again.layout, expected);
  EXPECT_EQ(again.digest, healthy.digest);
}

TEST(SlowPlacesTest, AllReplicasAlikeSlow_ShareEvenly) {
  const Plan plan =
      WithSlow(MustPlan(WideReplicas(2, 1, 8), 2), {{Rank{0}, kHalf}, {Rank{1}, kHalf}});
  EXPECT_THAT(LaneSamplesOfStep(plan, 0), ElementsAre(4, 4));
}

// Without any it would have no work by which to show that it keeps up again.
TEST(SlowPlacesTest, HoweverSlow_HasASample) {
  for (int32_t dp = 2; dp <= 5; ++dp) {
    for (int64_t global = dp; global <= 3 * dp; ++global) {
      for (int32_t place = 0; place < dp; ++place) {
        const Plan plan = WithSlow(MustPlan(WideReplicas(dp, 1, global), dp), {{Rank{place}, 1}});
        EXPECT_GE(LaneSamplesOfStep(plan, 0)[static_cast<size_t>(place)], 1)
            << dp << " replicas, " << global << " samples, place " << place;
      }
    }
  }
}

TEST(SlowPlacesTest, OfOtherModules_OnlyThoseOfThePlaceAreDealtAnew) {
  AJob job;
  job.Module("vision", ClipVision(), {.dp = 4, .offset = 0});
  job.Module("language", Llama({.hidden_size = 64, .heads = 16, .kv_heads = 4, .mlp_size = 256}),
             {.tp = 2, .dp = 2, .offset = 0});
  job.Edge("vision", "language", {.projector = 64});
  job::JobSpec spec = job;
  spec.batch = {.global = 8, .micro = 4};
  const Plan healthy = MustPlan(spec, 4);
  const Plan plan = WithSlow(healthy, {{Rank{1}, kHalf}});
  EXPECT_THAT(plan.layout.modules[0].speeds,
              ElementsAre(kSpeedOfFastest, kSpeedOfFastest / 2, kSpeedOfFastest, kSpeedOfFastest));
  EXPECT_THAT(plan.layout.modules[1].speeds, ElementsAre(kSpeedOfFastest / 2, kSpeedOfFastest));
}

TEST(SlowPlacesTest, LossElsewhere_LeavesItSlow_AndItsOwnForgetsIt) {
  const Plan slow = WithSlow(MustPlan(WideReplicas(3, 1, 9), 3), {{Rank{1}, kHalf}});
  const Plan other = MustPlanAfter(slow, {.lost = {Rank{0}}, .spares = false});
  EXPECT_THAT(other.layout.slow, ElementsAre(SlowPlace{Rank{1}, kHalf}));
  EXPECT_THAT(LaneSamplesOfStep(other, 0), ElementsAre(0, 3, 6));
  const Plan own = MustPlanAfter(slow, {.lost = {Rank{1}}, .spares = false});
  EXPECT_THAT(own.layout.slow, IsEmpty());
  const Plan back = MustPlanAfter(own, {.returned = {{Rank{1}, own.DeviceOf(Rank{1})}}});
  EXPECT_THAT(back.layout.slow, IsEmpty());
  EXPECT_THAT(LaneSamplesOfStep(back, 0), ElementsAre(3, 3, 3));
}

// Also in modules beside the one that restarts: nobody would know any more for whom they are not.
TEST(SlowPlacesTest, OnceAModuleHasRestarted_SamplesAreDealtEvenly) {
  AJob job;
  job.Module("vision", ClipVision(), {.dp = 2});
  job.Module("language", Llama({.layers = 4}), {.pp = 2});
  job.Edge("vision", "language");
  job::JobSpec spec = job;
  spec.batch = {.global = 8, .micro = 4};
  const Plan slow = WithSlow(MustPlan(spec, 4), {{Rank{1}, kHalf}});
  ASSERT_EQ(slow.layout.modules[0].speeds.size(), 2u);
  const Plan plan = MustPlanAfter(slow, {.lost = {Rank{3}}, .spares = false});
  ASSERT_TRUE(plan.modules[1].lowered());
  EXPECT_THAT(plan.layout.slow, IsEmpty());
  EXPECT_THAT(plan.layout.modules[0].speeds, IsEmpty());
}

TEST(SlowPlacesTest, WhatCannotBe_IsRefusedByName) {
  const Plan healthy = MustPlan(WideReplicas(2, 1, 8), 2);
  const auto error = [&](SlowPlaces slow) {
    return std::string(LayoutAfter(healthy, {.slow = std::move(slow)}).status().message());
  };
  EXPECT_THAT(error({}), HasSubstr("must name a rank"));
  EXPECT_THAT(error({{Rank{2}, kHalf}}), HasSubstr("must be a place of the job, below 2"));
  EXPECT_THAT(error({{Rank{1}, kHalf}, {Rank{0}, kHalf}}), HasSubstr("must follow a lower place"));
  EXPECT_THAT(error({{Rank{0}, 0}}), HasSubstr("has pace 0"));
  EXPECT_THAT(error({{Rank{0}, kPaceOfOthers}}), HasSubstr("it must lie in [1, 1048576)"));
  const Plan left = MustPlanAfter(healthy, {.lost = {Rank{0}}, .spares = false});
  EXPECT_THAT(LayoutAfter(left, {.slow = SlowPlaces{{Rank{0}, kHalf}}}).status().message(),
              HasSubstr("is lost"));
}

TEST(DealtAnewTest, SaysWhatReplicasOfSlowPlacesHave) {
  const Plan healthy = MustPlan(WideReplicas(2, 2, 8), 4);
  const Plan slow = WithSlow(healthy, {{Rank{3}, kHalf}});
  EXPECT_THAT(ToWords(DealtAnew(healthy, slow)),
              ElementsAre("replica 1 of language has 2 of 8 samples a step, not 4"));
  EXPECT_THAT(ToWords(DealtAnew(slow, WithSlow(slow, {}))),
              ElementsAre("replica 1 of language has 4 of 8 samples a step, not 2"));
  const Plan one = MustPlan(WideReplicas(1, 2, 8), 2);
  EXPECT_THAT(DealtAnew(one, WithSlow(one, {{Rank{1}, kHalf}})), IsEmpty());
}

}  // namespace
}  // namespace phalanx::plan
