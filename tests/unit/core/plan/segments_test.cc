#include "core/plan/segments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tests/support/specs.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using ::testing::ElementsAre;

std::vector<Segment> Of(const std::vector<Segment>& segments, UnitFamily family, int32_t pp) {
  std::vector<Segment> chosen;
  for (const Segment& segment : segments) {
    if (segment.family == family && segment.pp == pp) chosen.push_back(segment);
  }
  return chosen;
}

TEST(SegmentsTest, Attention_OfEqualWidths_IsOneSegmentATensorCoordinate) {
  const Plan plan = MustPlan(AJob().Module("language", Llama(), {.tp = 2, .dp = 2}));
  const std::vector<Segment> attention = Of(Segments(plan), UnitFamily::kAttention, 0);
  ASSERT_EQ(attention.size(), 2u);
  EXPECT_EQ(attention[1].units, (UnitRange{4, 4}));
  EXPECT_THAT(attention[1].holders, ElementsAre(ElementsAre(Rank{1}), ElementsAre(Rank{3})));
  EXPECT_THAT(attention[0].homes, ElementsAre(Rank{0}, Rank{2}));
  EXPECT_THAT(attention[1].homes, ElementsAre(Rank{3}, Rank{1})) << "replicas take turns";
}

TEST(SegmentsTest, Kv_OfSharedHeads_HasSeveralHoldersAReplica) {
  const Plan plan = MustPlan(AJob().Module("language", Llama(), {.tp = 4}));  // 2 KV heads
  const std::vector<Segment> kv = Of(Segments(plan), UnitFamily::kKv, 0);
  ASSERT_EQ(kv.size(), 2u);
  EXPECT_THAT(kv[1].holders, ElementsAre(ElementsAre(Rank{2}, Rank{3})));
  EXPECT_THAT(kv[1].homes, ElementsAre(Rank{2})) << "one replica has no mirror";
}

TEST(SegmentsTest, Vocabulary_LivesOnTheEndsOfTheLanguageModule) {
  const Plan plan = MustPlan(AJob()
                                 .Module("vision", ClipVision())
                                 .Module("language", Llama(), {.pp = 3})
                                 .Edge("vision", "language", {.projector = 32}));
  const std::vector<Segment> segments = Segments(plan);
  std::set<std::pair<int32_t, int32_t>> places;
  for (const Segment& segment : segments) {
    if (segment.family == UnitFamily::kVocabulary) places.insert({segment.module, segment.pp});
  }
  EXPECT_THAT(places, ElementsAre(std::pair{1, 0}, std::pair{1, 2}));
}

TEST(SegmentsTest, Units_OfEveryWidth_AreInOneSegmentWithTheirHolders) {
  for (int32_t tp = 1; tp <= 8; ++tp) {
    for (int32_t dp = 1; dp <= 3; ++dp) {
      const Plan plan = MustPlan(AJob().Module("language", Llama(), {.tp = tp, .dp = dp}));
      std::map<UnitFamily, int64_t> next;
      for (const Segment& segment : Segments(plan)) {
        EXPECT_EQ(segment.units.first, next[segment.family]) << "no gap, no overlap";
        next[segment.family] = segment.units.end();
        ASSERT_EQ(segment.holders.size(), static_cast<size_t>(dp));
        for (const RankList& holders : segment.holders) EXPECT_FALSE(holders.empty());
        EXPECT_EQ(segment.homes.size(), dp > 1 ? 2u : 1u);
      }
      EXPECT_EQ(next[UnitFamily::kAttention], 8);
      EXPECT_EQ(next[UnitFamily::kKv], 2);
      EXPECT_EQ(next[UnitFamily::kMlp], 8);
      EXPECT_EQ(next[UnitFamily::kVocabulary], 12);
      EXPECT_EQ(next[UnitFamily::kReplicated], 1);
    }
  }
}

TEST(SegmentsTest, Modules_WithoutArchitecture_HaveNone) {
  EXPECT_TRUE(Segments(MustPlan(AJob().Module("language", support::NoArchitecture(2)))).empty());
}

}  // namespace
}  // namespace phalanx::plan
