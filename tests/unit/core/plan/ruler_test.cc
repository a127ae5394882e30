#include "core/plan/ruler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/specs.h"
#include "tests/unit/core/plan/damaged.h"
#include "tests/unit/core/plan/must_plan.h"
#include "tests/unit/core/plan/narrowed.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using support::Whisper;
using ::testing::ElementsAre;

constexpr UnitFamily kAttention{UnitKind::kAttention}, kKv{UnitKind::kKv}, kMlp{UnitKind::kMlp},
    kReplicated{UnitKind::kReplicated};

// The middle stage of Narrowed(): one layer.
class NarrowedRulersTest : public ::testing::Test {
 protected:
  Place At(int32_t dp, int32_t tp) const {
    return {.tp = tp, .dp = dp, .pp = 1, .width = plan_.Width(0, dp, 1)};
  }
  BucketRulers RulersAt(const Place& place) const {
    const std::vector<BucketRulers> buckets = RulersOf(plan_, place, ParametersOf(plan_, place));
    EXPECT_EQ(buckets.size(), 1u);
    return buckets.at(0);
  }
  static std::vector<UnitRange> Runs(const BucketRulers& rulers, const UnitFamily& family,
                                     UnitRange elements) {
    std::vector<UnitRange> runs;
    rulers.AppendRuns(family, elements, &runs);
    return runs;
  }

  const Plan plan_ = Narrowed();
};

TEST_F(NarrowedRulersTest, Rulers_AreAsLongAsTheirUnits) {
  EXPECT_THAT(RulersAt(At(1, 1)).rulers,
              ElementsAre(FamilyRuler{kAttention, 6, 128}, FamilyRuler{kKv, 2, 128},
                          FamilyRuler{kMlp, 5, 192}, FamilyRuler{kReplicated, 1, 32}));
}

TEST_F(NarrowedRulersTest, LedUnits_OfASharedKvHead_AreItsFirstHolders) {
  const auto led = [this](const UnitFamily& family) {
    std::vector<UnitRange> units;
    for (int32_t dp = 0; dp < 2; ++dp) {
      for (int32_t tp = 0; tp < plan_.Width(0, dp, 1); ++tp)
        units.push_back(LedUnits(plan_, At(dp, tp), family));
    }
    return units;
  };
  EXPECT_THAT(led(kAttention), ElementsAre(UnitRange{0, 2}, UnitRange{2, 2}, UnitRange{4, 2},
                                           UnitRange{0, 3}, UnitRange{3, 3}));
  EXPECT_THAT(led(kKv), ElementsAre(UnitRange{0, 1}, UnitRange{1, 1}, UnitRange{2, 0},
                                    UnitRange{0, 1}, UnitRange{1, 1}));
  EXPECT_THAT(led(kMlp), ElementsAre(UnitRange{0, 2}, UnitRange{2, 2}, UnitRange{4, 1},
                                     UnitRange{0, 3}, UnitRange{3, 2}));
  EXPECT_THAT(led(kReplicated), ElementsAre(UnitRange{0, 1}, UnitRange{0, 0}, UnitRange{0, 0},
                                            UnitRange{0, 1}, UnitRange{0, 0}));
}

// Rank 1 of the wide replica: down at 0, gate_up at 128, o at 384, qkv at 512 (2 query heads, then
// keys of both KV heads, then values), norms at 896 and 960.
TEST_F(NarrowedRulersTest, Runs_OfUnits_AreTheirSlabsMatrixAfterMatrix) {
  const BucketRulers rulers = RulersAt(At(0, 1));
  EXPECT_THAT(Runs(rulers, kAttention, {256, 128}),
              ElementsAre(UnitRange{384, 64}, UnitRange{512, 64}));
  EXPECT_THAT(Runs(rulers, kKv, {128, 128}), ElementsAre(UnitRange{704, 64}, UnitRange{832, 64}));
  EXPECT_THAT(Runs(rulers, kMlp, {384, 384}), ElementsAre(UnitRange{0, 64}, UnitRange{128, 128},
                                                          UnitRange{64, 64}, UnitRange{256, 128}));
  EXPECT_THAT(Runs(RulersAt(At(0, 0)), kReplicated, {0, 32}),
              ElementsAre(UnitRange{768, 16}, UnitRange{832, 16}));
}

TEST_F(NarrowedRulersTest, Runs_OfPartsOfUnits_AreCutInside) {
  const BucketRulers rulers = RulersAt(At(0, 1));
  EXPECT_THAT(Runs(rulers, kMlp, {400, 100}), ElementsAre(UnitRange{16, 48}, UnitRange{128, 52}));
  EXPECT_THAT(Runs(rulers, kAttention, {300, 1}), ElementsAre(UnitRange{428, 1}));
  EXPECT_THAT(Runs(rulers, kAttention, {300, 0}), ElementsAre());
}

TEST_F(NarrowedRulersTest, Runs_OfWhatFollows_AreAddedToTheLastOne) {
  const BucketRulers rulers = RulersAt(At(0, 1));
  std::vector<UnitRange> runs;
  rulers.AppendRuns(kMlp, {400, 10}, &runs);
  rulers.AppendRuns(kMlp, {410, 20}, &runs);
  EXPECT_THAT(runs, ElementsAre(UnitRange{16, 30}));
}

// Which element of which logical tensor stands at each place of a rank's flat buffer; -1: none.
std::vector<int64_t> LogicalElements(const StageParameters& parameters,
                                     std::map<std::string, int64_t>* firsts) {
  std::vector<int64_t> elements(static_cast<size_t>(parameters.elements), -1);
  for (const LocalMatrix& matrix : parameters.matrices) {
    for (const Piece& piece : matrix.pieces) {
      const LogicalTensor& tensor = parameters.logical[static_cast<size_t>(piece.logical)];
      const int64_t next = firsts->empty() ? 0 : int64_t{1} << 32;
      const int64_t first =
          firsts->try_emplace(tensor.name, next * static_cast<int64_t>(firsts->size()))
              .first->second;
      for (int64_t row = 0; row < piece.rows; ++row) {
        const int64_t logical_row = piece.logical_row + row;
        for (int64_t col = 0; col < matrix.cols; ++col) {
          elements[static_cast<size_t>(matrix.offset + (piece.local_row + row) * matrix.cols +
                                       col)] =
              first + (matrix.transposed ? col * tensor.cols + logical_row
                                         : logical_row * tensor.cols + col);
        }
      }
    }
  }
  return elements;
}

// What is the same on every rank of one part.
struct PartRulers {
  std::vector<std::vector<FamilyRuler>> rulers;                                // by bucket
  std::map<std::string, int64_t> firsts;                                       // LogicalElements
  std::map<std::tuple<size_t, UnitFamily, int64_t>, int64_t> logical_element;  // on a ruler
};

// That one rank's rulers lie as the other ranks', and that what it leads is on them once.
void ExpectRulers(const Plan& plan, const Place& place, int32_t chunk, PartRulers* part) {
  const StageParameters parameters = ParametersOf(plan, place, chunk);
  const std::vector<int64_t> logical = LogicalElements(parameters, &part->firsts);
  const std::vector<BucketRulers> buckets = RulersOf(plan, place, parameters);
  if (part->rulers.empty()) {
    for (const BucketRulers& bucket : buckets) part->rulers.push_back(bucket.rulers);
  }
  ASSERT_EQ(buckets.size(), part->rulers.size());
  std::vector<bool> seen(logical.size());
  int64_t led = 0;
  for (size_t b = 0; b < buckets.size(); ++b) {
    EXPECT_EQ(buckets[b].rulers, part->rulers[b]);
    const Bucket& bounds = parameters.buckets[b];
    for (const FamilyRuler& ruler : buckets[b].rulers) {
      const UnitRange units = LedUnits(plan, place, ruler.family);
      int64_t at = units.first * ruler.unit_elements;
      std::vector<UnitRange> runs;
      buckets[b].AppendRuns(ruler.family, {at, units.count * ruler.unit_elements}, &runs);
      for (const UnitRange& run : runs) {
        ASSERT_TRUE(run.first >= bounds.offset && run.end() <= bounds.offset + bounds.elements);
        led += run.count;
        for (int64_t i = run.first; i < run.end(); ++i, ++at) {
          ASSERT_FALSE(seen[static_cast<size_t>(i)]) << "on two rulers";
          seen[static_cast<size_t>(i)] = true;
          const int64_t element = logical[static_cast<size_t>(i)];
          const auto entry =
              part->logical_element.try_emplace({b, ruler.family, at}, element).first;
          ASSERT_EQ(entry->second, element) << "another replica has something else here";
        }
      }
      EXPECT_EQ(at, units.end() * ruler.unit_elements);
    }
  }
  EXPECT_EQ(led, parameters.LedElements());
}

// That the tensor ranks of a slot lead every unit of each family once.
void ExpectPartition(const Plan& plan, Place place, const PartRulers& part) {
  for (const std::vector<FamilyRuler>& bucket : part.rulers) {
    for (const FamilyRuler& ruler : bucket) {
      int64_t next = 0;
      for (place.tp = 0; place.tp < place.width; ++place.tp) {
        const UnitRange led = LedUnits(plan, place, ruler.family);
        if (led.count == 0) continue;
        EXPECT_EQ(led.first, next);
        next = led.end();
      }
      EXPECT_EQ(next, ruler.units);
    }
  }
}

void ExpectSoundRulers(const job::JobSpec& spec) {
  ForEachDamaged(spec, [](const Plan& plan) {
    std::map<PartId, PartRulers> parts;
    ForEachPlace(plan, [&](Rank, const Place& place) {
      if (place.cp > 0) return;
      const int32_t chunks = plan.modules[static_cast<size_t>(place.module)].chunks();
      for (int32_t chunk = 0; chunk < chunks; ++chunk) {
        PartRulers& part = parts[{place.module, place.pp, chunk}];
        ExpectRulers(plan, place, chunk, &part);
        if (testing::Test::HasFatalFailure()) return;
        if (place.tp == 0) ExpectPartition(plan, place, part);
      }
    });
    for (const auto& [id, part] : parts) {
      int64_t elements = 0;
      for (const std::vector<FamilyRuler>& bucket : part.rulers) {
        for (const FamilyRuler& ruler : bucket) elements += ruler.elements();
      }
      EXPECT_EQ(static_cast<int64_t>(part.logical_element.size()), elements)
          << "some led by nobody";
    }
  });
}

TEST(RulerTest, DamagedDecoders_HaveTheirUnitsOnRulersThatAllWidthsShare) {
  // 2 KV heads for 6 query heads; neither 30 MLP columns nor 45 words fill their last block.
  ExpectSoundRulers(AJob()
                        .Module("language",
                                Llama({.hidden_size = 12,
                                       .layers = 4,
                                       .heads = 6,
                                       .mlp_size = 30,
                                       .block = 4,
                                       .vocabulary = 45,
                                       .tied_head = true}),
                                {.tp = 4, .dp = 3, .pp = 2})
                        .Schedule(job::ScheduleName::kInterleaved, 2)
                        .Batch(24, 2));
}

TEST(RulerTest, DamagedGraphs_HaveTheirUnitsOnRulersThatAllWidthsShare) {
  ExpectSoundRulers(
      AJob()
          .Module("vision", ClipVision({.hidden_size = 16, .mlp_size = 30}),
                  {.tp = 3, .dp = 2, .pp = 2, .offset = 0})
          .Module("audio", Whisper({.hidden_size = 16, .layers = 1, .mlp_size = 30}),
                  {.tp = 3, .dp = 2, .frozen = true})
          .Module("language", Llama({.hidden_size = 16, .layers = 1, .heads = 4, .vocabulary = 45}),
                  {.tp = 4, .dp = 3, .offset = 0})
          .Edge("vision", "language", {.projector = 30})
          .Edge("audio", "language", {.projector = 24})
          .Batch(24, 2));
}

}  // namespace
}  // namespace phalanx::plan
