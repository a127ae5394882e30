// What a search takes to be too large without an estimate of its own is too large.
#include "core/schedule/search_plans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/plan/memory_estimate.h"
#include "tests/support/specs.h"

namespace phalanx::schedule {
namespace {

using job::ScheduleName;
using support::AJob;

// Four encoders beside a language module of one replica.
job::JobSpec Laid() {
  AJob job;
  job.Module("vision", support::LargeClipVision(), {.dp = 4, .offset = 0})
      .Module("language", support::LargeLlama({.layers = 16, .context = 2048}),
              {.tp = 2, .pp = 2, .offset = 0})
      .Edge("vision", "language", {.projector = 4096})
      .Batch(64, 1)
      .Compute(job::Precision::kBf16);
  job.spec().resources.device = job::DeviceKind::kGpu;
  job.spec().recovery.state_copies = 1;
  return job;
}

class SearchPlansTest : public testing::Test {
 protected:
  // A search that does not know the memory estimates each.
  int64_t NeedOf(const Setting& setting) {
    SearchPlans plans(cluster_, 0, {});
    plans.Begin(laid_);
    const plan::Plan* plan = plans.Under(setting);
    EXPECT_NE(plan, nullptr);
    return plan == nullptr ? 0 : plans.MemoryOf(*plan);
  }

  const job::JobSpec laid_ = Laid();
  const plan::Cluster cluster_ = plan::MakeCluster(1, 4);
};

// Each encoder takes a sample of each microbatch at least, and all microbatches are kept.
TEST_F(SearchPlansTest, LargerMicrobatchesThatKeepLess_FitWhereSmallerOnesDoNot) {
  const Setting small{.micro = 1, .schedule = {.name = ScheduleName::kThreePhase}};
  Setting large = small;
  large.micro = 4;
  ASSERT_LT(NeedOf(large), NeedOf(small));
  SearchPlans plans(cluster_, NeedOf(large), {});
  plans.Begin(laid_);
  EXPECT_FALSE(plans.Fits(small));
  EXPECT_TRUE(plans.Fits(large));
}

TEST_F(SearchPlansTest, Fits_OfAnySettingBehindAnyOther_IsWhatItsEstimateSays) {
  for (const ScheduleName name :
       {ScheduleName::k1F1B, ScheduleName::kZeroBubbleH1, ScheduleName::kThreePhase}) {
    for (const int64_t first : {1, 2, 4, 8, 16, 64}) {
      const Setting tight{.micro = first, .schedule = {.name = name}};
      const int64_t memory = NeedOf(tight) - 1;
      SearchPlans plans(cluster_, memory, {});
      plans.Begin(laid_);
      EXPECT_FALSE(plans.Fits(tight));
      for (const int64_t micro : {1, 2, 4, 8, 16, 64}) {
        const Setting setting{.micro = micro, .schedule = {.name = name}};
        EXPECT_EQ(plans.Fits(setting), NeedOf(setting) <= memory) << first << ", " << micro;
      }
    }
  }
}

// What was worked out for one setting is not taken for another one's.
TEST_F(SearchPlansTest, MemoryUnderAnySettings_IsThatOfAWholeEstimate) {
  constexpr job::Recompute kAll[] = {job::Recompute::kNone, job::Recompute::kSelective,
                                     job::Recompute::kFull};
  SearchPlans plans(cluster_, 0, {});
  plans.Begin(laid_);
  std::set<int64_t> needs;
  for (const int64_t micro : {1, 4, 1, 16}) {
    for (const ScheduleName name : {ScheduleName::k1F1B, ScheduleName::kZeroBubbleH1,
                                    ScheduleName::kZeroBubbleV, ScheduleName::kThreePhase}) {
      for (const job::Recompute language : kAll) {
        for (const job::Recompute others : kAll) {
          const Setting setting{
              .micro = micro,
              .schedule = {.name = name, .chunks = name == ScheduleName::kZeroBubbleV ? 2 : 1},
              .language = language,
              .others = others};
          const plan::Plan* plan = plans.Under(setting);
          ASSERT_NE(plan, nullptr);
          int64_t most = 0;
          for (const plan::MemoryEstimate& rank : plan::EstimateMemory(*plan))
            most = std::max(most, rank.total());
          EXPECT_EQ(plans.MemoryOf(*plan), most) << "micro " << micro;
          SearchPlans tight(cluster_, most, {}), tighter(cluster_, most - 1, {});
          for (SearchPlans* other : {&tight, &tighter}) {
            other->Begin(laid_);
            for (const int64_t before : {int64_t{2}, micro})
              other->Fits({.micro = before, .schedule = setting.schedule});
            EXPECT_EQ(other->Fits(setting), other == &tight) << "micro " << micro;
          }
          needs.insert(most);
        }
      }
    }
  }
  EXPECT_GT(needs.size(), 40u) << "settings differ";
}

}  // namespace
}  // namespace phalanx::schedule
