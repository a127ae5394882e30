#include "core/plan/loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/prng.h"
#include "core/base/violation.h"
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

// A language model of many heads and blocks, so that any width is allowed.
AJob WideLanguage(const support::Layout& layout) {
  AJob job;
  job.Module("language", Llama({.hidden_size = 64, .heads = 16, .kv_heads = 4, .mlp_size = 256}),
             layout);
  return job;
}

Plan Expanded(const job::JobSpec& spec, const absl::StatusOr<Layout>& layout) {
  EXPECT_TRUE(layout.ok()) << layout.status();
  if (!layout.ok()) return {};
  auto plan = Expand(spec, *layout);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : Plan();
}

// Devices beyond the ranks stay idle.
absl::StatusOr<Layout> WithoutRanks(const Plan& plan, RankList lost) {
  absl::StatusOr<NextLayout> next = LayoutAfter(plan, {.lost = std::move(lost), .spares = false});
  if (!next.ok()) return next.status();
  return std::move(next->layout);
}

TEST(LossTest, Own_EachHitStageKeepsItsSurvivorsInUnitOrder) {
  const job::JobSpec spec = WideLanguage({.tp = 4, .dp = 2, .pp = 2});
  const Plan healthy = MustPlan(spec, spec.World());
  // Stage 1 of replica 1 loses its second rank.
  const RankList hit = healthy.replicas(0).Ranks(1, 1);
  const Plan plan = Without(healthy, {hit[1].value});
  EXPECT_EQ(plan.layout.epoch, Epoch{2});
  EXPECT_EQ(plan.replicas(0).Ranks(1, 1), (RankList{hit[0], hit[2], hit[3]}));
  EXPECT_EQ(plan.replicas(0).Width(1, 0), 4);
  EXPECT_EQ(plan.replicas(0).Width(0, 1), 4);
  EXPECT_EQ(plan.layout.lost, RankList{hit[1]});
  EXPECT_THAT(plan.layout.idle, IsEmpty());
  EXPECT_EQ(plan.layout.schedule.name, healthy.layout.schedule.name);
  EXPECT_EQ(plan.layout.modules[0].layers, healthy.layout.modules[0].layers);
}

// Examples 1.5 of the prior art: replica -> positions of tensor ranks that are lost, in any order,
// and those without work then.
struct ParityCase {
  int32_t tp;
  int32_t dp;
  std::map<int32_t, std::vector<int32_t>> lost;
  std::map<int32_t, std::set<int32_t>> left_out;
};

class ParityTest : public testing::TestWithParam<ParityCase> {};

TEST_P(ParityTest, HitReplicas_GetOneWidth) {
  const ParityCase& row = GetParam();
  AJob job = WideLanguage({.tp = row.tp, .dp = row.dp});
  job.spec().recovery.widths = job::Widths::kParity;
  const Plan healthy = MustPlan(job, job.Build().World());
  RankList lost;
  for (const auto& [dp, positions] : row.lost) {
    for (const int32_t tp : positions) lost.push_back(healthy.replicas(0).At(dp, 0, 0, tp));
  }
  const Plan plan = Expanded(healthy.spec, WithoutRanks(healthy, lost));
  std::set<Rank> idle;
  for (int32_t dp = 0; dp < row.dp; ++dp) {
    std::set<int32_t> left_out;
    for (int32_t tp = 0; tp < row.tp; ++tp) {
      const Rank rank = healthy.replicas(0).At(dp, 0, 0, tp);
      if (plan.replicas(0).PositionOf(rank).has_value()) continue;
      left_out.insert(tp);
      if (std::find(lost.begin(), lost.end(), rank) == lost.end()) idle.insert(rank);
    }
    const auto expected = row.left_out.find(dp);
    EXPECT_EQ(left_out, expected == row.left_out.end() ? std::set<int32_t>() : expected->second)
        << "replica " << dp;
  }
  EXPECT_EQ(RankList(idle.begin(), idle.end()), plan.layout.idle);
}

INSTANTIATE_TEST_SUITE_P(
    Examples, ParityTest,
    testing::Values(ParityCase{8, 2, {{0, {2, 5}}, {1, {1, 3}}}, {{0, {2, 5}}, {1, {1, 3}}}},
                    ParityCase{8, 2, {{0, {2, 5}}, {1, {1}}}, {{0, {2, 5}}, {1, {1, 7}}}},
                    ParityCase{8, 2, {{0, {7}}}, {{0, {7}}}},
                    ParityCase{8, 3, {{0, {6, 7}}, {1, {7}}}, {{0, {6, 7}}, {1, {6, 7}}}},
                    ParityCase{8, 2, {{0, {5, 2}}}, {{0, {2, 5}}}},
                    ParityCase{4,
                               4,
                               {{0, {1}}, {1, {2}}, {2, {3}}, {3, {0}}},
                               {{0, {1}}, {1, {2}}, {2, {3}}, {3, {0}}}},
                    // A replica that lost all is left out and narrows nobody.
                    ParityCase{
                        4, 3, {{0, {0, 1, 2, 3}}, {1, {2}}}, {{0, {0, 1, 2, 3}}, {1, {2}}}}));

TEST(LossTest, Parity_NarrowedEarlier_GoesAlong) {
  AJob job = WideLanguage({.tp = 4, .dp = 3});
  job.spec().recovery.widths = job::Widths::kParity;
  const Plan once = Without(MustPlan(job, 12), {1});
  const Plan twice = Without(once, {4, 5});
  EXPECT_EQ(twice.replicas(0).Ranks(0, 0), Ranks({0, 2}));
  EXPECT_EQ(twice.replicas(0).Ranks(1, 0), Ranks({6, 7}));
  EXPECT_EQ(twice.replicas(0).Width(2, 0), 4);
  EXPECT_THAT(Numbers(twice.layout.lost), ElementsAre(1, 4, 5));
  EXPECT_THAT(Numbers(twice.layout.idle), ElementsAre(3));
}

TEST(LossTest, Parity_ReplicaThatIsLeftOut_NarrowsNobody) {
  AJob job = WideLanguage({.tp = 4, .dp = 3, .pp = 2});
  job.spec().recovery.widths = job::Widths::kParity;
  const Plan healthy = MustPlan(job, 24);
  const auto at = [&](int32_t dp, int32_t pp, int32_t tp) {
    return healthy.replicas(0).At(dp, pp, 0, tp).value;
  };
  // Replica 0 is down to one rank in a stage, then has nobody in the other.
  const Plan once = Without(healthy, {at(0, 0, 0), at(0, 0, 1), at(0, 0, 2)});
  EXPECT_EQ(once.replicas(0).Width(0, 0), 1);
  const Plan twice = Without(once, {at(0, 1, 0), at(0, 1, 1), at(0, 1, 2), at(0, 1, 3)});
  EXPECT_FALSE(twice.replicas(0).Present(0));
  const Plan thrice = Without(twice, {at(1, 0, 2)});
  EXPECT_EQ(thrice.replicas(0).Width(1, 0), 3);
  EXPECT_EQ(thrice.replicas(0).Width(1, 1), 4);
  EXPECT_THAT(Numbers(thrice.layout.idle), ElementsAre(at(0, 0, 3)));
}

TEST(LossTest, Parity_NarrowestThatIsLeftOutLater_GivesTheOthersTheirRanksBack) {
  AJob job = WideLanguage({.tp = 4, .dp = 3});
  job.spec().recovery.widths = job::Widths::kParity;
  const Plan once = Without(MustPlan(job, 12), {1, 4, 5});
  EXPECT_EQ(once.replicas(0).Ranks(0, 0), Ranks({0, 2}));
  EXPECT_THAT(Numbers(once.layout.idle), ElementsAre(3));
  const Plan twice = Without(once, {6, 7});
  EXPECT_FALSE(twice.replicas(0).Present(1));
  EXPECT_EQ(twice.replicas(0).Ranks(0, 0), Ranks({0, 2, 3}));
  EXPECT_THAT(twice.layout.idle, IsEmpty());
}

TEST(LossTest, StageThatLosesAll_DropsItsReplica_WhoseOthersServeOtherModulesOrIdle) {
  AJob job;
  job.Module("vision", ClipVision(), {.dp = 4, .offset = 0});
  job.Module("language", Llama({.layers = 4}), {.dp = 2, .pp = 2, .offset = 0});
  job.Edge("vision", "language");
  const Plan shared = Without(MustPlan(job, 4), {3});
  EXPECT_TRUE(shared.replicas(1).Present(0));
  EXPECT_FALSE(shared.replicas(1).Present(1));
  EXPECT_EQ(shared.replicas(0).present_replicas(), 3);
  EXPECT_THAT(shared.layout.idle, IsEmpty());
  // Without vision beside it the other stage of the replica has nothing to do.
  const Plan alone = MustPlan(WideLanguage({.dp = 2, .pp = 2}), 4);
  const Rank first = alone.replicas(0).At(1, 0, 0, 0), second = alone.replicas(0).At(1, 1, 0, 0);
  EXPECT_EQ(Without(alone, {second.value}).layout.idle, RankList{first});
}

TEST(LossTest, Ladder_ChoosesTheFirstRungThatCanBeTaken) {
  AJob job = WideLanguage({.tp = 2, .dp = 2});
  job.spec().recovery.ladder = {job::Rung::kDropReplica, job::Rung::kShrink};
  EXPECT_FALSE(Without(MustPlan(job, 4), {1}).replicas(0).Present(0));
  job.spec().recovery.ladder = {job::Rung::kShrink};
  EXPECT_EQ(Without(MustPlan(job, 4), {1}).replicas(0).Width(0, 0), 1);
  const absl::Status all = WithoutRanks(MustPlan(job, 4), Ranks({0, 1})).status();
  EXPECT_EQ(all.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(all.message()),
              HasSubstr("allows no rung for module language, replica 0, a stage of which has no"));
  job.spec().recovery.ladder = {job::Rung::kWait};
  EXPECT_THAT(std::string(WithoutRanks(MustPlan(job, 4), Ranks({1})).status().message()),
              HasSubstr("recovery.ladder allows no rung for module language, replica 0"));
}

TEST(LossTest, LastReplica_IsNotGivenUp) {
  const Plan plan = MustPlan(WideLanguage({.tp = 2}), 2);
  const absl::Status status = WithoutRanks(plan, Ranks({0, 1})).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no replica of module language is left"));
}

TEST(LossTest, BadPlaces_AreNamedAllAtOnce) {
  const Plan plan = Without(MustPlan(WideLanguage({.tp = 2, .dp = 2}), 5), {1});
  std::vector<std::string> rules;
  for (const Violation& violation :
       ViolationsOf(WithoutRanks(plan, Ranks({1, 5, -1, 2, 2})).status())) {
    rules.push_back(ToString(violation));
  }
  EXPECT_THAT(
      rules,
      ElementsAre("lost: 1: is lost already", "lost: 5: must be a place of the job, below 5",
                  "lost: -1: must be a place of the job, below 5", "lost: 2: is named twice"));
  EXPECT_EQ(ViolationsOf(WithoutRanks(plan, {}).status()).size(), 1u);
}

TEST(LossTest, SpareThatIsLost_ChangesNoModule) {
  const Plan plan = Without(MustPlan(WideLanguage({.tp = 2, .dp = 2}), 5), {4});
  EXPECT_THAT(plan.layout.modules[0].changes, IsEmpty());
  EXPECT_THAT(plan.layout.idle, IsEmpty());
  EXPECT_THAT(Numbers(plan.layout.lost), ElementsAre(4));
}

TEST(LossTest, StateHomes_FollowTheReplicasThatAreLeft) {
  AJob job = WideLanguage({.dp = 3});
  job.spec().recovery.state_copies = 3;
  const Plan healthy = MustPlan(job, 3);
  EXPECT_EQ(healthy.layout.modules[0].state_copies, 3);
  const Plan two = Without(healthy, {0});
  EXPECT_EQ(two.layout.modules[0].state_home, job::StateHome::kMirror);
  EXPECT_EQ(two.layout.modules[0].state_copies, 2);
  EXPECT_EQ(Without(two, {1}).layout.modules[0].state_home, job::StateHome::kHost);
}

TEST(LossTest, StateHomesThatWereLowered_StayLowered) {
  AJob job = WideLanguage({.tp = 2, .dp = 3});
  job.spec().recovery.state_copies = 3;
  const auto homes_without = [&](job::StateHome home, int32_t copies, std::vector<int32_t> lost) {
    Layout layout = MustPlan(job, 6).layout;
    layout.modules[0].state_home = home;
    layout.modules[0].state_copies = copies;
    const Plan lowered = Expanded(job, std::move(layout));
    const ModuleLayout left = Without(lowered, std::move(lost)).layout.modules[0];
    return std::make_pair(left.state_home, left.state_copies);
  };
  using job::StateHome;
  EXPECT_EQ(homes_without(StateHome::kHost, 2, {1}), std::make_pair(StateHome::kHost, 2));
  EXPECT_EQ(homes_without(StateHome::kMirror, 2, {1}), std::make_pair(StateHome::kMirror, 2));
  EXPECT_EQ(homes_without(StateHome::kMirror, 3, {0, 1, 2, 3}),
            std::make_pair(StateHome::kHost, 2));
  job.spec().recovery.state_home = StateHome::kMirror;
  EXPECT_EQ(homes_without(StateHome::kMirror, 3, {0, 1, 2, 3}),
            std::make_pair(StateHome::kMirror, 1))
      << "the job asks for mirrors";
}

TEST(SpeedsTest, NarrowReplica_CountsTheLargestShareOfUnits) {
  const job::JobSpec spec = AJob().Module(
      "language", Llama({.hidden_size = 48, .heads = 6, .kv_heads = 6, .mlp_size = 48}),
      {.tp = 6, .dp = 2});
  const Plan healthy = MustPlan(spec, 12);
  EXPECT_THAT(healthy.modules[0].speeds, IsEmpty());
  // Six heads and six blocks on five ranks: one rank has two, so no faster than on three.
  const std::vector<int64_t> five = Without(healthy, {0}).layout.modules[0].speeds;
  const std::vector<int64_t> three = Without(healthy, {0, 1, 2}).layout.modules[0].speeds;
  ASSERT_EQ(five.size(), 2u);
  EXPECT_EQ(five[1], kSpeedOfFastest);
  EXPECT_NEAR(static_cast<double>(five[0]) / kSpeedOfFastest,
              static_cast<double>(three[0]) / kSpeedOfFastest, 0.03);
  EXPECT_LT(five[0], kSpeedOfFastest * 6 / 10);
}

TEST(SpeedsTest, WithoutShapes_AreTheWidths) {
  const job::JobSpec spec =
      AJob().Module("language", support::NoArchitecture(4), {.tp = 4, .dp = 3});
  const Plan plan = Without(Without(MustPlan(spec, 12), {1}), {8, 9, 10, 11});
  EXPECT_THAT(plan.layout.modules[0].speeds,
              ElementsAre(kSpeedOfFastest * 3 / 4, kSpeedOfFastest, 0));
}

// A language model with an encoder beside it, and what it loses at two times.
struct RandomLosses {
  job::JobSpec spec;
  RankList first, second, both;
};

RandomLosses DrawLosses(uint64_t seed, job::Widths widths) {
  Prng prng(seed);
  const auto below = [&prng](uint64_t bound) { return static_cast<int32_t>(prng.Below(bound)); };
  AJob job;
  const int32_t tp = 1 + below(4), dp = 1 + below(4), pp = 1 + below(3);
  const int32_t world = tp * dp * pp;
  job.Module("vision", ClipVision(), {.dp = world, .offset = 0});
  job.Module("language", Llama({.layers = 6}), {.tp = tp, .dp = dp, .pp = pp, .offset = 0});
  job.Edge("vision", "language");
  job.spec().recovery.widths = widths;
  job.spec().recovery.ladder = {job::Rung::kShrink, job::Rung::kDropReplica};
  RandomLosses losses{.spec = job};
  for (int32_t rank = 0; rank < world; ++rank) {
    if (below(5) == 0) (below(2) == 0 ? losses.first : losses.second).push_back(Rank{rank});
  }
  losses.both = losses.first;
  losses.both.insert(losses.both.end(), losses.second.begin(), losses.second.end());
  return losses;
}

TEST(LossTest, RandomFailures_LeaveValidLayouts_AndNobodyIdleWhoCouldWork) {
  int32_t left = 0;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE(seed);
    const RandomLosses losses = DrawLosses(seed, job::Widths::kOwn);
    if (losses.both.empty()) continue;
    const Plan healthy = MustPlan(losses.spec, losses.spec.World());
    const absl::StatusOr<Layout> layout = WithoutRanks(healthy, losses.both);
    if (!layout.ok()) {
      EXPECT_EQ(layout.status().code(), absl::StatusCode::kFailedPrecondition) << layout.status();
      continue;
    }
    ++left;
    const Plan plan = Expanded(losses.spec, layout);
    const std::set<Rank> gone(losses.both.begin(), losses.both.end());
    for (const ModulePlan& module : plan.modules) {
      for (int32_t d = 0; d < module.replicas.replicas(); ++d) {
        if (!module.replicas.Present(d)) continue;
        for (int32_t p = 0; p < module.replicas.stages(); ++p) {
          RankList expected = healthy.replicas(module.index).Ranks(d, p);
          std::erase_if(expected, [&gone](Rank rank) { return gone.contains(rank); });
          EXPECT_EQ(module.replicas.Ranks(d, p), expected);
        }
      }
    }
    for (Rank rank : plan.layout.idle) {
      EXPECT_TRUE(plan.PlacesOf(rank).empty());
      for (const Place& place : healthy.PlacesOf(rank)) {
        EXPECT_FALSE(plan.replicas(place.module).Present(place.dp));
      }
    }
  }
  EXPECT_GT(left, 500);
}

TEST(LossTest, RandomFailures_OneAfterAnotherOrAtOnce_LeaveTheSame) {
  for (const job::Widths widths : {job::Widths::kOwn, job::Widths::kParity}) {
    int32_t left = 0;
    for (uint64_t seed = 1; seed <= 1000; ++seed) {
      SCOPED_TRACE(absl::StrCat("seed ", seed, widths == job::Widths::kOwn ? ", own" : ", parity"));
      const RandomLosses losses = DrawLosses(seed, widths);
      if (losses.first.empty() || losses.second.empty()) continue;
      const Plan healthy = MustPlan(losses.spec, losses.spec.World());
      const absl::StatusOr<Layout> at_once = WithoutRanks(healthy, losses.both);
      if (!at_once.ok()) continue;
      ++left;
      const absl::StatusOr<Layout> once = WithoutRanks(healthy, losses.first);
      ASSERT_TRUE(once.ok()) << once.status();
      absl::StatusOr<Layout> twice = WithoutRanks(Expanded(losses.spec, once), losses.second);
      ASSERT_TRUE(twice.ok()) << twice.status();
      twice->epoch = at_once->epoch;
      // Who has what when a replica goes is another matter.
      for (size_t m = 0; m < twice->modules.size(); ++m)
        twice->modules[m].order = at_once->modules[m].order;
      EXPECT_EQ(*twice, *at_once);
      EXPECT_TRUE(Expand(losses.spec, *twice).ok());
    }
    EXPECT_GT(left, 300);
  }
}

}  // namespace
}  // namespace phalanx::plan
