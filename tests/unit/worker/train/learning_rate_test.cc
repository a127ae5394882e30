#include "worker/train/learning_rate.h"

#include "gtest/gtest.h"

namespace phalanx::train {
namespace {

using Decay = job::Optimizer::Decay;

constexpr int64_t kSteps = 110;

job::Optimizer OptimizerWith(Decay decay) {
  job::Optimizer optimizer;
  optimizer.learning_rate = 0.5;
  optimizer.minimum_learning_rate = 0.1;
  optimizer.warmup_steps = 10;
  optimizer.decay = decay;
  return optimizer;
}

double At(Decay decay, int64_t step) { return LearningRate(OptimizerWith(decay), step, kSteps); }

TEST(LearningRateTest, WarmUp_RisesInEqualStepsToTheFullRate) {
  for (const Decay decay : {Decay::kCosine, Decay::kConstant, Decay::kLinear}) {
    EXPECT_DOUBLE_EQ(At(decay, 1), 0.05);
    EXPECT_DOUBLE_EQ(At(decay, 5), 0.25);
    EXPECT_DOUBLE_EQ(At(decay, 10), 0.5);
  }
}

TEST(LearningRateTest, Decay_EndsAtTheMinimumWithTheLastStep) {
  EXPECT_DOUBLE_EQ(At(Decay::kCosine, kSteps), 0.1);
  EXPECT_DOUBLE_EQ(At(Decay::kLinear, kSteps), 0.1);
  EXPECT_DOUBLE_EQ(At(Decay::kConstant, kSteps), 0.5);
}

TEST(LearningRateTest, Decay_IsHalfWayAtHalfOfTheSteps) {
  EXPECT_DOUBLE_EQ(At(Decay::kCosine, 60), 0.3);
  EXPECT_DOUBLE_EQ(At(Decay::kLinear, 60), 0.3);
  EXPECT_DOUBLE_EQ(At(Decay::kConstant, 60), 0.5);
  // A cosine leaves the full rate slowly, a line does not.
  EXPECT_GT(At(Decay::kCosine, 20), At(Decay::kLinear, 20));
}

TEST(LearningRateTest, AfterWarmUp_NeverRises) {
  for (const Decay decay : {Decay::kCosine, Decay::kConstant, Decay::kLinear}) {
    for (int64_t step = 11; step <= kSteps; ++step)
      EXPECT_LE(At(decay, step), At(decay, step - 1)) << step;
  }
}

TEST(LearningRateTest, WithoutWarmUp_BeginsNearTheFullRate) {
  job::Optimizer optimizer = OptimizerWith(Decay::kLinear);
  optimizer.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(LearningRate(optimizer, 1, 100), 0.1 + 0.4 * 0.99);
}

TEST(LearningRateTest, WarmUpAsLongAsTheRun_EndsAtTheFullRate) {
  job::Optimizer optimizer = OptimizerWith(Decay::kCosine);
  optimizer.warmup_steps = 20;
  EXPECT_DOUBLE_EQ(LearningRate(optimizer, 20, 20), 0.5);
}

}  // namespace
}  // namespace phalanx::train
