// LibTorch's profiler around one step, on CPU.
#include "worker/rank/step_profiler.h"

#include <ATen/ATen.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/specs.h"
#include "tests/unit/worker/rank/part_of.h"

namespace phalanx::rank {
namespace {

job::JobSpec Profiled(int64_t steps) {
  job::JobSpec spec = support::AJob().Module("language", support::Llama());
  spec.steps = steps;
  spec.profile = true;
  return spec;
}

TEST(ProfiledStepTest, LastButOne_WhereOthersComeBefore) {
  EXPECT_EQ(ProfiledStep(Profiled(40)), 39);
  EXPECT_EQ(ProfiledStep(Profiled(5)), 4);
  EXPECT_EQ(ProfiledStep(Profiled(4)), 0);
  job::JobSpec silent = Profiled(40);
  silent.profile = false;
  EXPECT_EQ(ProfiledStep(silent), 0);
}

// Step 6 has one product and two copies; the steps around it have others.
TEST(StepProfilerTest, OperatorsOfTheStep_AreMeasured_OthersNot) {
  StepProfiler profiler(6, /*gpu=*/false);
  const at::Tensor a = at::ones({64, 64}), b = at::empty({64, 64});
  for (int64_t step = 1; step <= 7; ++step) {
    for (int64_t i = 0; i < (step == 6 ? 1 : 5); ++i) at::mm(a, a);
    for (int64_t i = 0; i < 2; ++i) b.copy_(a);
    ASSERT_TRUE(profiler.OnDecided(step).ok());
    EXPECT_EQ(profiler.begun(), step >= 3);
    EXPECT_EQ(profiler.profile().has_value(), step >= 6);
  }
  const StepProfile& profile = *profiler.profile();
  EXPECT_EQ(profile.step, 6);
  EXPECT_EQ(PartOf(profile, WorkPart::kProducts).kernels, 1);
  EXPECT_EQ(PartOf(profile, WorkPart::kCopies).kernels, 2);
  EXPECT_GT(PartOf(profile, WorkPart::kProducts).share, 0);
  EXPECT_GT(profile.waiting, 0);
  EXPECT_LT(profile.waiting, profile.seconds);
}

// The next profiler of the process finds LibTorch's free.
TEST(StepProfilerTest, EpochThatEndsInBetween_GivesTheMeasurementUp) {
  {
    StepProfiler profiler(4, /*gpu=*/false);
    ASSERT_TRUE(profiler.OnDecided(1).ok());
    EXPECT_TRUE(profiler.begun());
  }
  StepProfiler next(4, /*gpu=*/false);
  const at::Tensor a = at::ones({8, 8});
  for (int64_t step = 1; step <= 4; ++step) {
    at::mm(a, a);
    ASSERT_TRUE(next.OnDecided(step).ok());
  }
  ASSERT_TRUE(next.profile().has_value());
  EXPECT_EQ(PartOf(*next.profile(), WorkPart::kProducts).kernels, 1);
}

// An epoch that begins behind the first step of the measurement has none of it.
TEST(StepProfilerTest, StepsThatBeganBefore_LeaveNone) {
  StepProfiler profiler(9, /*gpu=*/false);
  for (int64_t step = 7; step <= 10; ++step) ASSERT_TRUE(profiler.OnDecided(step).ok());
  EXPECT_FALSE(profiler.begun());
  EXPECT_FALSE(profiler.profile().has_value());
}

}  // namespace
}  // namespace phalanx::rank
