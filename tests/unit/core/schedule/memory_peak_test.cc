#include "core/schedule/memory_peak.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/plan/activation_estimate.h"
#include "core/plan/preparation.h"
#include "tests/support/specs.h"

namespace phalanx::schedule {
namespace {

using plan::BytesToTakeOver;
using plan::EstimateMemory;
using plan::MemoryEstimate;
using plan::Plan;
using plan::PlanBehindLoss;
using plan::SampleShape;
using support::AJob;
using support::ClipVision;
using support::Layout;
using support::Llama;

plan::Plan MustPlan(const job::JobSpec& spec, int32_t devices) {
  auto plan = plan::MakePlan(spec, plan::MakeCluster(1, devices), Epoch{1});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : plan::Plan();
}

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
  EXPECT_EQ(peaks[0].tried(), tried);
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
            std::max(peaks[0].step.total() + peaks[0].to_take_over, peaks[0].tried()));
}

TEST(MemoryPeakTest, OfOneRank_IsThatOfAll) {
  for (const Layout& layout : {Layout{.tp = 3}, Layout{.tp = 2, .dp = 2}, Layout{.pp = 2}}) {
    const Plan plan = PlanOnGpus(layout);
    const std::vector<MemoryPeak> peaks = EstimatePeaks(plan);
    for (Rank rank{0}; rank.value < plan.world; ++rank.value) {
      const MemoryPeak one = EstimatePeak(plan, rank),
                       &all = peaks[static_cast<size_t>(rank.value)];
      EXPECT_EQ(one.step.total(), all.step.total());
      EXPECT_EQ(one.each_tried, all.each_tried);
      EXPECT_EQ(one.to_take_over, all.to_take_over);
    }
  }
}

TEST(MemoryPeakTest, OfMoreRanksThanArePreparedFor_TriesNothing) {
  for (const MemoryPeak& peak : EstimatePeaks(PlanOnGpus({.tp = 2, .dp = 5}, 10))) {
    EXPECT_EQ(peak.tried(), 0);
    EXPECT_EQ(peak.total(), peak.step.total());
  }
}

// The encoder is ahead by a microbatch only while the language model keeps nothing.
TEST(MemoryPeakTest, OfModulesOnTheSameRanks_ActivationsAreNotAllThereAtOnce) {
  AJob job = AJob()
                 .Module("vision", ClipVision())
                 .Module("language", Llama(), {.offset = 0})
                 .Edge("vision", "language", {.projector = 32})
                 .Batch(4, 1)
                 .Schedule(job::ScheduleName::k1F1B);
  job.spec().resources.device = job::DeviceKind::kGpu;
  const Plan plan = MustPlan(job, 1);
  const auto of = [&](int32_t module) {
    return plan::ActivationsOfPart(plan, *plan.PlaceOf(Rank{0}, module), 0, {});
  };
  const plan::PartActivations vision = of(0), language = of(1);
  const int64_t expected = std::max(vision.kept + language.kept + language.head + language.once,
                                    2 * vision.kept + vision.once) +
                           vision.messages + language.messages + vision.items;
  EXPECT_GT(vision.items, 0);
  EXPECT_EQ(ActivationPeak(plan, Rank{0}, {}), expected);
  EXPECT_LT(expected, EstimateMemory(plan, Rank{0}).activations);
  EXPECT_EQ(EstimatePeaks(plan)[0].step.activations, expected);
  // Of one microbatch.
  EXPECT_EQ(ActivationPeak(plan, Rank{0}, {}, std::vector<int64_t>{2}),
            vision.kept + language.kept + language.head + language.once + vision.messages +
                language.messages + vision.items);
}

// What the estimate counts of one part at a time is what its program keeps.
TEST(MemoryPeakTest, OfOneModule_ActivationsAreThoseOfTheEstimate) {
  for (const job::ScheduleName schedule :
       {job::ScheduleName::k1F1B, job::ScheduleName::kZeroBubbleH1}) {
    AJob job = OnGpus({.pp = 2}, 6).Schedule(schedule);
    const Plan plan = MustPlan(job, 2);
    for (Rank rank{0}; rank.value < 2; ++rank.value) {
      const int64_t most = EstimateMemory(plan, rank).activations;
      const int64_t peak = ActivationPeak(plan, rank, {});
      EXPECT_LE(peak, most);
      if (schedule == job::ScheduleName::k1F1B) {
        EXPECT_EQ(peak, most) << rank.value;
      }
    }
  }
}

// Of layers that the chunks cannot share evenly, the early chunks may have more.
TEST(MemoryPeakTest, OfAnySchedule_EstimateIsNoLessThanThePassesKeep) {
  struct Setting {
    job::ScheduleName schedule;
    int32_t chunks;
  };
  for (const auto& [schedule, chunks] :
       {Setting{job::ScheduleName::k1F1B, 1}, Setting{job::ScheduleName::kZeroBubbleH1, 1},
        Setting{job::ScheduleName::kZeroBubbleV, 2}, Setting{job::ScheduleName::kInterleaved, 2},
        Setting{job::ScheduleName::kInterleaved, 3}, Setting{job::ScheduleName::kInterleaved, 4}}) {
    for (const int32_t stages : {2, 3, 4}) {
      for (const int32_t more : {0, 1, 3, 6, 13}) {
        for (const int64_t microbatches : {1, 2, 5, 6, 8, 13, 16}) {
          const int32_t layers = stages * chunks + more;
          AJob job = AJob()
                         .Module("language", Llama({.layers = layers}), {.pp = stages})
                         .Batch(microbatches, 1)
                         .Schedule(schedule, chunks);
          const auto plan = plan::MakePlan(job, plan::MakeCluster(1, stages), Epoch{1});
          ASSERT_TRUE(plan.ok()) << plan.status();
          const std::vector<MemoryEstimate> estimates = EstimateMemory(*plan);
          for (Rank rank{0}; rank.value < stages; ++rank.value) {
            EXPECT_LE(ActivationPeak(*plan, rank, {}),
                      estimates[static_cast<size_t>(rank.value)].activations)
                << "schedule " << static_cast<int>(schedule) << ", " << chunks << " chunks, "
                << stages << " stages, " << layers << " layers, " << microbatches
                << " microbatches, rank " << rank.value;
          }
        }
      }
    }
  }
}

// Every backward pass of the last chunk makes room for the first one's next round.
TEST(MemoryPeakTest, OfInterleavedChunks_MixOfASteadyRoundIsInTheEstimate) {
  AJob job = OnGpus({.pp = 4}, 16).Schedule(job::ScheduleName::kInterleaved, 4);
  job.spec().modules[0].architecture.layers = 22;
  const Plan plan = MustPlan(job, 4);
  const std::vector<MemoryEstimate> estimates = EstimateMemory(plan);
  const std::vector<MemoryPeak> peaks = EstimatePeaks(plan);
  for (Rank rank{0}; rank.value < 4; ++rank.value) {
    const auto r = static_cast<size_t>(rank.value);
    EXPECT_EQ(peaks[r].step.activations, ActivationPeak(plan, rank, {})) << r;
    EXPECT_LE(peaks[r].step.activations, estimates[r].activations) << r;
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
    return MicrobatchesTried(plan, rank).size();
  };
  EXPECT_EQ(tried(8, Rank{0}), 1u) << "4 and 4, of which 2 and 2 on the first lane";
  EXPECT_EQ(tried(7, Rank{0}), 2u) << "4 and 3";
  EXPECT_EQ(tried(7, Rank{1}), 1u) << "1 and 1 on the second lane";
  EXPECT_EQ(tried(7, Rank{3}), 2u);
}

}  // namespace
}  // namespace phalanx::schedule
