#include "worker/model/prepared.h"

#include <gtest/gtest.h>

#include <thread>

#include "worker/model/cudnn_attention.h"

namespace phalanx::model {
namespace {

TEST(PreparedTest, Counts_AreOfAllThreads) {
  const PreparationCounts before = CountPreparations();
  CountPreparation(Preparation::kFp8Product);
  std::thread([] {
    CountPreparation(Preparation::kFp8Product);
    CountPreparation(Preparation::kAttentionPlan);
  }).join();
  const PreparationCounts after = CountPreparations();
  EXPECT_EQ(after.fp8_products, before.fp8_products + 2);
  EXPECT_EQ(after.attention_plans, before.attention_plans + 1);
  EXPECT_EQ(after.attention_trials, before.attention_trials);
}

TEST(PreparedTest, ShapeOfAttentionThatIsTried_Counts) {
  const PreparationCounts before = CountPreparations();
  std::thread([] { SetCudnnTried(CudnnShape(), false); }).join();
  EXPECT_EQ(CountPreparations().attention_trials, before.attention_trials + 1);
}

}  // namespace
}  // namespace phalanx::model
