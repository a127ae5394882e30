#include "core/schedule/work_model.h"

#include <gtest/gtest.h>

#include "core/plan/cost.h"
#include "core/schedule/profile_cost.h"
#include "tests/unit/core/schedule/plans.h"

namespace phalanx::schedule {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;

constexpr double kNominalFlops = 100e12;
constexpr int32_t kLayers = 4;
constexpr double kRows = 96;

job::JobSpec SmallDecoder() {
  return AJob()
      .Module("language", Llama({.layers = kLayers, .block = 8, .vocabulary = 256}))
      .Batch(8, 1);
}

// In which nothing takes time but products and attention.
DeviceProfile ProductsAlone() {
  DeviceProfile profile = NominalProfile();
  profile.memory_bytes_per_second = profile.fp8->cast_bytes_per_second = 1e300;
  return profile;
}

// FLOPs behind the embedding.
plan::PassCost CostBehindEmbedding(const plan::Plan& plan, double share) {
  const job::Module& module = plan.module_spec(0);
  const auto length = static_cast<double>(module.architecture.context);
  plan::PassCost cost = plan::PartCost(plan, {0, 0, 0}, 1, kRows, length, share);
  const plan::PassCost embedding = plan::EmbeddingCost(module, kRows);
  cost.forward -= embedding.forward;
  cost.backward_weight -= embedding.backward_weight;
  return cost;
}

PassSeconds SecondsBehindEmbedding(const plan::Plan& plan, const DeviceProfile& profile,
                                   job::Recompute recompute = job::Recompute::kNone) {
  WorkModel model(plan.spec, profile, 1);
  return model.OfPart(
      {.module = 0, .layers = kLayers, .last = true, .rows = kRows, .recompute = recompute});
}

void ExpectFlops(double seconds, double flops) {
  EXPECT_NEAR(seconds * kNominalFlops, flops, 1e-9 * flops);
}

TEST(WorkModelTest, Part_TakesWhatItsFlopsTake_LabelledRowsAloneAtTheEnd) {
  for (const double share : {1.0, 0.25}) {
    job::JobSpec spec = SmallDecoder();
    spec.batch.labelled_share = share;
    const plan::Plan plan = PlanOf(spec);
    const plan::PassCost cost = CostBehindEmbedding(plan, share);
    const PassSeconds pass = SecondsBehindEmbedding(plan, ProductsAlone());
    ExpectFlops(pass.forward, cost.forward);
    ExpectFlops(pass.backward_input, cost.backward_input);
    ExpectFlops(pass.backward_weight, cost.backward_weight);
  }
}

TEST(WorkModelTest, Part_RowsWithoutLabel_ArePutBackForLessThanTheyCost) {
  job::JobSpec spec = SmallDecoder();
  const PassSeconds all = SecondsBehindEmbedding(PlanOf(spec), NominalProfile());
  spec.batch.labelled_share = 0.5;
  const PassSeconds half = SecondsBehindEmbedding(PlanOf(spec), NominalProfile());
  EXPECT_LT(half.forward, all.forward);
  EXPECT_LT(half.backward_input, all.backward_input);
  EXPECT_LT(half.backward_weight, all.backward_weight);
}

TEST(WorkModelTest, Part_RecomputationOfTheLastLayer_IsOfItsOwnRows) {
  job::JobSpec spec = SmallDecoder();
  spec.batch.labelled_share = 0.25;
  const plan::Plan plan = PlanOf(spec);
  const job::Module& module = plan.module_spec(0);
  const auto length = static_cast<double>(module.architecture.context);
  const double layer = plan::LayerCost(module, kRows, length).forward;
  const double head = plan::HeadCost(module, 0.25 * kRows).forward;
  const PassSeconds pass = SecondsBehindEmbedding(plan, ProductsAlone(), job::Recompute::kFull);
  // Of the three products behind a layer's second norm the last is not computed again.
  const double down = plan::MlpCost(module, (kLayers - 1 + 0.25) * kRows).forward / 3;
  ExpectFlops(pass.recompute, CostBehindEmbedding(plan, 0.25).forward - head - down);
  EXPECT_LT(pass.recompute * kNominalFlops, kLayers * layer);
}

TEST(WorkModelTest, SelectiveRecomputation_IsOfPointwiseWorkAlone) {
  const plan::Plan plan = PlanOf(SmallDecoder());
  const job::Recompute selective = job::Recompute::kSelective;
  const PassSeconds products = SecondsBehindEmbedding(plan, ProductsAlone(), selective);
  EXPECT_LT(products.recompute, 1e-6 * products.forward);
  EXPECT_GT(SecondsBehindEmbedding(plan, NominalProfile(), selective).recompute, 0);
}

TEST(WorkModelTest, Fp8_ProductsOfDecoderLayersGoAtItsRate) {
  job::JobSpec spec = SmallDecoder();
  spec.linear = job::LinearFormat::kFp8;
  const plan::Plan plan = PlanOf(spec);
  const plan::PassCost cost = CostBehindEmbedding(plan, 1);
  const plan::PassCost linear = plan::LayerCost(plan.module_spec(0), kRows, 0);  // no scores
  const PassSeconds pass = SecondsBehindEmbedding(plan, ProductsAlone());
  ExpectFlops(pass.forward, cost.forward - kLayers * linear.forward / 2);
  ExpectFlops(pass.backward_input, cost.backward_input - kLayers * linear.backward_input / 2);
  ExpectFlops(pass.backward_weight, cost.backward_weight - kLayers * linear.backward_weight / 2);
}

TEST(WorkModelTest, Fp8_WeightsAreRoundedOnceAStep) {
  job::JobSpec spec = SmallDecoder();
  const DeviceProfile profile = NominalProfile();
  const PartCost before = CostFromProfile(PlanOf(spec), profile, 1).parts[0][0];
  EXPECT_EQ(before.prepare, 0);
  spec.linear = job::LinearFormat::kFp8;
  const plan::Plan plan = PlanOf(spec);
  const double weights = plan::LayerCost(plan.module_spec(0), 0.5, 0).forward;
  const double rounding = kLayers * 6 * weights / profile.fp8->cast_bytes_per_second;
  EXPECT_NEAR(WorkModel(spec, profile, 1).RoundingSeconds(0, kLayers, 1), rounding,
              1e-9 * rounding);
  const PartCost cost = CostFromProfile(plan, profile, 1).parts[0][0];
  EXPECT_NEAR(cost.prepare, rounding, 1e-9 * rounding);
  EXPECT_EQ(cost.update, before.update);
}

TEST(WorkModelTest, Fp8_ALargestMagnitudeThatNobodyKnowsIsFoundByAPass) {
  // Of four operands forward attention's output alone.
  job::JobSpec spec = SmallDecoder();
  spec.linear = job::LinearFormat::kFp8;
  DeviceProfile profile = ProductsAlone();
  const job::Architecture& a = spec.modules[0].architecture;
  const PartShape layer = {.module = 0, .layers = 1, .rows = kRows};
  const PassSeconds free = WorkModel(spec, profile, 1).OfPart(layer);
  profile.fp8->cast_bytes_per_second = 1e9;
  const PassSeconds cast = WorkModel(spec, profile, 1).OfPart(layer);
  const double hidden = static_cast<double>(a.hidden_size), mlp = static_cast<double>(a.mlp_size);
  EXPECT_NEAR(cast.forward - free.forward, 4 * kRows * (3 * hidden + mlp) / 1e9, 1e-12);
  profile.fp8->cast_bytes_per_second = 1e300;
  profile.memory_bytes_per_second = 1e9;
  job::JobSpec plain = spec;
  plain.linear = job::LinearFormat::kCompute;
  const PassSeconds in_fp8 = WorkModel(spec, profile, 1).OfPart(layer);
  const PassSeconds in_bf16 = WorkModel(plain, profile, 1).OfPart(layer);
  const PassSeconds products = WorkModel(plain, ProductsAlone(), 1).OfPart(layer);
  EXPECT_NEAR((in_fp8.forward - free.forward) - (in_bf16.forward - products.forward),
              2 * kRows * hidden / 1e9, 1e-12);
}

// Four operands in one form each time, where both at once move four bytes an element: forward as
// counted, and half as much again. Attention's output is looked through once more.
TEST(WorkModelTest, Fp8_WhatIsComputedAgainIsRoundedAgain) {
  job::JobSpec spec = SmallDecoder();
  spec.linear = job::LinearFormat::kFp8;
  DeviceProfile profile = ProductsAlone();
  const job::Architecture& a = spec.modules[0].architecture;
  const double hidden = static_cast<double>(a.hidden_size), mlp = static_cast<double>(a.mlp_size);
  const auto again = [&](job::Recompute recompute) {
    const PartShape layer = {.module = 0, .layers = 1, .rows = kRows, .recompute = recompute};
    return WorkModel(spec, profile, 1).OfPart(layer).recompute;
  };
  const double products = again(job::Recompute::kFull);
  profile.fp8->cast_bytes_per_second = 1e9;
  EXPECT_NEAR(again(job::Recompute::kSelective), 2 * kRows * (3 * hidden + mlp) / 1e9, 1e-12);
  // Of three operands twice four bytes are counted where seven are moved; of the last product's
  // that are six, and four are counted.
  EXPECT_NEAR(again(job::Recompute::kFull) - products,
              kRows * (4 * 3 * hidden - 3 * hidden + 2 * mlp) / 1e9, 1e-12);
  profile.fp8->cast_bytes_per_second = 1e300;
  profile.memory_bytes_per_second = 1e9;
  job::JobSpec plain = spec;
  plain.linear = job::LinearFormat::kCompute;
  const PartShape layer = {
      .module = 0, .layers = 1, .rows = kRows, .recompute = job::Recompute::kSelective};
  EXPECT_NEAR(
      again(job::Recompute::kSelective) - WorkModel(plain, profile, 1).OfPart(layer).recompute,
      2 * kRows * hidden / 1e9, 1e-12);
}

TEST(WorkModelTest, Weights_OfTheFirstMicrobatch_AreWritten) {
  const plan::Plan plan = PlanOf(SmallDecoder());
  DeviceProfile profile = ProductsAlone();
  for (ProductTimes& product : profile.products)
    product.weight_gradient_written = product.weight_gradient / 2;
  WorkModel model(plan.spec, profile, 1);
  const auto weights = [&](int64_t microbatches) {
    return model
        .OfPart({.module = 0, .layers = kLayers, .rows = kRows, .microbatches = microbatches})
        .backward_weight;
  };
  const double added = weights(int64_t{1} << 40);
  EXPECT_NEAR(weights(1), added / 2, 1e-9 * added);
  EXPECT_NEAR(weights(4), added * (3 + 0.5) / 4, 1e-9 * added);
}

TEST(WorkModelTest, Fp8_EncodersStayAsTheyAre) {
  job::JobSpec spec = AJob()
                          .Module("vision", ClipVision())
                          .Module("language", Llama({.layers = kLayers}))
                          .Edge("vision", "language", {.projector = 32})
                          .Batch(8, 1);
  const PartShape vision = {.module = 0, .rows = kRows};
  const double before = WorkModel(spec, NominalProfile(), 1).OfModule(vision).total();
  spec.linear = job::LinearFormat::kFp8;
  WorkModel model(spec, NominalProfile(), 1);
  EXPECT_EQ(model.OfModule(vision).total(), before);
  EXPECT_EQ(model.RoundingSeconds(0, 2, 1), 0);
}

}  // namespace
}  // namespace phalanx::schedule
