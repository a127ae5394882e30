#include "core/plan/copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/specs.h"
#include "tests/unit/core/plan/damaged.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::Llama;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Elements of a part that its rank does not lead, padding left out.
int64_t Followed(const StageParameters& parameters) {
  return parameters.TrainedElements() - parameters.LedElements();
}

TEST(CopiesTest, EverythingThatARankFollows_ComesFromOneLeader) {
  for (int32_t tp = 2; tp <= 8; ++tp) {
    for (int32_t kv_heads : {1, 2, 4, 8}) {
      const Plan plan =
          MustPlan(AJob().Module("language", Llama({.kv_heads = kv_heads}), {.tp = tp}));
      const Place place = *plan.PlaceOf(Rank{0}, 0);
      std::map<int32_t, int64_t> followed;
      for (const Copy& copy : CopiesInSlot(plan, place, 0)) {
        EXPECT_NE(copy.lead.tp, copy.follower.tp);
        for (const CopyRun& run : copy.runs) followed[copy.follower.tp] += run.count;
      }
      for (int32_t rank = 0; rank < tp; ++rank) {
        EXPECT_EQ(followed[rank], Followed(ParametersOf(plan, *plan.PlaceOf(Rank{rank}, 0))))
            << "tp " << tp << ", " << kv_heads << " KV heads, rank " << rank;
      }
    }
  }
}

TEST(CopiesTest, SharedHeadsFold_AndNormsOnlySpread) {
  // 8 query and 2 KV heads over 3 ranks: 3, 3 and 2 query heads; rank 1 has some of both KV heads.
  const Plan plan = MustPlan(AJob().Module("language", Llama({.layers = 1}), {.tp = 3}));
  const std::vector<Copy> copies = CopiesInSlot(plan, *plan.PlaceOf(Rank{0}, 0), 0);
  std::map<std::pair<int32_t, int32_t>, int64_t> folded;
  for (const Copy& copy : copies) {
    for (const CopyRun& run : copy.runs) {
      if (run.folds) folded[{copy.lead.tp, copy.follower.tp}] += run.count;
    }
  }
  const int64_t head = 2 * 4 * 32;  // key and value rows of one head
  EXPECT_THAT(folded, ::testing::ElementsAre(std::pair(std::pair(0, 1), head),
                                             std::pair(std::pair(1, 2), head)));
}

TEST(CopiesTest, TiedEnds_JoinTheSameRowsWhateverTheWidths) {
  job::JobSpec spec =
      AJob().Module("language", Llama({.tied_head = true}), {.tp = 3, .dp = 2, .pp = 2});
  const Plan healthy = MustPlan(spec);
  plan::Layout layout = healthy.layout;
  // Replica 1 has lost a rank of its last stage.
  const RankList last = healthy.TensorGroup(0, 1, 1);
  layout.modules[0].changes = {{.dp = 1, .pp = 1, .ranks = {last[0], last[2]}}};
  const Plan plan = *Expand(spec, layout);
  for (int32_t dp = 0; dp < 2; ++dp) {
    int64_t elements = 0;
    for (const Copy& copy : TiedCopies(plan, {.dp = dp})) {
      EXPECT_EQ(copy.lead.pp, 0);
      EXPECT_EQ(copy.follower.pp, 1);
      EXPECT_EQ(copy.follower.width, dp == 0 ? 3 : 2);
      const StageParameters lead = ParametersOf(plan, copy.lead);
      const StageParameters follower = ParametersOf(plan, copy.follower);
      const LocalMatrix &embedding = *lead.Find(MatrixRole::kEmbedding),
                        &head = *follower.Find(MatrixRole::kHead);
      for (const CopyRun& run : copy.runs) {
        EXPECT_TRUE(run.folds);
        // The same logical row at both ends.
        EXPECT_EQ(
            (run.lead_offset - embedding.offset) / embedding.cols + embedding.pieces[0].logical_row,
            (run.offset - head.offset) / head.cols + head.pieces[0].logical_row);
        elements += run.count;
      }
    }
    EXPECT_EQ(elements, 96 * 32) << "every row once";
  }
}

TEST(CopiesTest, DamagedTables_EverythingThatARankFollowsComesFromOneLeader) {
  const job::JobSpec spec =
      AJob()
          .Module("vision", support::ClipVision(), {.tp = 3, .dp = 4})
          .Module("language", Llama({.tied_head = true}), {.tp = 4, .dp = 3, .pp = 2})
          .Edge("vision", "language", {.projector = 32})
          .Batch(24, 2);
  ForEachDamaged(spec, [](const Plan& plan) {
    ForEachPlace(plan, [&plan](Rank rank, const Place& place) {
      const StageParameters mine = ParametersOf(plan, place);
      int64_t followed = 0;
      const auto add = [&](const std::vector<Copy>& copies) {
        for (const Copy& copy : copies) {
          EXPECT_EQ(copy.lead.dp, place.dp);
          ASSERT_NE(plan.RankOf(copy.lead), plan.RankOf(copy.follower));
          EXPECT_EQ(plan.PlaceOf(plan.RankOf(copy.lead), copy.lead.module), copy.lead);
          const int64_t extent = ParametersOf(plan, copy.lead).trained_extent;
          for (const CopyRun& run : copy.runs) {
            EXPECT_LE(run.lead_offset + run.count, extent);
            if (plan.RankOf(copy.follower) != rank) continue;
            EXPECT_LE(run.offset + run.count, mine.trained_extent);
            followed += run.count;
          }
        }
      };
      add(CopiesInSlot(plan, place, 0));
      add(TiedCopies(plan, place));
      EXPECT_EQ(followed, Followed(mine));
    });
  });
}

TEST(CopiesTest, UntiedFrozenOrUndividedEnds_HaveNone) {
  const auto copies = [](const support::LlamaShape& shape, const support::Layout& layout) {
    return TiedCopies(MustPlan(AJob().Module("language", Llama(shape), layout)), {});
  };
  EXPECT_THAT(copies({.tied_head = true}, {.pp = 2}), SizeIs(1));
  EXPECT_THAT(copies({}, {.pp = 2}), IsEmpty());
  EXPECT_THAT(copies({.tied_head = true}, {}), IsEmpty());
}

}  // namespace
}  // namespace phalanx::plan
