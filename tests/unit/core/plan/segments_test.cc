#include "core/plan/segments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "core/plan/parameters.h"
#include "tests/support/specs.h"
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
    if (segment.kind == kind && segment.pp == pp) chosen.push_back(segment);
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
    if (segment.kind == UnitKind::kVocabulary) places.insert({segment.module, segment.pp});
  }
  EXPECT_THAT(places, ElementsAre(std::pair{1, 0}, std::pair{1, 2}));
}

TEST(SegmentsTest, Units_OfEveryWidth_AreInOneSegmentWithTheirHolders) {
  for (int32_t tp = 1; tp <= 8; ++tp) {
    for (int32_t dp = 1; dp <= 3; ++dp) {
      const Plan plan = MustPlan(AJob().Module("language", Llama(), {.tp = tp, .dp = dp}));
      std::map<UnitKind, int64_t> next;
      for (const Segment& segment : Segments(plan)) {
        EXPECT_EQ(segment.units.first, next[segment.kind]) << "no gap, no overlap";
        next[segment.kind] = segment.units.end();
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
    if (segment.kind == UnitKind::kVocabulary) stages.insert(segment.pp);
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
    if (segment.edge == 0) projectors.push_back(segment);
  }
  ASSERT_EQ(projectors.size(), 2u);  // 3 blocks of 8 over 2 ranks
  EXPECT_EQ(projectors[0].pp, 1);
  EXPECT_EQ(projectors[0].units, (UnitRange{0, 2}));
  EXPECT_EQ(projectors[1].units, (UnitRange{2, 1}));
}

// Homes of shares, by module.
std::map<int32_t, std::set<RankList>> HomesBy(const Plan& plan) {
  std::map<int32_t, std::set<RankList>> homes;
  for (const Share& share : Shares(plan)) homes[share.module].insert(share.homes);
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
      for (const Share& share : Shares(plan)) {
        int64_t& first = next[{share.segment, share.chunk, share.bucket}];
        EXPECT_EQ(share.elements.first, first) << "no gap, no overlap";
        first = share.elements.end();
        elements += share.elements.count;
      }
      int64_t led = 0, padding = 0;
      for (int32_t rank = 0; rank < plan.world; ++rank) {
        for (const Place& place : plan.PlacesOf(Rank{rank})) {
          if (place.dp != 0) continue;
          const StageParameters parameters = ParametersOf(plan, place);
          led += parameters.LedElements();
          for (const LocalMatrix& matrix : parameters.matrices) {
            int64_t covered = 0;
            for (const Piece& piece : matrix.pieces) covered += piece.rows * matrix.cols;
            padding += matrix.rows * matrix.cols - covered;
          }
        }
      }
      EXPECT_EQ(elements, led - padding);
    }
  }
}

TEST(SharesTest, Mirrors_AreInOtherReplicasAndOnOtherNodesWhereThereAreSome) {
  job::JobSpec spec = AJob().Module("language", Llama(), {.dp = 4});
  spec.recovery.state_copies = 2;
  // Ranks 0 and 1 on one node, 2 and 3 on another.
  const Plan plan = *MakePlan(spec, MakeCluster(2, 2), Epoch{1});
  EXPECT_THAT(HomesBy(plan)[0],
              ElementsAre(RankList{Rank{0}, Rank{2}}, RankList{Rank{1}, Rank{2}},
                          RankList{Rank{2}, Rank{0}}, RankList{Rank{3}, Rank{0}}));
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
  const std::vector<Share> shares = Shares(MustPlan(AJob().Module("language", Llama())));
  ASSERT_FALSE(shares.empty());
  for (const Share& share : shares) {
    EXPECT_THAT(share.homes, ElementsAre(Rank{0}));
    EXPECT_TRUE(share.host);
  }
}

TEST(SharesTest, HostMemoryWhereItIsAskedFor_TakesThePlaceOfMirrors) {
  job::JobSpec spec = AJob().Module("language", Llama(), {.dp = 2});
  spec.recovery.state_home = job::StateHome::kHost;
  const std::vector<Share> shares = Shares(MustPlan(spec));
  ASSERT_FALSE(shares.empty());
  for (const Share& share : shares) {
    EXPECT_EQ(share.homes.size(), 1u);
    EXPECT_TRUE(share.host);
  }
}

TEST(SegmentsTest, Modules_WithoutArchitecture_HaveNone) {
  EXPECT_TRUE(Segments(MustPlan(AJob().Module("language", support::NoArchitecture(2)))).empty());
}

}  // namespace
}  // namespace phalanx::plan
