#include "core/plan/memory_peak.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/plan/preparation.h"
#include "tests/support/specs.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::ClipVision;
using support::Layout;
using support::Llama;

AJob OnGpus(const Layout& layout, int64_t global = 8, int64_t micro = 1) {
  AJob job = AJob().Module("language", Llama(), layout).Batch(global, micro);
  job.spec().resources.device = job::DeviceKind::kGpu;
  job.Compute(job::Precision::kBf16);
  return job;
}

Plan PlanOnGpus(const Layout& layout, int64_t global = 8, int64_t micro = 1) {
  const AJob job = OnGpus(layout, global, micro);
  return MustPlan(job, job.Build().World());
}

TEST(MemoryPeakTest, OnCpus_IsThatOfAStep) {
  AJob job = OnGpus({.tp = 2});
  job.spec().resources.device = job::DeviceKind::kCpu;
  const Plan plan = MustPlan(job, 2);
  const std::vector<MemoryEstimate> steps = EstimateMemory(plan);
  const std::vector<MemoryPeak> peaks = EstimatePeaks(plan);
  ASSERT_EQ(peaks.size(), steps.size());
  for (size_t rank = 0; rank < peaks.size(); ++rank)
    EXPECT_EQ(peaks[rank].total(), steps[rank].total());
}

// Behind the loss of its neighbour a rank has all of its replica: of that it tries a microbatch.
TEST(MemoryPeakTest, OfReplicasThatGetNarrower_IsThatOfTheNarrowOne) {
  const Plan plan = PlanOnGpus({.tp = 2, .dp = 2});
  const std::vector<MemoryPeak> peaks = EstimatePeaks(plan);
  const auto narrow = PlanBehindLoss(plan, Rank{1});
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  const int64_t tried =
      EstimateMemory(*narrow, Rank{0}, {.as_dealt = true, .microbatches = 1}).total();
  EXPECT_EQ(peaks[0].tried, tried);
  EXPECT_GT(tried, peaks[0].step.total());
  EXPECT_EQ(peaks[0].to_take_over, 0) << "state has its second home in the other replica";
  EXPECT_EQ(peaks[0].total(), tried);
  EXPECT_EQ(peaks[0].tried_beyond(), tried - peaks[0].step.total());
  // A replica less wide is dealt fewer samples of a microbatch.
  const auto dealt = [&](const SampleShape& samples) {
    return EstimateMemory(*narrow, Rank{0}, samples).activations;
  };
  EXPECT_LE(dealt({.as_dealt = true}), dealt({}));
}

TEST(MemoryPeakTest, OfFewLabels_HasLogitsOfAllRowsBeforeTheFirstStep) {
  AJob job = OnGpus({});
  const Plan plan = MustPlan(job, 1);
  const MemoryPeak peak = EstimatePeaks(plan, {.labelled_share = 0.25})[0];
  EXPECT_EQ(peak.total(), EstimateMemory(plan, Rank{0}).total());
  EXPECT_LT(peak.step.total(), peak.total());
}

// The first rank of a node may have to go on with the state of all.
TEST(MemoryPeakTest, OfCopiesInHostMemory_HasRoomForWhatItWouldTakeOver) {
  const Plan plan = PlanOnGpus({.tp = 4});
  const std::vector<MemoryEstimate> steps = EstimateMemory(plan);
  const std::vector<MemoryPeak> peaks = EstimatePeaks(plan);
  const auto state = [&](size_t rank) { return steps[rank].host.copies / 2; };
  ASSERT_GT(state(1), 0);
  EXPECT_EQ(peaks[0].to_take_over, BytesToTakeOver(state(1) + state(2) + state(3)));
  EXPECT_EQ(peaks[1].to_take_over, BytesToTakeOver(state(0)));
  EXPECT_EQ(peaks[2].to_take_over, 0);
  EXPECT_EQ(peaks[0].total(),
            std::max(peaks[0].step.total() + peaks[0].to_take_over, peaks[0].tried));
}

TEST(MemoryPeakTest, OfMoreRanksThanArePreparedFor_TriesNothing) {
  for (const MemoryPeak& peak : EstimatePeaks(PlanOnGpus({.tp = 2, .dp = 5}, 10))) {
    EXPECT_EQ(peak.tried, 0);
    EXPECT_EQ(peak.total(), peak.step.total());
  }
}

TEST(MemoryPeakTest, MicrobatchesTried_AreThoseThatDiffer) {
  const auto tried = [](int64_t global, Rank rank) {
    const Plan plan = MustPlan(AJob()
                                   .Module("vision", ClipVision(), {.dp = 3})
                                   .Module("language", Llama())
                                   .Edge("vision", "language", {.projector = 32})
                                   .Batch(global, 4),
                               4);
    return MicrobatchesTried(plan, rank);
  };
  EXPECT_EQ(tried(8, Rank{0}), 1) << "4 and 4, of which 2 and 2 on the first lane";
  EXPECT_EQ(tried(7, Rank{0}), 2) << "4 and 3";
  EXPECT_EQ(tried(7, Rank{1}), 1) << "1 and 1 on the second lane";
  EXPECT_EQ(tried(7, Rank{3}), 2);
}

}  // namespace
}  // namespace phalanx::plan
