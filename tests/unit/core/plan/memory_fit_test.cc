#include "core/plan/memory_fit.h"

#include <vector>

#include "core/base/violation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/specs.h"

namespace phalanx::plan {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;

TEST(MemoryFitTest, RankBeyondItsDevice_IsNamedWithItsLargestTerm) {
  const std::vector<MemoryEstimate> needs = {{.parameters = kGib},
                                             {.parameters = 10 * kGib,
                                              .gradients = 20 * kGib,
                                              .optimizer = 61 * kGib,
                                              .activations = 5 * kGib}};
  EXPECT_EQ(MemoryShortage(needs, {80 * kGib, 80 * kGib}),
            "rank 1 needs 96.0 GiB (optimizer 61.0 GiB is the largest term), device has 80.0 GiB");
}

TEST(MemoryFitTest, OfSeveral_TheOneThatLacksMostIsNamed) {
  const std::vector<MemoryEstimate> needs(3, {.activations = 2048});
  EXPECT_EQ(MemoryShortage(needs, {2047, 1024, 1500}),
            "rank 1 needs 2.0 KiB (activations 2.0 KiB is the largest term), device has 1.0 KiB; 2 "
            "other ranks do not fit either");
  EXPECT_EQ(MemoryShortage(needs, {2047, 4096, 1000}),
            "rank 2 needs 2.0 KiB (activations 2.0 KiB is the largest term), device has 1000 B; "
            "another rank does not fit either");
}

TEST(MemoryFitTest, WhatFitsToTheByte_AndWhatIsUnknown_Passes) {
  const std::vector<MemoryEstimate> needs(2, {.gradients = 2048});
  EXPECT_EQ(MemoryShortage(needs, {2048, 2048}), std::nullopt);
  EXPECT_EQ(MemoryShortage(needs, {0, 2048}), std::nullopt);
  EXPECT_EQ(MemoryShortage(needs, {}), std::nullopt);
  EXPECT_EQ(MemoryShortage({}, {2048}), std::nullopt);
}

TEST(MemoryFitTest, Plan_IsCheckedAgainstEachRanksOwnDevice) {
  const Plan plan =
      *MakePlan(support::AJob().Module("language", support::Llama(), {.tp = 2}).Batch(4, 2),
                MakeCluster(1, 2), Epoch{1});
  const int64_t need = EstimateMemory(plan, Rank{1}).total();
  EXPECT_TRUE(CheckMemory(plan, {}).ok());
  EXPECT_TRUE(CheckMemory(plan, {0, 0}).ok());
  EXPECT_TRUE(CheckMemory(plan, {0, need}).ok());
  const std::vector<Violation> violations = ViolationsOf(CheckMemory(plan, {0, need - 1}));
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_EQ(violations[0].field, "spec.modules");
  EXPECT_THAT(violations[0].rule, ::testing::StartsWith("rank 1 needs "));
}

}  // namespace
}  // namespace phalanx::plan
