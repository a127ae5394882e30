#include "core/plan/samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <vector>

#include "tests/support/specs.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using ::testing::ElementsAre;

TEST(SamplesTest, SamplesOfMicrobatch_OfUnevenBatch_MatchTheRule) {
  // 7 samples over 2 replicas: 4 and 3; two microbatches of 2,2 and 2,1.
  const Plan plan = MustPlan(AJob().Module("language", Llama(), {.dp = 2}).Batch(7, 2));
  EXPECT_EQ(plan.microbatches, 2);
  EXPECT_THAT(SamplesOfMicrobatch(plan, 0).samples, ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(SamplesOfMicrobatch(plan, 0).lane_first, ElementsAre(0, 2, 4));
  EXPECT_THAT(SamplesOfMicrobatch(plan, 1).samples, ElementsAre(2, 3, 6));
  EXPECT_THAT(SamplesOfMicrobatch(plan, 1).lane_first, ElementsAre(0, 2, 3));
}

TEST(SamplesTest, SamplesAtOnce_KeepTheFastestReplicaWithinTheMicrobatch) {
  const Plan healthy = MustPlan(AJob().Module("language", Llama(), {.dp = 3}).Batch(9, 4));
  EXPECT_EQ(SamplesAtOnce(healthy), 12);
  plan::Layout layout = healthy.layout;
  layout.modules[0].speeds = {2, 1, 0};
  const auto plan = Expand(healthy.spec, layout);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const int64_t most = SamplesAtOnce(*plan);
  EXPECT_THAT(DealMicrobatch(*plan, most).lane_first, ElementsAre(0, 4, most, most));
  EXPECT_EQ(DealMicrobatch(*plan, most + 1).lane_first[1], 5);
}

TEST(SamplesTest, Microbatches_OfAnyBatch_CoverEverySampleOnceWithinTheLimit) {
  for (int64_t global = 1; global <= 20; ++global) {
    for (int64_t micro = 1; micro <= 5; ++micro) {
      for (int32_t dp = 1; dp <= 5; ++dp) {
        const Plan plan =
            MustPlan(AJob().Module("language", Llama(), {.dp = dp}).Batch(global, micro));
        std::multiset<int64_t> seen;
        std::map<int32_t, std::pair<int64_t, int64_t>> sizes;  // smallest and largest of each lane
        for (int64_t m = 0; m < plan.microbatches; ++m) {
          const MicrobatchSamples samples = SamplesOfMicrobatch(plan, m);
          EXPECT_EQ(CountOfMicrobatch(plan, m), static_cast<int64_t>(samples.samples.size()));
          seen.insert(samples.samples.begin(), samples.samples.end());
          for (int32_t lane = 0; lane < dp; ++lane) {
            const int64_t count = LaneSamples(plan, 0, lane, samples).count;
            EXPECT_LE(count, micro);
            auto [entry, first] = sizes.try_emplace(lane, count, count);
            entry->second.first = std::min(entry->second.first, count);
            entry->second.second = std::max(entry->second.second, count);
            EXPECT_EQ(entry->second.first, count) << "larger ones first";
          }
        }
        for (const auto& [lane, range] : sizes) EXPECT_LE(range.second - range.first, 1);
        EXPECT_EQ(seen.size(), static_cast<size_t>(global));
        EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), static_cast<size_t>(global));
      }
    }
  }
}

// Against the sum over all microbatches, done the slow way.
TEST(SamplesTest, LaneSamplesOfStep_OfAnyLayout_IsTheSumOverMicrobatches) {
  for (int32_t vision = 1; vision <= 4; ++vision) {
    for (int32_t language = 1; language <= 3; ++language) {
      for (int64_t global = 1; global <= 30; ++global) {
        const Plan plan = MustPlan(AJob()
                                       .Module("vision", ClipVision(), {.dp = vision})
                                       .Module("language", Llama(), {.dp = language})
                                       .Edge("vision", "language")
                                       .Batch(global, 2));
        for (int32_t module : {0, 1}) {
          int64_t total = 0;
          for (int32_t lane = 0; lane < plan.parallel(module).dp; ++lane) {
            int64_t sum = 0;
            for (int64_t m = 0; m < plan.microbatches; ++m) {
              sum += LaneSamples(plan, module, lane, SamplesOfMicrobatch(plan, m)).count;
            }
            EXPECT_EQ(LaneSamplesOfStep(plan, module)[static_cast<size_t>(lane)], sum);
            total += sum;
          }
          EXPECT_EQ(total, global);
        }
      }
    }
  }
}

TEST(SamplesTest, SampleAt_OfManySizes_IsAPermutationOfEachPass) {
  std::vector<int64_t> sizes(300);
  std::iota(sizes.begin(), sizes.end(), 1);
  for (int64_t size : {1000, 1023, 1024, 1025, 4096, 4097, 65536, 100003}) sizes.push_back(size);
  for (int64_t size : sizes) {
    for (int64_t pass = 0; pass < 2; ++pass) {
      std::vector<bool> seen(static_cast<size_t>(size), false);
      for (int64_t i = 0; i < size; ++i) {
        const int64_t sample = SampleAt(17, size, pass * size + i);
        ASSERT_TRUE(sample >= 0 && sample < size);
        ASSERT_FALSE(seen[static_cast<size_t>(sample)]) << size;
        seen[static_cast<size_t>(sample)] = true;
      }
    }
  }
}

TEST(SamplesTest, SampleAt_OfOtherSeedOrPass_IsAnotherOrder) {
  const auto order = [](uint64_t seed, int64_t pass) {
    std::vector<int64_t> samples;
    for (int64_t i = 0; i < 100; ++i) samples.push_back(SampleAt(seed, 100, pass * 100 + i));
    return samples;
  };
  EXPECT_NE(order(1, 0), order(2, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_FALSE(std::is_sorted(order(1, 0).begin(), order(1, 0).end()));
}

// The mean distance between neighbours of a random permutation of n is (n + 1) / 3.
TEST(SamplesTest, SampleAt_OfLargeSet_LooksShuffled) {
  constexpr int64_t kSize = 50'000;
  double distance = 0;
  for (int64_t i = 0; i + 1 < kSize; ++i) {
    distance += static_cast<double>(std::abs(SampleAt(3, kSize, i) - SampleAt(3, kSize, i + 1)));
  }
  EXPECT_NEAR(distance / kSize, kSize / 3.0, kSize / 3.0 * 0.02);
}

TEST(SamplesTest, LinkMessages_WithinAModule_JoinEqualTensorCoordinates) {
  const Plan plan =
      MustPlan(AJob().Module("language", Llama(), {.tp = 2, .dp = 2, .pp = 2}).Batch(3, 2));
  const MicrobatchSamples samples = SamplesOfMicrobatch(plan, 0);
  std::vector<std::tuple<int, int, int64_t, int64_t>> messages;
  for (const LinkMessage& m : LinkMessages(plan, 0, samples)) {
    EXPECT_EQ(m.from_slices, 1);
    EXPECT_EQ(m.to_slices, 1);
    messages.emplace_back(m.from.value, m.to.value, m.first, m.count);
  }
  EXPECT_THAT(messages, ElementsAre(std::tuple{0, 4, 0, 2}, std::tuple{1, 5, 0, 2},
                                    std::tuple{2, 6, 2, 1}, std::tuple{3, 7, 2, 1}));
}

TEST(SamplesTest, LinkMessages_OfLanesWithoutSamples_AreNotSent) {
  const Plan plan = MustPlan(AJob().Module("language", Llama(), {.dp = 4, .pp = 2}).Batch(2, 1));
  EXPECT_EQ(LinkMessages(plan, 0, SamplesOfMicrobatch(plan, 0)).size(), 2u);
}

struct Lanes {
  support::Layout vision, language;
};

// Each destination rank, after its tensor group has gathered, has every row of its lane exactly
// once; each sent row is one that its source has.
TEST(SamplesTest, LinkMessages_OfAnyLaneRatio_DeliverEveryRowOnce) {
  constexpr int64_t kRowsPerSample = 11;
  for (const Lanes& lanes :
       {Lanes{{.dp = 1}, {.dp = 1}}, Lanes{{.dp = 4}, {.tp = 4}}, Lanes{{.tp = 4}, {.dp = 4}},
        Lanes{{.dp = 3}, {.dp = 2}}, Lanes{{.tp = 2, .dp = 3}, {.tp = 3, .dp = 2}},
        Lanes{{.tp = 2, .dp = 2}, {.tp = 4}}, Lanes{{.tp = 4}, {.tp = 2, .dp = 2, .pp = 2}},
        Lanes{{.dp = 2, .pp = 2}, {.dp = 5}}}) {
    for (int64_t global : {1, 2, 5, 12, 13}) {
      const Plan plan = MustPlan(AJob()
                                     .Module("vision", ClipVision(), lanes.vision)
                                     .Module("language", Llama(), lanes.language)
                                     .Edge("vision", "language")
                                     .Batch(global, 2));
      const auto link = static_cast<int32_t>(plan.links.size()) - 1;
      for (int64_t m = 0; m < plan.microbatches; ++m) {
        const MicrobatchSamples samples = SamplesOfMicrobatch(plan, m);
        std::map<Rank, std::multiset<int64_t>> received;
        for (const LinkMessage& message : LinkMessages(plan, link, samples)) {
          EXPECT_GT(message.count, 0);
          const auto from = plan.PlaceOf(message.from, 0);
          const auto to = plan.PlaceOf(message.to, 1);
          ASSERT_TRUE(from.has_value() && to.has_value());
          EXPECT_EQ(from->pp, plan.parallel(0).pp - 1);
          EXPECT_EQ(to->pp, 0);
          const UnitRange has = LaneSamples(plan, 0, from->dp, samples);
          EXPECT_TRUE(message.first >= has.first && message.first + message.count <= has.end());
          const UnitRange rows = RowsOfMessage(message, message.count * kRowsPerSample);
          for (int64_t row = rows.first; row < rows.end(); ++row) {
            for (Rank member : plan.TensorGroup(1, to->dp, 0)) {
              received[member].insert(message.first * kRowsPerSample + row);
            }
          }
        }
        for (int32_t lane = 0; lane < plan.parallel(1).dp; ++lane) {
          const UnitRange needs = LaneSamples(plan, 1, lane, samples);
          std::multiset<int64_t> expected;
          for (int64_t row = needs.first * kRowsPerSample; row < needs.end() * kRowsPerSample;
               ++row) {
            expected.insert(row);
          }
          for (Rank rank : plan.TensorGroup(1, lane, 0)) EXPECT_EQ(received[rank], expected);
        }
      }
    }
  }
}

// Every end of every message is in the communicator that carries it.
TEST(SamplesTest, LinkMessages_StayWithinTheForwardCommunicator) {
  const Plan plan = MustPlan(AJob()
                                 .Module("vision", ClipVision(), {.tp = 4, .dp = 2})
                                 .Module("language", Llama(), {.tp = 2, .dp = 3, .pp = 2})
                                 .Edge("vision", "language")
                                 .Batch(24, 4));
  const std::vector<CommunicatorSpec> communicators = Communicators(plan);
  std::set<Rank> used;
  for (size_t link = 0; link < plan.links.size(); ++link) {
    for (const LinkMessage& m :
         LinkMessages(plan, static_cast<int32_t>(link), SamplesOfMicrobatch(plan, 0))) {
      used.insert(m.from);
      used.insert(m.to);
    }
  }
  EXPECT_EQ(communicators[1].ranks, RankList(used.begin(), used.end()));
  EXPECT_EQ(used.size(), 8u + 12u);
}

}  // namespace
}  // namespace phalanx::plan
