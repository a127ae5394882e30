#include "core/plan/cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "core/plan/bucket_order.h"
#include "core/plan/parameters.h"
#include "tests/support/specs.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::ClipVision;
using support::LargeLlama;
using support::Llama;
using support::Regressor;
using support::Whisper;
using ::testing::ElementsAre;

job::Module ModuleOf(const job::Architecture& architecture) {
  job::Module module;
  module.architecture = architecture;
  return module;
}

double AllRows(const Plan& plan, const StepRows& rows) { return FlopsOf(plan, rows).all_rows; }

// A job of one module, whose positions are held to labels as far as `labelled_share`.
job::JobSpec JobOf(const job::Architecture& architecture, double labelled_share = 1) {
  AJob job;
  job.Module("language", architecture).spec().batch.labelled_share = labelled_share;
  return job;
}

TEST(CostTest, LayerCost_OfADecoder_CountsTwoAMultiplyAddAndHalfTheScores) {
  // hidden 32, 8 query heads and 2 KV heads of 4, MLP 64.
  const PassCost cost = LayerCost(ModuleOf(Llama()), 10, 20);
  const double weights = 32 * (32 + 8 + 8 + 32) + 3 * 32 * 64;
  const double attention = 2 * 2 * 10 * 20 * 32 / 2.0;
  EXPECT_DOUBLE_EQ(cost.forward, 2 * 10 * weights + attention);
  EXPECT_DOUBLE_EQ(cost.backward_input, 2 * 10 * weights + 2 * attention);
  EXPECT_DOUBLE_EQ(cost.backward_weight, 2 * 10 * weights);
}

TEST(CostTest, StepFlops_OfADecoder_IsThreeForwards) {
  const Plan plan =
      MustPlan(AJob().Module("language", Llama({.layers = 3}), {.tp = 2, .pp = 3}).Batch(4, 1));
  const double tokens = 4 * 16;
  const job::Module module = ModuleOf(Llama({.layers = 3}));
  const double forward =
      3 * LayerCost(module, tokens, 16).forward + HeadCost(module, tokens).forward;
  const double lookup = 2 * tokens * 32;  // the embedding's rows, read and added
  EXPECT_DOUBLE_EQ(AllRows(plan, {.tokens = tokens}), 3 * forward + lookup);
}

TEST(CostTest, StepFlops_OfFrozenEncoder_LeavesItsBackwardOut) {
  const auto flops = [](bool frozen, bool frozen_projector) {
    const Plan plan =
        MustPlan(AJob()
                     .Module("vision", ClipVision(), {.frozen = frozen})
                     .Module("language", Llama())
                     .Edge("vision", "language", {.projector = 32, .frozen = frozen_projector})
                     .Batch(2, 1));
    return AllRows(plan, {.images = 5});  // the language module costs nothing without tokens
  };
  const job::Module vision = ModuleOf(ClipVision());
  const double forward =
      2 * LayerCost(vision, 5 * 4, 4).forward + EmbeddingCost(vision, 5 * 4).forward;
  const double projector = 2 * 5 * 4 * 32 * (32 + 32.0);
  EXPECT_DOUBLE_EQ(flops(true, true), forward + projector);
  // Its weight gradients, and back through its second layer for those of the first.
  EXPECT_DOUBLE_EQ(flops(true, false), forward + 2.5 * projector);
  EXPECT_GT(flops(false, false), 2.5 * flops(true, true));
}

TEST(CostTest, StepFlops_OfPicturesAndSounds_CountsEachWhereItIsRead) {
  const auto flops = [](bool vision, bool audio) {
    auto job = AJob();
    if (vision) job.Module("vision", ClipVision());
    if (audio) job.Module("audio", Whisper());
    job.Module("language", Llama());
    if (vision) job.Edge("vision", "language", {.projector = 32});
    if (audio) job.Edge("audio", "language", {.projector = 32});
    return AllRows(MustPlan(job.Batch(2, 1)), {.images = 5, .sounds = 3});
  };
  EXPECT_DOUBLE_EQ(flops(true, true), flops(true, false) + flops(false, true));
}

TEST(CostTest, PartCost_OfAFrozenModule_DependsOnWhatIsBefore) {
  const auto cost = [](bool vision_frozen, bool projector_frozen) {
    const Plan plan =
        MustPlan(AJob()
                     .Module("vision", ClipVision(), {.frozen = vision_frozen})
                     .Module("language", Llama(), {.frozen = true})
                     .Edge("vision", "language", {.projector = 32, .frozen = projector_frozen}));
    return PartCost(plan, {.module = 1}, 1, 10, 5);
  };
  EXPECT_EQ(cost(true, true).backward_input, 0);
  EXPECT_GT(cost(true, false).backward_input, cost(true, false).forward);
  EXPECT_EQ(cost(false, true).backward_input, cost(true, false).backward_input);
  EXPECT_EQ(cost(false, false).backward_weight, 0);
}

TEST(CostTest, EmbeddingCost_OfWhisper_IsTwoConvolutions) {
  // 8 frames of 5 bins make 4 rows of 32.
  const PassCost cost = EmbeddingCost(ModuleOf(Whisper()), 4);
  const double first = 2 * 8 * 3 * 5 * 32, second = 2 * 4 * 3 * 32 * 32;
  EXPECT_DOUBLE_EQ(cost.forward, first + second);
  EXPECT_DOUBLE_EQ(cost.backward_weight, first + second);
  EXPECT_DOUBLE_EQ(cost.backward_input, second) << "nobody asks for the gradient of a sound";
}

TEST(CostTest, StepFlops_OfLanguageAndRegressor_CountBothHeads) {
  const auto flops = [](bool regressor_frozen) {
    return AllRows(MustPlan(AJob()
                                .Module("language", Llama({.layers = 3}))
                                .Module("regressor", Regressor({.layers = 2}),
                                        {.tp = 2, .frozen = regressor_frozen})
                                .Edge("language", "regressor")
                                .Batch(4, 1)),
                   {.tokens = 4 * 16});
  };
  const double rows = 4 * 16, lookup = 2 * rows * 32;
  const job::Module language = ModuleOf(Llama()), regressor = ModuleOf(Regressor());
  const double first = 3 * LayerCost(language, rows, 16).forward + HeadCost(language, rows).forward;
  const double predict = 2 * rows * 32 * 32;
  const double second = 2 * LayerCost(regressor, rows, 16).forward + predict;
  EXPECT_DOUBLE_EQ(flops(false), 3 * first + 3 * second + lookup);
  const double weights = 2 * LayerCost(regressor, rows, 16).backward_weight + predict;
  EXPECT_DOUBLE_EQ(flops(true), 3 * first + 3 * second + lookup - weights);
}

// The dearest part of the split, against every split there is.
TEST(CostTest, BalanceLayers_OfSmallModules_IsOptimal) {
  for (int64_t vocabulary : {8, 96, 1000}) {
    for (int32_t layers = 1; layers <= 9; ++layers) {
      const job::Module module = ModuleOf(Llama({.layers = layers, .vocabulary = vocabulary}));
      const auto sum = [](const PassCost& c) {
        return c.forward + c.backward_input + c.backward_weight;
      };
      const double layer = sum(LayerCost(module, 1, 32));
      for (int32_t parts = 1; parts <= std::min(layers, 4); ++parts) {
        const auto dearest = [&](const std::vector<int32_t>& counts) {
          double most = 0;
          for (size_t i = 0; i < counts.size(); ++i) {
            double cost = counts[i] * layer;
            if (i == 0) cost += sum(EmbeddingCost(module, 1));
            if (i + 1 == counts.size()) cost += sum(HeadCost(module, 1));
            most = std::max(most, cost);
          }
          return most;
        };
        double best = 1e300;
        std::vector<int32_t> counts;
        const std::function<void(int32_t)> extend = [&](int32_t rest) {
          if (static_cast<int32_t>(counts.size()) == parts) {
            if (rest == 0) best = std::min(best, dearest(counts));
            return;
          }
          for (int32_t count = 1; count <= rest; ++count) {
            counts.push_back(count);
            extend(rest - count);
            counts.pop_back();
          }
        };
        extend(layers);
        EXPECT_NEAR(dearest(BalanceLayers(JobOf(module.architecture), 0, parts)), best,
                    best * 1e-12)
            << layers << "/" << parts;
      }
    }
  }
}

TEST(CostTest, BalanceLayers_WithoutArchitecture_IsEven) {
  EXPECT_THAT(BalanceLayers(JobOf(support::NoArchitecture(7)), 0, 3), ElementsAre(3, 2, 2));
  EXPECT_THAT(BalanceLayers(JobOf(support::NoArchitecture()), 0, 2), ElementsAre(0, 0));
}

// A head as dear as four layers.
TEST(CostTest, BalanceLayers_WhereFewRowsAreLabelled_GivesThePartWithTheHeadMore) {
  const job::Architecture architecture = Llama({.layers = 12, .vocabulary = 1200});
  EXPECT_THAT(BalanceLayers(JobOf(architecture), 0, 2), ElementsAre(8, 4));
  EXPECT_THAT(BalanceLayers(JobOf(architecture, 0), 0, 2), ElementsAre(6, 6));
}

// Behind the last layer's attention a quarter of the rows goes on: its output's product, its MLP,
// the head.
TEST(CostTest, Flops_AsExecuted_LeaveOutWhatRowsWithoutLabelDoNotNeed) {
  const Plan plan = MustPlan(AJob().Module("language", Llama(), {.pp = 2}).Batch(4, 1));
  const StepFlops flops = FlopsOf(plan, {.tokens = 64, .labelled = 16});
  EXPECT_DOUBLE_EQ(flops.all_rows, FlopsOf(plan, {.tokens = 64, .labelled = 64}).executed);
  const double products = 32 * 32 + 3 * 32 * 64 + 32 * 96;
  EXPECT_DOUBLE_EQ(flops.all_rows - flops.executed, 3 * 2 * (64 - 16) * products);
}

TEST(CostTest, Flops_AsExecuted_WhereAnEdgeLeaves_LeaveOutLogitsAlone) {
  const Plan plan = MustPlan(AJob()
                                 .Module("language", Llama())
                                 .Module("regressor", Regressor())
                                 .Edge("language", "regressor")
                                 .Batch(4, 1));
  const StepFlops flops = FlopsOf(plan, {.tokens = 64, .labelled = 16});
  EXPECT_NEAR(flops.all_rows - flops.executed, 3 * 2 * (64 - 16) * 32 * 96, 1e-6);
}

TEST(CostTest, PartCost_TakesTheShareThatTheJobSays) {
  job::JobSpec spec = AJob().Module("language", Llama(), {.tp = 2, .pp = 2});
  spec.batch.labelled_share = 0.25;
  const Plan plan = MustPlan(spec);
  const auto forward = [&](int32_t stage, double share) {
    return PartCost(plan, {0, stage, 0}, 2, 10, 5, share).forward;
  };
  EXPECT_EQ(PartCost(plan, {0, 1, 0}, 2, 10, 5).forward, forward(1, 0.25));
  EXPECT_LT(forward(1, 0.25), forward(1, 1));
  EXPECT_EQ(forward(0, 0.25), forward(0, 1));
}

TEST(CostTest, UpdateCost_OfSharedKvHeads_IsThatOfTheRankWithMost) {
  // 3, 3 and 2 query heads; the rank in the middle has some of both KV heads.
  const Plan plan = MustPlan(AJob().Module("language", Llama(), {.tp = 3, .dp = 3}).Batch(3, 1));
  const Place first{.module = 0, .width = 3}, middle{.module = 0, .tp = 1, .width = 3};
  const int64_t extent = ParametersOf(plan, middle).trained_extent;
  EXPECT_GT(extent, ParametersOf(plan, first).trained_extent);
  EXPECT_EQ(UpdateCost(plan, {0, 0, 0}).reduced, static_cast<double>(extent) * 2 / 3 * 4);
}

TEST(CostTest, UpdateCost_SumsOfTheShareAreReadForTheirNormAndForTheUpdate) {
  const Plan plan = MustPlan(AJob().Module("language", Llama(), {.dp = 4}).Batch(4, 1));
  const StageParameters parameters = ParametersOf(plan, Place{.module = 0});
  const double share = static_cast<double>(parameters.LedElements()) / 4;
  const UpdateBytes bytes = UpdateCost(plan, {0, 0, 0});
  EXPECT_EQ(bytes.updated, share * (7 * 4 + 4));  // fp32
  EXPECT_EQ(bytes.normed, share * 4);
}

TEST(CostTest, UpdateCost_WhereEveryReplicaIsHome_UpdatesAllAndGathersNothing) {
  AJob job;
  job.Module("language", Llama(), {.dp = 2}).Batch(2, 1);
  job.spec().recovery.state_copies = 1;
  const UpdateBytes one = UpdateCost(MustPlan(job), {0, 0, 0});
  job.spec().recovery.state_copies = 2;
  const UpdateBytes two = UpdateCost(MustPlan(job), {0, 0, 0});
  EXPECT_GT(one.gathered, 0);
  EXPECT_EQ(two.gathered, 0);
  EXPECT_EQ(two.reduced, 2 * one.reduced) << "both get all sums";
  EXPECT_EQ(two.mirror_sums, 0) << "in one collective, which is waited for";
  EXPECT_EQ(two.updated, 2 * one.updated);
  EXPECT_EQ(two.normed, one.normed);
}

// Each mirror is given the sums of its primary's share, and follows it.
TEST(CostTest, UpdateCost_OfMirrors_IsOfTheirSharesBesideThePrimaries) {
  AJob job;
  job.Module("language", Llama(), {.dp = 4}).Batch(4, 1);
  const auto of_homes = [&](int32_t homes) {
    job.spec().recovery.state_copies = homes;
    return UpdateCost(MustPlan(job), {0, 0, 0});
  };
  const UpdateBytes one = of_homes(1), two = of_homes(2), all = of_homes(4);
  EXPECT_EQ(one.mirror_sums, 0);
  EXPECT_EQ(one.mirror_updates, 0);
  EXPECT_EQ(two.mirror_sums, one.normed);
  EXPECT_EQ(two.mirror_updates, one.updated * 7 / 8) << "but for weights, in fp32";
  EXPECT_EQ(two.reduced, one.reduced);
  EXPECT_EQ(all.reduced, 2 * one.reduced);
  EXPECT_EQ(all.mirror_sums, 0) << "they are among those that are waited for";
  EXPECT_EQ(all.mirror_updates, 0) << "they write weights, and passes wait for them";
}

// A matrix of each layer is larger than a bucket of several may be.
TEST(CostTest, UpdateCost_Shares_AreThoseOfTheBucketsInTheirOrder) {
  const Plan plan =
      MustPlan(AJob()
                   .Module("language",
                           LargeLlama({.layers = 4, .vocabulary = 32000, .context = 32}), {.dp = 2})
                   .Batch(2, 1));
  std::vector<int32_t> complete, needed;
  double all = 0;
  for (const UpdateShare& share : UpdateCost(plan, {0, 0, 0}).shares) {
    complete.push_back(share.complete_behind);
    needed.push_back(share.needed_before);
    all += share.of_all;
  }
  // The last layer with the head behind it, the other layers, the embedding.
  EXPECT_THAT(complete, ElementsAre(1, 2, 3, 4, kBehindPass));
  EXPECT_THAT(needed, ElementsAre(3, 2, 1, 0, 0));
  EXPECT_NEAR(all, 1, 1e-12);
}

TEST(CostTest, UpdateCost_WithoutCollectivesOfEqualReplicas_HasNoShares) {
  const auto shares = [](support::Layout layout) {
    return UpdateCost(MustPlan(AJob().Module("language", Llama(), layout).Batch(4, 1)), {0, 0, 0})
        .shares;
  };
  EXPECT_TRUE(shares({}).empty()) << "nobody to sum with";
  ASSERT_EQ(shares({.tp = 2, .dp = 2}).size(), 1u) << "copies are folded first";
  EXPECT_EQ(shares({.tp = 2, .dp = 2})[0].of_all, 1);
  EXPECT_EQ(shares({.tp = 2, .dp = 2})[0].complete_behind, kBehindPass);
}

}  // namespace
}  // namespace phalanx::plan
