#include "core/plan/shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "core/plan/parameters.h"
#include "core/plan/segments.h"
#include "tests/support/specs.h"
#include "tests/unit/core/plan/damaged.h"
#include "tests/unit/core/plan/must_plan.h"
#include "tests/unit/core/plan/narrowed.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using ::testing::ElementsAre;

// Of each replica's stage, in order (cp inside), the place of its first rank.
std::vector<Place> ReplicasOf(const Plan& plan, const PartId& part) {
  std::vector<Place> places;
  const ReplicaTable& table = plan.replicas(part.module);
  for (const int32_t dp : table.order()) {
    for (int32_t cp = 0; cp < table.cp(); ++cp) {
      places.push_back({.module = part.module,
                        .cp = cp,
                        .dp = dp,
                        .pp = part.stage,
                        .width = table.Width(dp, part.stage)});
    }
  }
  return places;
}

// The place in a replica that leads all `elements` of a ruler; width 0: nobody does.
Place LeaderOf(const Plan& plan, Place replica, const FamilyRuler& ruler, UnitRange elements) {
  for (; replica.tp < replica.width; ++replica.tp) {
    const UnitRange led = LedUnits(plan, replica, ruler.family);
    if (led.first * ruler.unit_elements <= elements.first &&
        elements.end() <= led.end() * ruler.unit_elements) {
      return replica;
    }
  }
  return {.width = 0};
}

// The shares of one part, checked, and what each rank is home of.
class CutPart {
 public:
  CutPart(const Plan& plan, const PartId& part)
      : plan_(plan), replicas_(ReplicasOf(plan, part)), shares_(CutShares(plan, part)) {
    const StageParameters parameters = ParametersOf(plan, replicas_[0], part.chunk);
    const std::vector<BucketRulers> buckets = RulersOf(plan, replicas_[0], parameters);
    EXPECT_EQ(shares_.size(), buckets.size());
    for (size_t b = 0; b < buckets.size(); ++b) {
      std::map<UnitFamily, int64_t> next;
      for (const RulerShare& share : shares_[b]) {
        EXPECT_EQ(share.elements.first, next[share.family]) << "no gap, no overlap";
        EXPECT_GT(share.elements.count, 0);
        next[share.family] = share.elements.end();
        const FamilyRuler& ruler = *buckets[b].Find(share.family);
        const std::vector<int64_t*> loads = LoadsOf(ruler, share.elements);
        *loads[static_cast<size_t>(share.replica)] += share.elements.count;
        could_be_home_.push_back({share.replica, loads});
      }
      for (const FamilyRuler& ruler : buckets[b].rulers) {
        EXPECT_EQ(next[ruler.family], ruler.elements());
      }
    }
  }

  const std::vector<std::vector<RulerShare>>& shares() const { return shares_; }
  int64_t Load(int32_t replica, int32_t tp) const { return loads_.at({replica, tp}); }

  // The largest load over the mean of all ranks.
  double Unevenness() const {
    int64_t most = 0, sum = 0, ranks = 0;
    for (const Place& replica : replicas_) ranks += replica.width;
    for (const auto& [rank, load] : loads_) {
      most = std::max(most, load);
      sum += load;
    }
    return static_cast<double>(most * ranks) / static_cast<double>(sum);
  }

  // No share could be moved to a rank that has less: then, loads being sums of intervals that each
  // some ranks can have, no other cut has a lower highest load.
  void ExpectSettled(int64_t tolerance) const {
    for (const auto& [replica, loads] : could_be_home_) {
      for (const int64_t* other : loads)
        EXPECT_LE(*loads[static_cast<size_t>(replica)], *other + tolerance);
    }
  }

 private:
  // Of each replica the load of the rank that leads the elements.
  std::vector<int64_t*> LoadsOf(const FamilyRuler& ruler, UnitRange elements) {
    std::vector<int64_t*> loads;
    for (size_t i = 0; i < replicas_.size(); ++i) {
      const Place leader = LeaderOf(plan_, replicas_[i], ruler, elements);
      EXPECT_GT(leader.width, 0) << "a share of units that one rank does not lead alone";
      loads.push_back(&loads_[{static_cast<int32_t>(i), leader.tp}]);
    }
    return loads;
  }

  const Plan& plan_;
  const std::vector<Place> replicas_;
  const std::vector<std::vector<RulerShare>> shares_;
  std::map<std::pair<int32_t, int32_t>, int64_t> loads_;                  // of (replica, tp)
  std::vector<std::pair<int32_t, std::vector<int64_t*>>> could_be_home_;  // home, of each replica
};

TEST(CutSharesTest, Narrowed_IsAsEvenAsQuantaLetItBe) {
  const Plan plan = Narrowed();
  const CutPart part(plan, {0, 1, 0});
  constexpr UnitFamily kAttention{UnitKind::kAttention}, kKv{UnitKind::kKv}, kMlp{UnitKind::kMlp},
      kReplicated{UnitKind::kReplicated};
  ASSERT_EQ(part.shares().size(), 1u);
  EXPECT_THAT(
      part.shares()[0],
      ElementsAre(RulerShare{kAttention, {0, 256}, 1}, RulerShare{kAttention, {256, 128}, 1},
                  RulerShare{kAttention, {384, 128}, 1}, RulerShare{kAttention, {512, 128}, 0},
                  RulerShare{kAttention, {640, 128}, 1}, RulerShare{kKv, {0, 128}, 0},
                  RulerShare{kKv, {128, 128}, 1}, RulerShare{kMlp, {0, 384}, 0},
                  RulerShare{kMlp, {384, 192}, 0}, RulerShare{kMlp, {576, 192}, 0},
                  RulerShare{kMlp, {768, 192}, 0}, RulerShare{kReplicated, {0, 32}, 1}));
  // 18 quanta, some of them short, on five ranks: three or four each.
  EXPECT_EQ(part.Load(0, 0), 512);
  EXPECT_EQ(part.Load(0, 1), 384);
  EXPECT_EQ(part.Load(0, 2), 320);
  EXPECT_EQ(part.Load(1, 0), 416);
  EXPECT_EQ(part.Load(1, 1), 384);
}

// One layer of an 8B decoder in the middle of three.
job::JobSpec LayerOf8B(int32_t tp, int32_t dp, int32_t kv_heads = 8) {
  return AJob()
      .Module("language",
              Llama({.hidden_size = 4096,
                     .layers = 3,
                     .heads = 32,
                     .kv_heads = kv_heads,
                     .mlp_size = 14336,
                     .block = 128,
                     .vocabulary = 1024}),
              {.tp = tp, .dp = dp, .pp = 3})
      .Batch(dp, 1);
}

TEST(CutSharesTest, WidthsOf8B_AreCutAlmostEvenly) {
  const std::vector<std::pair<std::vector<int32_t>, double>> cases = {
      {{8, 7, 6, 8}, 1.001}, {{8, 7}, 1.005}, {{4, 3}, 1.005}, {{4, 3, 1}, 1.001}};
  for (const auto& [widths, most] : cases) {
    SCOPED_TRACE(testing::PrintToString(widths));
    const Plan plan =
        WithWidths(LayerOf8B(widths[0], static_cast<int32_t>(widths.size())), 1, widths);
    EXPECT_LE(CutPart(plan, {0, 1, 0}).Unevenness(), most);
  }
}

TEST(CutSharesTest, Widths8768_Have19SegmentsOfTheMlp) {
  const Plan plan = WithWidths(LayerOf8B(8, 4), 1, {8, 7, 6, 8});
  const std::vector<Segment> segments = Segments(plan);
  EXPECT_EQ(std::count_if(segments.begin(), segments.end(),
                          [](const Segment& segment) {
                            return segment.pp == 1 && segment.family.kind == UnitKind::kMlp;
                          }),
            19);
}

TEST(CutSharesTest, EqualWidths_GiveEqualLoads) {
  const Plan plan = MustPlan(LayerOf8B(2, 3));
  EXPECT_LE(CutPart(plan, {0, 1, 0}).Unevenness(), 1.0001);
}

TEST(CutSharesTest, DamagedTables_NoShareCouldMoveToARankWithLess) {
  const job::JobSpec spec =
      AJob()
          .Module("vision",
                  ClipVision({.hidden_size = 256, .heads = 8, .mlp_size = 1000, .block = 64}),
                  {.tp = 3, .dp = 4, .pp = 2, .offset = 0})
          .Module("language",
                  Llama({.hidden_size = 512,
                         .heads = 16,
                         .kv_heads = 4,
                         .mlp_size = 2048,
                         .block = 64,
                         .vocabulary = 5000,
                         .tied_head = true}),
                  {.tp = 4, .dp = 3, .pp = 2, .offset = 0})
          .Edge("vision", "language", {.projector = 700})
          .Batch(24, 2);
  int64_t uneven = 0;
  ForEachDamaged(spec, [&](const Plan& plan) {
    for (const ModulePlan& module : plan.modules) {
      for (int32_t pp = 0; pp < module.pp(); ++pp) {
        if (module.replicas.EqualWidths(pp)) continue;
        ++uneven;
        CutPart(plan, {module.index, pp, 0}).ExpectSettled(16 * kShareQuantum);
      }
    }
  });
  EXPECT_GT(uneven, 200);
}

}  // namespace
}  // namespace phalanx::plan
