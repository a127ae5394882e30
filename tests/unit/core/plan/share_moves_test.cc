// How much optimizer state moves when stages are narrowed: little more than has to.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/prng.h"
#include "core/plan/loss.h"
#include "core/plan/moves.h"
#include "core/plan/ruler.h"
#include "core/plan/shares.h"
#include "core/plan/state_table.h"
#include "tests/support/specs.h"
#include "tests/unit/core/plan/after.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::Llama;
using support::LlamaShape;

constexpr LlamaShape kTiny{.hidden_size = 32};
constexpr LlamaShape kSmall{.hidden_size = 512,
                            .layers = 4,
                            .heads = 16,
                            .kv_heads = 4,
                            .mlp_size = 2048,
                            .block = 64,
                            .vocabulary = 4096};

Plan Healthy(const LlamaShape& shape, const support::Layout& layout, int32_t per_node,
             int32_t state_copies = 2) {
  AJob job;
  job.Module("language", Llama(shape), layout).Batch(4 * layout.dp, 1);
  job.spec().recovery.state_copies = state_copies;
  job.spec().recovery.state_home = job::StateHome::kMirror;
  const int32_t world = layout.tp * layout.dp * layout.pp;
  auto plan = MakePlan(job, MakeCluster((world + per_node - 1) / per_node, per_node), Epoch{1});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

// Whether a rank could be a home of a unit.
bool Leads(const Plan& plan, Rank rank, const PartId& part, const UnitFamily& family,
           int64_t unit) {
  const std::optional<Place> place = plan.PlaceOf(rank, part.module);
  if (!place.has_value()) return false;
  const UnitRange led = LedUnits(plan, *place, family);
  return led.first <= unit && unit < led.end();
}

// Elements, each as often as it has homes.
struct Amounts {
  int64_t state = 0;
  int64_t homeless = 0;  // that have a home which cannot be theirs any more, and get another
  int64_t moved = 0;
  Amounts& operator+=(const Amounts& other) {
    state += other.state;
    homeless += other.homeless;
    moved += other.moved;
    return *this;
  }
};

// Of one ruler; walks both tables' runs, unit by unit.
void AddRuler(const Plan& after, const PartId& part, const StateTable& from, const StateTable& to,
              size_t ruler, Amounts* amounts) {
  const UnitFamily& family = to.rulers[ruler].family;
  const auto bucket = static_cast<size_t>(to.rulers[ruler].bucket);
  const int64_t unit_elements = RulersOf(after, part)[bucket].Find(family)->unit_elements;
  auto old = from.rulers[ruler].runs.begin();
  for (const HomedRun& run : to.rulers[ruler].runs) {
    const auto now = to.homes[static_cast<size_t>(run.homes)].size();
    for (int64_t at = run.elements.first; at < run.elements.end();) {
      while (old->elements.end() <= at) ++old;
      const int64_t unit = at / unit_elements;
      const int64_t end =
          std::min({run.elements.end(), old->elements.end(), (unit + 1) * unit_elements});
      const RankList& had = from.homes[static_cast<size_t>(old->homes)];
      const auto left = static_cast<size_t>(std::count_if(had.begin(), had.end(), [&](Rank home) {
        return Leads(after, home, part, family, unit);
      }));
      amounts->state += static_cast<int64_t>(now) * (end - at);
      if (now > left) amounts->homeless += static_cast<int64_t>(now - left) * (end - at);
      at = end;
    }
  }
}

Amounts AmountsOf(const Plan& before, const Plan& after) {
  Amounts amounts{.moved = MovesBetween(before, after).bytes / 12};
  const ModulePlan& module = after.modules[0];
  for (int32_t pp = 0; pp < module.pp(); ++pp) {
    const PartId part{0, pp, 0};
    const StateTable from = StateTableOf(before, part), to = StateTableOf(after, part);
    for (size_t i = 0; i < to.rulers.size(); ++i) AddRuler(after, part, from, to, i, &amounts);
  }
  return amounts;
}

// What became homeless has to be spread evenly: every rank gets a little, those beside the hole a
// little more.
TEST(ShareMovesTest, OneRankOfSixtyFour_MovesAtMostThreeTimesWhatIsHomeless) {
  for (const LlamaShape& shape : {kTiny, kSmall}) {
    for (const int32_t copies : {1, 2}) {
      const Plan healthy = Healthy(shape, {.tp = 4, .dp = 8, .pp = 2}, 8, copies);
      for (const int32_t lost : {0, 1, 13, 22, 35, 62}) {
        SCOPED_TRACE(
            absl::StrCat("hidden ", shape.hidden_size, ", ", copies, " homes, rank ", lost));
        const Amounts amounts = AmountsOf(healthy, AfterLoss(healthy, {Rank{lost}}));
        // The last replica has less than the others before, because of padding: then its ranks are
        // given up to what is even.
        const bool last = healthy.PlaceOf(Rank{lost}, 0)->dp == 7;
        const int64_t padding = last ? 4 * amounts.state / 64 : 0;
        EXPECT_TRUE(amounts.homeless > 0 || last);
        EXPECT_GE(amounts.moved, amounts.homeless);
        EXPECT_LE(amounts.moved, 3 * amounts.homeless + padding);
        EXPECT_LE(amounts.moved, amounts.state / 10);
      }
    }
  }
}

TEST(ShareMovesTest, WholeStage_IsCutAsWhereItsWidthsAreEqual) {
  const Plan healthy = Healthy(kSmall, {.tp = 4, .dp = 3, .pp = 2}, 4);
  const PartId part{0, 1, 0};
  const std::vector<std::vector<RulerShare>> shares = CutShares(healthy, part);
  const std::vector<std::vector<EvenRun>> even = CutEvenly(healthy, part, 4);
  ASSERT_EQ(shares.size(), even.size());
  int64_t elements = 0, same = 0;
  for (size_t b = 0; b < even.size(); ++b) {
    for (const EvenRun& run : even[b]) {
      elements += run.elements.count;
      for (const RulerShare& share : shares[b]) {
        if (share.family != run.family || share.replica != run.replica) continue;
        same += std::max<int64_t>(0, std::min(share.elements.end(), run.elements.end()) -
                                         std::max(share.elements.first, run.elements.first));
      }
    }
  }
  EXPECT_GE(same, elements - elements / 200) << "but for padding and remainders";
}

TEST(ShareMovesTest, RandomNarrowings_MoveLittleMoreThanIsHomeless) {
  Amounts all;
  int32_t maps = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Prng prng(Hash64(99, 1, seed));
    const auto below = [&](int32_t bound) {
      return static_cast<int32_t>(prng.Below(static_cast<uint64_t>(bound)));
    };
    const int32_t tp = 2 + below(6), dp = 2 + below(7), pp = 1 + below(2);
    LlamaShape shape = seed % 2 == 0 ? kTiny : kSmall;
    shape.tied_head = below(2) == 0;
    Plan before = Healthy(shape, {.tp = tp, .dp = dp, .pp = pp}, tp);
    for (int loss = 0; loss < 2; ++loss) {
      // Of each slot at most one rank a time, and some slots whole, so that widths differ.
      RankList lost;
      for (int32_t d = 1; d < dp; ++d) {
        for (int32_t p = 0; p < pp; ++p) {
          const RankList ranks = before.TensorGroup(0, d, p);
          if (ranks.size() > 1 && below(3) == 0)
            lost.push_back(ranks[static_cast<size_t>(below(static_cast<int32_t>(ranks.size())))]);
        }
      }
      if (lost.empty()) continue;
      Plan after = AfterLoss(before, lost);
      const Amounts amounts = AmountsOf(before, after);
      EXPECT_LE(amounts.moved, amounts.state) << "seed " << seed;
      all += amounts;
      ++maps;
      before = std::move(after);
    }
  }
  RecordProperty("sums", absl::StrCat(maps, " maps, state ", all.state, ", homeless ", all.homeless,
                                      ", moved ", all.moved));
  EXPECT_GT(maps, 150);
  EXPECT_LE(all.moved, 2 * all.homeless);
  EXPECT_LE(all.moved, all.state / 2);
}

}  // namespace
}  // namespace phalanx::plan
