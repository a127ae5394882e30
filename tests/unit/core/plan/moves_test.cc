#include "core/plan/moves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/prng.h"
#include "core/plan/loss.h"
#include "core/plan/parameters.h"
#include "core/plan/reduction.h"
#include "core/plan/safe_again.h"
#include "core/plan/shares.h"
#include "tests/support/specs.h"
#include "tests/unit/core/plan/damaged.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using testing::Each;
using testing::Field;
using testing::IsEmpty;

using Ruler = std::tuple<PartId, int32_t, UnitFamily>;
using Homes = std::map<Ruler, std::vector<std::set<Rank>>>;  // of each element

bool Contains(const std::vector<UnitRange>& runs, int64_t element) {
  return std::any_of(runs.begin(), runs.end(), [element](const UnitRange& run) {
    return run.first <= element && element < run.end();
  });
}

// The ranks that lead an element in each replica, whose home `primary` is one of.
RankList LeadersOf(const Plan& plan, const Place& primary, const UnitFamily& family, int64_t unit) {
  const ReplicaTable& table = plan.replicas(primary.module);
  RankList leaders;
  for (const int32_t dp : table.order()) {
    Place place{.module = primary.module, .dp = dp, .pp = primary.pp};
    place.width = table.Width(dp, primary.pp);
    for (; place.tp < place.width; ++place.tp) {
      const UnitRange led = LedUnits(plan, place, family);
      if (led.first <= unit && unit < led.end()) leaders.push_back(plan.RankOf(place));
    }
  }
  return leaders;
}

// By what each rank is the home of when it reduces.
Homes HomesOfAll(const Plan& plan) {
  Homes homes;
  ForEachPlace(plan, [&](Rank rank, const Place& place) {
    const int32_t chunks = plan.modules[static_cast<size_t>(place.module)].chunks();
    for (int32_t chunk = 0; chunk < chunks; ++chunk) {
      const StageParameters parameters = ParametersOf(plan, place, chunk);
      const Reduction reduction = ReductionOf(plan, place, chunk, parameters);
      const std::vector<BucketRulers> buckets = RulersOf(plan, place, parameters);
      for (size_t b = 0; b < buckets.size(); ++b) {
        for (const FamilyRuler& ruler : buckets[b].rulers) {
          std::vector<std::set<Rank>>& of =
              homes[{{place.module, place.pp, chunk}, static_cast<int32_t>(b), ruler.family}];
          of.resize(static_cast<size_t>(ruler.elements()));
          const UnitRange led = LedUnits(plan, place, ruler.family);
          for (int64_t unit = led.first; unit < led.end(); ++unit) {
            const RankList leaders = LeadersOf(plan, place, ruler.family, unit);
            const auto self = static_cast<size_t>(std::find(leaders.begin(), leaders.end(), rank) -
                                                  leaders.begin());
            const RankList mine = HomesOf(plan, place.module, leaders)[self];
            for (int64_t i = 0; i < ruler.unit_elements; ++i) {
              const int64_t element = unit * ruler.unit_elements + i;
              std::vector<UnitRange> at;
              buckets[b].AppendRuns(ruler.family, {element, 1}, &at);
              if (!Contains(reduction.buckets[b].own, at[0].first)) continue;
              std::set<Rank>& these = of[static_cast<size_t>(element)];
              EXPECT_THAT(these, IsEmpty()) << "an element has one primary home";
              these.insert(mine.begin(), mine.end());
            }
          }
        }
      }
    }
  });
  return homes;
}

AJob SmallJob() {
  AJob job;
  job.Module("vision", ClipVision({.hidden_size = 8, .layers = 1, .heads = 2, .mlp_size = 16}),
             {.tp = 2, .dp = 2})
      .Module("language",
              Llama({.hidden_size = 8, .layers = 2, .heads = 4, .kv_heads = 2, .mlp_size = 24}),
              {.tp = 3, .dp = 3, .pp = 2})
      .Edge("vision", "language", {.projector = 16})
      .Batch(24, 2);
  return job;
}

// Some ranks that a plan can do without.
RankList DrawLoss(Prng& prng, const Plan& plan) {
  for (;;) {
    std::set<Rank> lost;
    const uint64_t count = 1 + prng.Below(3);
    while (lost.size() < count) {
      const Rank rank{static_cast<int32_t>(prng.Below(static_cast<uint64_t>(plan.world)))};
      const RankList& before = plan.layout.lost;
      if (std::find(before.begin(), before.end(), rank) == before.end()) lost.insert(rank);
    }
    RankList ranks(lost.begin(), lost.end());
    if (LayoutAfter(plan, {.lost = ranks}).ok()) return ranks;
  }
}

// The places that have these devices of one plan in the next one.
std::set<Rank> NowAt(const Plan& before, const Plan& after, const std::set<Rank>& places) {
  const std::set<Rank> lost(after.layout.lost.begin(), after.layout.lost.end());
  std::set<Rank> now;
  for (Rank old : places) {
    for (Rank place{0}; place.value < static_cast<int32_t>(after.node_of.size()); ++place.value) {
      if (!lost.contains(place) && after.DeviceOf(place) == before.DeviceOf(old)) now.insert(place);
    }
  }
  return now;
}

void ExpectMovesLeadFromTo(const Plan& before, const Plan& after) {
  const Moves moves = MovesBetween(before, after);
  Homes homes = HomesOfAll(before);
  const Homes expected = HomesOfAll(after);
  const std::set<Rank> lost(after.layout.lost.begin(), after.layout.lost.end());
  std::map<std::set<Rank>, std::set<Rank>> now_at;
  for (auto& [ruler, elements] : homes) {
    for (std::set<Rank>& of : elements) {
      const auto [known, is_new] = now_at.try_emplace(of);
      if (is_new) known->second = NowAt(before, after, of);
      of = known->second;
    }
  }
  const Homes had = homes;
  int64_t moved = 0;
  for (const Move& move : moves.moves) {
    const Ruler ruler{move.part, move.bucket, move.family};
    ASSERT_TRUE(homes.contains(ruler));
    for (int64_t i = move.elements.first; i < move.elements.end(); ++i, ++moved) {
      const auto element = static_cast<size_t>(i);
      const std::set<Rank>& left = had.at(ruler)[element];
      ASSERT_TRUE(homes[ruler][element].insert(move.to).second) << "it has it already";
      EXPECT_EQ(left.contains(move.from), move.source == Move::Source::kRank);
      EXPECT_FALSE(lost.contains(move.from));
      if (move.source != Move::Source::kCheckpoint) continue;
      EXPECT_TRUE(left.empty());
    }
  }
  int64_t fewest = 0;
  for (const auto& [ruler, elements] : expected) {
    for (size_t i = 0; i < elements.size(); ++i) {
      for (Rank home : elements[i]) {
        const std::set<Rank>& before_it = had.at(ruler)[i];
        fewest += before_it.contains(home) ? 0 : 1;
        ASSERT_TRUE(homes[ruler][i].contains(home));
      }
    }
  }
  EXPECT_EQ(moved, fewest);
  EXPECT_EQ(moves.bytes, 12 * fewest);
}

TEST(MovesTest, AppliedToTheOldTable_GiveTheNewOne_WithTheFewestBytes) {
  const Plan healthy = MustPlan(SmallJob(), 22);
  ASSERT_EQ(healthy.world, 22);
  int32_t unequal = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    Prng prng(seed);
    Plan before = healthy;
    before.spec.recovery.widths = seed % 2 == 0 ? job::Widths::kOwn : job::Widths::kParity;
    for (int loss = 0; loss < 2; ++loss) {
      auto after =
          Expand(before.spec, LayoutAfter(before, {.lost = DrawLoss(prng, before)})->layout);
      ASSERT_TRUE(after.ok()) << after.status();
      ExpectMovesLeadFromTo(before, *after);
      for (int32_t pp = 0; pp < 2; ++pp) unequal += after->replicas(1).EqualWidths(pp) ? 0 : 1;
      before = *std::move(after);
    }
  }
  EXPECT_GT(unequal, 25);
}

// Devices change hands: those of spares, of replicas that are left out, and others that come.
TEST(MovesTest, DevicesThatTakeOver_KeepWhatTheyHave) {
  int32_t moved = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    Prng prng(seed);
    Plan before = MustPlan(SmallJob(), 22 + static_cast<int32_t>(seed % 3));
    for (int step = 0; step < 4; ++step) {
      Change change;
      const RankList& lost = before.layout.lost;
      if (step % 2 == 1 && !lost.empty()) {
        const Rank back = lost[prng.Below(lost.size())];
        change.returned[back] = before.DeviceOf(back);
        if (prng.Below(2) == 0) change.returned[back] = {"new", static_cast<int32_t>(seed)};
      } else {
        change.lost = DrawLoss(prng, before);
      }
      const auto next = LayoutAfter(before, change);
      if (!next.ok()) continue;
      auto after = Expand(before.spec, next->layout);
      ASSERT_TRUE(after.ok()) << after.status();
      ExpectMovesLeadFromTo(before, *after);
      moved += after->layout.nodes == before.layout.nodes ? 0 : 1;
      before = *std::move(after);
    }
  }
  EXPECT_GT(moved, 20);
}

// Replica 0 loses its first stage, replica 1 its second: one of them is whole with what the other
// one has left, which mirrors what is lost.
TEST(MovesTest, MirrorThatTakesOver_HasItAll) {
  const Plan healthy = MustPlan(AJob().Module("language", Llama(), {.dp = 2, .pp = 2}), 4);
  const Rank first = healthy.replicas(0).At(0, 0, 0, 0),
             second = healthy.replicas(0).At(1, 1, 0, 0);
  const auto next = LayoutAfter(healthy, {.lost = {first, second}});
  ASSERT_TRUE(next.ok()) << next.status();
  const Moves moves = MovesBetween(healthy, *Expand(healthy.spec, next->layout));
  EXPECT_THAT(moves.moves, IsEmpty());
  EXPECT_EQ(moves.steps_lost, 0);
}

TEST(MovesTest, StagesThatKeepTheirRanks_MoveNothing) {
  const Plan healthy = MustPlan(SmallJob(), 22);
  const auto after = Expand(
      healthy.spec, LayoutAfter(healthy, {.lost = {healthy.replicas(1).At(1, 1, 0, 2)}})->layout);
  const Moves moves = MovesBetween(healthy, *after);
  EXPECT_GT(moves.moves.size(), 0u);
  EXPECT_THAT(moves.moves, Each(Field(&Move::part, PartId{1, 1, 0})));
  EXPECT_EQ(moves.steps_lost, 0) << "the mirrors are left";
  EXPECT_THAT(MovesBetween(healthy, healthy).moves, IsEmpty());
}

TEST(MovesTest, MirrorsThatLackMuch_AreSafeBehindTheFirstSteps) {
  const auto moves_of = [](int64_t vocabulary, int32_t copies) {
    AJob job;
    job.Module("language", Llama({.vocabulary = vocabulary}), {.dp = 3}).Batch(6, 1);
    job.spec().recovery.state_copies = copies;
    const Plan healthy = MustPlan(job, 3);
    return MovesBetween(healthy,
                        *Expand(healthy.spec, LayoutAfter(healthy, {.lost = {Rank{2}}})->layout));
  };
  EXPECT_EQ(moves_of(128, 2).safe_again_steps, 0) << "mirrors get that little with the primaries";
  EXPECT_EQ(moves_of(1 << 17, 2).safe_again_steps, kMirrorStepsMax);
  EXPECT_EQ(moves_of(1 << 17, 1).safe_again_steps, 0) << "there are no mirrors";
}

TEST(MovesTest, StepsOfMirrors_EndWithinTheirTime) {
  EXPECT_EQ(MirrorSteps(absl::ZeroDuration()), kMirrorStepsMax);
  EXPECT_EQ(MirrorSteps(absl::Milliseconds(2500)), kMirrorStepsMax);
  EXPECT_EQ(MirrorSteps(absl::Milliseconds(2501)), 3);
  EXPECT_EQ(MirrorSteps(absl::Seconds(5)), 2);
  EXPECT_EQ(MirrorSteps(absl::Minutes(1)), 1) << "at the end of the first there is";
}

TEST(MovesTest, WhatHasNoHomeLeft_CostsStepsSinceItWasKept) {
  AJob job;
  job.Module("language", Llama({.heads = 4}), {.tp = 2}).Batch(4, 2);
  job.spec().steps = 500;
  job.spec().recovery.state_every = 4;
  const auto moves_of = [&](int32_t state_copies) {
    job.spec().recovery.state_copies = state_copies;
    const auto healthy = MakePlan(job, MakeCluster(2, 1), Epoch{1});
    EXPECT_TRUE(healthy.ok()) << healthy.status();
    return MovesBetween(*healthy,
                        *Expand(healthy->spec, LayoutAfter(*healthy, {.lost = {Rank{1}}})->layout));
  };
  // A single replica: the second home is host memory of the node, whose daemon outlives its device.
  const Moves host = moves_of(2);
  EXPECT_THAT(host.moves, Each(Field(&Move::source, Move::Source::kHost)));
  EXPECT_THAT(host.moves, Each(Field(&Move::from, Rank{1})));
  EXPECT_EQ(host.steps_lost, 5) << "as many as state_every, and the one under way";
  EXPECT_EQ(host.safe_again_steps, 5) << "the next copy, and the step beside which it is made";
  // There is none.
  const Moves all = moves_of(1);
  EXPECT_THAT(all.moves, Each(Field(&Move::source, Move::Source::kCheckpoint)));
  EXPECT_EQ(all.bytes, host.bytes);
  EXPECT_EQ(all.steps_lost, 500) << "without checkpoints it begins again";
  EXPECT_EQ(all.safe_again_steps, 0);
  job.spec().checkpoint = job::Checkpoint{.every = 50};
  EXPECT_EQ(moves_of(1).steps_lost, 50);
  EXPECT_EQ(moves_of(2).steps_lost, 5);
  job.spec().checkpoint->every = 2;
  EXPECT_EQ(moves_of(2).steps_lost, 2) << "checkpoints are newer than copies in host memory";
}

}  // namespace
}  // namespace phalanx::plan
