#include "core/plan/segments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/prng.h"
#include "core/plan/parameters.h"
#include "core/plan/shares.h"
#include "tests/support/specs.h"
#include "tests/unit/core/plan/damaged.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using ::testing::ElementsAre;

std::vector<Segment> Of(const std::vector<Segment>& segments, UnitKind kind, int32_t pp) {
  std::vector<Segment> chosen;
  for (const Segment& segment : segments) {
    if (segment.family.kind == kind && segment.pp == pp) chosen.push_back(segment);
  }
  return chosen;
}

TEST(SegmentsTest, Attention_OfEqualWidths_IsOneSegmentATensorCoordinate) {
  const Plan plan = MustPlan(AJob().Module("language", Llama(), {.tp = 2, .dp = 2}));
  const std::vector<Segment> attention = Of(Segments(plan), UnitKind::kAttention, 0);
  ASSERT_EQ(attention.size(), 2u);
  EXPECT_EQ(attention[1].units, (UnitRange{4, 4}));
  EXPECT_THAT(attention[1].holders, ElementsAre(ElementsAre(Rank{1}), ElementsAre(Rank{3})));
}

TEST(SegmentsTest, Kv_OfSharedHeads_HasSeveralHoldersAReplica) {
  const Plan plan = MustPlan(AJob().Module("language", Llama(), {.tp = 4}));  // 2 KV heads
  const std::vector<Segment> kv = Of(Segments(plan), UnitKind::kKv, 0);
  ASSERT_EQ(kv.size(), 2u);
  EXPECT_THAT(kv[1].holders, ElementsAre(ElementsAre(Rank{2}, Rank{3})));
}

TEST(SegmentsTest, Vocabulary_LivesOnTheEndsOfTheLanguageModule) {
  const Plan plan = MustPlan(AJob()
                                 .Module("vision", ClipVision())
                                 .Module("language", Llama(), {.pp = 3})
                                 .Edge("vision", "language", {.projector = 32}));
  const std::vector<Segment> segments = Segments(plan);
  std::set<std::pair<int32_t, int32_t>> places;
  for (const Segment& segment : segments) {
    if (segment.family.kind == UnitKind::kVocabulary) places.insert({segment.module, segment.pp});
  }
  EXPECT_THAT(places, ElementsAre(std::pair{1, 0}, std::pair{1, 2}));
}

TEST(SegmentsTest, Units_OfEveryWidth_AreInOneSegmentWithTheirHolders) {
  for (int32_t tp = 1; tp <= 8; ++tp) {
    for (int32_t dp = 1; dp <= 3; ++dp) {
      const Plan plan = MustPlan(AJob().Module("language", Llama(), {.tp = tp, .dp = dp}));
      std::map<UnitKind, int64_t> next;
      for (const Segment& segment : Segments(plan)) {
        EXPECT_EQ(segment.units.first, next[segment.family.kind]) << "no gap, no overlap";
        next[segment.family.kind] = segment.units.end();
        ASSERT_EQ(segment.holders.size(), static_cast<size_t>(dp));
        for (const RankList& holders : segment.holders) EXPECT_FALSE(holders.empty());
      }
      EXPECT_EQ(next[UnitKind::kAttention], 8);
      EXPECT_EQ(next[UnitKind::kKv], 2);
      EXPECT_EQ(next[UnitKind::kMlp], 8);
      EXPECT_EQ(next[UnitKind::kVocabulary], 12);
      EXPECT_EQ(next[UnitKind::kReplicated], 1);
    }
  }
}

TEST(SegmentsTest, VocabularyUnderAVee_IsOnTheRankWithBothEndsAlone) {
  job::JobSpec spec = AJob().Module("language", Llama(), {.pp = 2}).Batch(4, 1);
  spec.schedule = {.name = job::ScheduleName::kZeroBubbleV};
  std::set<int32_t> stages;
  for (const Segment& segment : Segments(MustPlan(spec))) {
    if (segment.family.kind == UnitKind::kVocabulary) stages.insert(segment.pp);
  }
  EXPECT_THAT(stages, ElementsAre(0));
}

TEST(SegmentsTest, ProjectorBlocks_AreSegmentsOfTheirSourcesLastStage) {
  const Plan plan = MustPlan(AJob()
                                 .Module("vision", ClipVision(), {.tp = 2, .pp = 2})
                                 .Module("language", Llama())
                                 .Edge("vision", "language", {.projector = 24}));
  std::vector<Segment> projectors;
  for (const Segment& segment : Segments(plan)) {
    if (segment.family.edge == 0) projectors.push_back(segment);
  }
  ASSERT_EQ(projectors.size(), 2u);  // 3 blocks of 8 over 2 ranks
  EXPECT_EQ(projectors[0].pp, 1);
  EXPECT_EQ(projectors[0].units, (UnitRange{0, 2}));
  EXPECT_EQ(projectors[1].units, (UnitRange{2, 1}));
}

std::vector<Share> SharesOf(const Plan& plan) {
  return Shares(plan).value_or(std::vector<Share>());
}

// Homes of shares, by module.
std::map<int32_t, std::set<RankList>> HomesBy(const Plan& plan) {
  std::map<int32_t, std::set<RankList>> homes;
  for (const Share& share : SharesOf(plan)) homes[share.module].insert(share.homes);
  return homes;
}

TEST(SharesTest, EveryElementThatARankLeads_IsInOneShare) {
  for (int32_t tp = 1; tp <= 4; ++tp) {
    for (int32_t dp = 1; dp <= 3; ++dp) {
      const Plan plan = MustPlan(AJob()
                                     .Module("vision", ClipVision(), {.tp = tp})
                                     .Module("language", Llama(), {.tp = tp, .dp = dp, .pp = 2})
                                     .Edge("vision", "language", {.projector = 32}));
      std::map<std::tuple<int32_t, int32_t, int32_t>, int64_t> next;  // segment, chunk, bucket
      int64_t elements = 0;
      for (const Share& share : SharesOf(plan)) {
        int64_t& first = next[{share.segment, share.chunk, share.bucket}];
        EXPECT_EQ(share.elements.first, first) << "no gap, no overlap";
        first = share.elements.end();
        elements += share.elements.count;
      }
      int64_t led = 0;
      for (int32_t rank = 0; rank < plan.world; ++rank) {
        for (const Place& place : plan.PlacesOf(Rank{rank})) {
          if (place.dp != 0) continue;
          led += ParametersOf(plan, place).LedElements();
        }
      }
      EXPECT_EQ(elements, led);
    }
  }
}

TEST(SharesTest, Mirrors_AreInOtherReplicasAndOnOtherNodesWhereThereAreSome) {
  job::JobSpec spec = AJob().Module("language", Llama(), {.dp = 4});
  spec.recovery.state_copies = 2;
  // Ranks 0 and 1 on one node, 2 and 3 on another.
  const Plan plan = *MakePlan(spec, MakeCluster(2, 2), Epoch{1});
  EXPECT_THAT(HomesBy(plan)[0],
              ElementsAre(RankList{Rank{0}, Rank{2}}, RankList{Rank{1}, Rank{3}},
                          RankList{Rank{2}, Rank{0}}, RankList{Rank{3}, Rank{1}}));
}

TEST(SharesTest, NodesOfEqualSize_EveryRankMirrorsAsMuch_AndHomesAreOnAsManyNodesAsThereAre) {
  for (const int32_t nodes : {1, 2, 3, 6}) {
    for (const int32_t copies : {2, 3, 4}) {
      job::JobSpec spec = AJob().Module("language", Llama(), {.dp = 6}).Batch(6, 1);
      spec.recovery.state_copies = copies;
      const Plan plan = *MakePlan(spec, MakeCluster(nodes, 6 / nodes), Epoch{1});
      std::map<Rank, int32_t> homes;
      for (const RankList& of_share : HomesOf(plan, 0, plan.DataGroups(0, 0)[0])) {
        std::set<NodeName> apart;
        for (const Rank home : of_share) {
          ++homes[home];
          apart.insert(plan.NodeOf(home));
        }
        EXPECT_EQ(apart.size(), static_cast<size_t>(std::min(copies, nodes)));
      }
      for (const auto& [rank, count] : homes)
        EXPECT_EQ(count, copies) << "rank " << rank.value << " of " << nodes << " nodes";
    }
  }
}

TEST(SharesTest, Copies_AreAsManyAsAskedForAndThereAre) {
  job::JobSpec spec = AJob().Module("language", Llama(), {.dp = 3});
  spec.recovery.state_copies = 1;
  EXPECT_THAT(HomesBy(MustPlan(spec))[0],
              ElementsAre(RankList{Rank{0}}, RankList{Rank{1}}, RankList{Rank{2}}));
  spec.recovery.state_copies = 3;
  const std::map<int32_t, std::set<RankList>> homes = HomesBy(MustPlan(spec));
  for (const RankList& ranks : homes.at(0)) EXPECT_EQ(ranks.size(), 3u);
}

TEST(SharesTest, OneReplica_HasItsSecondHomeInHostMemory) {
  const std::vector<Share> shares = SharesOf(MustPlan(AJob().Module("language", Llama())));
  ASSERT_FALSE(shares.empty());
  for (const Share& share : shares) {
    EXPECT_THAT(share.homes, ElementsAre(Rank{0}));
    EXPECT_TRUE(share.host);
  }
}

TEST(SharesTest, HostMemoryWhereItIsAskedFor_TakesThePlaceOfMirrors) {
  job::JobSpec spec = AJob().Module("language", Llama(), {.dp = 2});
  spec.recovery.state_home = job::StateHome::kHost;
  const std::vector<Share> shares = SharesOf(MustPlan(spec));
  ASSERT_FALSE(shares.empty());
  for (const Share& share : shares) {
    EXPECT_EQ(share.homes.size(), 1u);
    EXPECT_TRUE(share.host);
  }
}

TEST(SharesTest, DamagedTables_EveryElementHasHomes) {
  const job::JobSpec spec = AJob()
                                .Module("vision", ClipVision(), {.tp = 2, .dp = 3})
                                .Module("language", Llama(), {.tp = 2, .dp = 3, .pp = 2})
                                .Edge("vision", "language", {.projector = 32})
                                .Batch(24, 2);
  int64_t listed = 0;
  ForEachDamaged(spec, [&](const Plan& plan) {
    std::map<std::pair<int32_t, int32_t>, int32_t> coordinates;  // of a stage
    std::map<std::tuple<int32_t, int32_t, int32_t>, const StateHomes*> rule;
    const std::vector<StateHomes> all = HomesOfState(plan);
    for (const StateHomes& state : all) {
      ++coordinates[{state.module, state.pp}];
      rule[{state.module, state.pp, state.tp}] = &state;
      const ReplicaTable& replicas = plan.replicas(state.module);
      EXPECT_EQ(static_cast<int32_t>(state.homes.size()), replicas.present_replicas());
      for (const RankList& homes : state.homes) {
        EXPECT_EQ(std::set<Rank>(homes.begin(), homes.end()).size(), homes.size());
        for (Rank home : homes) {
          const auto place = plan.PlaceOf(home, state.module);
          ASSERT_TRUE(place.has_value()) << home.value;
          EXPECT_EQ(place->pp, state.pp);
          EXPECT_EQ(place->tp, state.tp);
        }
      }
    }
    std::map<std::pair<int32_t, int32_t>, int64_t> shared, led;  // elements, by stage
    for (const Share& share : SharesOf(plan)) {
      shared[{share.module, share.pp}] += share.elements.count;
      ++listed;
      const int32_t tp = plan.PlaceOf(share.homes.front(), share.module)->tp;
      if (!plan.replicas(share.module).EqualWidths(share.pp)) {
        EXPECT_EQ(std::set<Rank>(share.homes.begin(), share.homes.end()).size(), 2u);
        continue;
      }
      EXPECT_THAT(rule.at({share.module, share.pp, tp})->homes, ::testing::Contains(share.homes));
    }
    ForEachPlace(plan, [&](Rank, const Place& place) {
      const ReplicaTable& replicas = plan.replicas(place.module);
      const bool equal = replicas.EqualWidths(place.pp);
      EXPECT_EQ((coordinates[{place.module, place.pp}]), equal ? place.width : 0);
      if (place.dp != replicas.FirstPresent()) return;
      led[{place.module, place.pp}] += ParametersOf(plan, place).LedElements();
    });
    EXPECT_EQ(shared, led);
  });
  EXPECT_GT(listed, 0);
}

TEST(SharesTest, BeyondWhatIsListed_AreLeftOut) {
  const auto listed = [](int32_t dp) {
    return Shares(MustPlan(
        AJob()
            .Module("language", Llama({.hidden_size = 256, .mlp_size = 1024}), {.tp = 8, .dp = dp})
            .Batch(dp, 1),
        8 * dp));
  };
  ASSERT_TRUE(listed(16).has_value());
  EXPECT_LE(listed(16)->size(), kSharesMax);
  EXPECT_FALSE(listed(1024).has_value());
}

// What shares of one tensor coordinate say, beside the rule for all of them.
TEST(SharesTest, Homes_AreThoseOfTheRule) {
  for (int32_t copies : {1, 2, 3, 5}) {
    for (int32_t nodes : {1, 2, 3, 12}) {
      job::JobSpec spec = AJob().Module("language", Llama(), {.tp = 2, .dp = 6});
      spec.recovery.state_copies = copies;
      const Plan plan = *MakePlan(spec, MakeCluster(nodes, 12 / nodes), Epoch{1});
      std::set<RankList> by_rule;
      for (const StateHomes& state : HomesOfState(plan)) {
        ASSERT_EQ(state.homes.size(), 6u);
        for (size_t replica = 0; replica < 6; ++replica) {
          const RankList& homes = state.homes[replica];
          EXPECT_EQ(homes.front(), plan.DataGroups(0, 0)[static_cast<size_t>(state.tp)][replica]);
          EXPECT_EQ(homes.size(), static_cast<size_t>(copies));
          EXPECT_EQ(std::set<Rank>(homes.begin(), homes.end()).size(), homes.size());
          // Once a home shares the primary's node, no other node is left.
          const auto at_home = [&](Rank rank) {
            return plan.NodeOf(rank) == plan.NodeOf(homes.front());
          };
          EXPECT_TRUE(std::is_partitioned(homes.begin() + 1, homes.end(), std::not_fn(at_home)));
          const auto apart = std::count_if(homes.begin(), homes.end(), std::not_fn(at_home));
          EXPECT_EQ(apart, std::min(copies - 1, 6 - 6 / std::min(nodes, 6)));
          by_rule.insert(homes);
        }
      }
      EXPECT_EQ(by_rule, HomesBy(plan)[0]);
    }
  }
}

// Shares that each rank mirrors, by node.
std::map<NodeName, std::vector<int64_t>> MirrorsOf(const Plan& plan) {
  const RankList group = plan.DataGroups(0, 0)[0];
  std::map<Rank, int64_t> mirrors;
  for (const Rank rank : group) mirrors[rank] = 0;
  for (const RankList& homes : HomesOf(plan, 0, group)) {
    for (size_t i = 1; i < homes.size(); ++i) ++mirrors[homes[i]];
  }
  std::map<NodeName, std::vector<int64_t>> by_node;
  for (const auto& [rank, count] : mirrors) by_node[plan.NodeOf(rank)].push_back(count);
  return by_node;
}

// Nodes are of unequal size, and the order of replicas is whatever losses have left. Where there
// are as many nodes as homes each has a home of every share, and its own ranks alone can be near to
// even.
TEST(SharesTest, Mirrors_AreAsManyOnEachRankAsNodesAllow) {
  Prng prng(3);
  for (const int32_t copies : {2, 3}) {
    for (int32_t per_node = 1; per_node <= 4; ++per_node) {
      for (int32_t dp = 2 * per_node + 1; dp <= 12; ++dp) {
        job::JobSpec spec = AJob().Module("language", Llama(), {.dp = dp}).Batch(dp, 1);
        spec.recovery.state_copies = copies;
        const int32_t nodes = (dp + per_node - 1) / per_node;
        Layout layout = MakePlan(spec, MakeCluster(nodes, per_node), Epoch{1})->layout;
        for (int order = 0; order < 20; ++order) {
          SCOPED_TRACE(absl::StrCat(copies, " copies, ", per_node, " a node, dp ", dp, ": ",
                                    absl::StrJoin(layout.modules[0].order, " ")));
          for (const auto& [node, mirrors] : MirrorsOf(*Expand(spec, layout))) {
            const auto [least, most] = std::minmax_element(mirrors.begin(), mirrors.end());
            if (nodes == copies) {
              EXPECT_LE(*most, *least + 2);
              continue;
            }
            EXPECT_EQ(*least, copies - 1);
            EXPECT_EQ(*most, copies - 1);
          }
          std::vector<int32_t>& replicas = layout.modules[0].order;
          replicas.resize(static_cast<size_t>(dp));
          std::iota(replicas.begin(), replicas.end(), 0);
          for (size_t i = replicas.size(); i > 1; --i)
            std::swap(replicas[i - 1], replicas[prng.Below(i)]);
        }
      }
    }
  }
}

TEST(SegmentsTest, Modules_WithoutArchitecture_HaveNone) {
  EXPECT_TRUE(Segments(MustPlan(AJob().Module("language", support::NoArchitecture(2)))).empty());
}

}  // namespace
}  // namespace phalanx::plan
