#include "core/schedule/profile_cost.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/plan/preparation.h"
#include "core/plan/samples.h"
#include "core/schedule/preview.h"
#include "tests/unit/core/schedule/plans.h"

namespace phalanx::schedule {
namespace {

using support::AJob;
using support::Llama;

// A decoder in two replicas of two tensor ranks each.
plan::Plan TwoWide() {
  return PlanOf(AJob()
                    .Module("language", Llama({.layers = 4, .block = 8, .vocabulary = 256}),
                            {.tp = 2, .dp = 2})
                    .Batch(24, 2));
}

TEST(ProfileCostTest, ReplicasAlike_HaveNoKinds) {
  const CostModel costs = CostFromProfile(TwoWide(), NominalProfile(), 1);
  ASSERT_EQ(costs.replicas.size(), 1u);
  EXPECT_TRUE(costs.replicas[0].kinds.empty());
  EXPECT_TRUE(costs.replicas[0].kind_of.empty());
}

TEST(ProfileCostTest, ReplicasOfTwoWidths_EachTakeWhatTheirWidthAndSamplesComeTo) {
  const auto left = plan::PlanBehindLoss(TwoWide(), Rank{3});
  ASSERT_TRUE(left.ok()) << left.status();
  const DeviceProfile profile = NominalProfile();
  const CostModel costs = CostFromProfile(*left, profile, 1);
  const ReplicaKinds& replicas = costs.replicas[0];
  ASSERT_EQ(replicas.kinds.size(), 2u);
  const std::vector<int64_t> samples = plan::LaneSamplesOfStep(*left, 0);
  WorkModel model(left->spec, profile, 1);
  double longest = 0;
  for (const int32_t dp : {0, 1}) {
    const ReplicaKind& kind =
        replicas.kinds[static_cast<size_t>(replicas.kind_of[static_cast<size_t>(dp)])];
    const double rows = static_cast<double>(samples[static_cast<size_t>(dp)]) /
                        static_cast<double>(left->microbatches) *
                        static_cast<double>(left->module_spec(0).architecture.context);
    const PassSeconds pass = model.OfModule({.module = 0,
                                             .width = left->Width(0, dp, 0),
                                             .rows = rows,
                                             .microbatches = left->microbatches});
    EXPECT_EQ(kind.ranks, left->Width(0, dp, 0));
    EXPECT_DOUBLE_EQ(kind.parts[0].forward, pass.forward);
    EXPECT_DOUBLE_EQ(kind.parts[0].backward_input, pass.backward_input);
    EXPECT_DOUBLE_EQ(kind.parts[0].backward_weight, pass.backward_weight);
    longest = std::max(longest, pass.total());
  }
  const PartCost& slowest = costs.parts[0][0];
  EXPECT_DOUBLE_EQ(slowest.forward + slowest.backward_input + slowest.backward_weight, longest);
}

TEST(ProfileCostTest, StepWithoutARank_TakesAboutAsMuchMoreAsThereAreFewerRanks) {
  const DeviceProfile profile = *FindProfile("h200");
  const plan::Plan healthy = PlanOf(AJob()
                                        .Module("language",
                                                Llama({.hidden_size = 2048,
                                                       .layers = 18,
                                                       .heads = 32,
                                                       .kv_heads = 8,
                                                       .mlp_size = 8192,
                                                       .block = 128,
                                                       .vocabulary = 128256,
                                                       .context = 4096}),
                                                {.tp = 2, .dp = 2})
                                        .Batch(48, 4));
  const auto left = plan::PlanBehindLoss(healthy, Rank{3});
  ASSERT_TRUE(left.ok()) << left.status();
  const auto before = PredictStep(healthy, profile, 1), behind = PredictStep(*left, profile, 1);
  ASSERT_TRUE(before.ok() && behind.ok());
  EXPECT_NEAR(behind->step / before->step, 4.0 / 3, 0.1);
  EXPECT_GT(behind->memory.total(), before->memory.total());
}

// Nine samples on eight replicas of the language module: each is as full as the fullest, while its
// encoder has nine.
TEST(ProfileCostTest, EncoderOfABatchThatReplicasDoNotDivide_HasTheSamplesOfTheBatch) {
  const auto encoder_seconds = [](int64_t global) {
    const job::JobSpec spec = AJob()
                                  .Module("vision", support::ClipVision(), {.dp = 1})
                                  .Module("language", support::Llama(), {.dp = 8})
                                  .Edge("vision", "language", {.projector = 32})
                                  .Batch(global, 2);
    const plan::Plan plan = PlanOf(spec);
    EXPECT_EQ(plan.microbatches, 1);
    const CostModel costs = CostFromProfile(plan, *FindProfile("h200"), 1);
    return costs.parts[0][0].forward;
  };
  const double nine = encoder_seconds(9), sixteen = encoder_seconds(16);
  EXPECT_LT(nine, sixteen);
  EXPECT_GT(nine, encoder_seconds(8));
}

}  // namespace
}  // namespace phalanx::schedule
