// Stages of module graphs, with frozen modules and recomputation, give the plain model's losses and
// gradients, in fp64 to 1e-9.
#include <gtest/gtest.h>

#include <string>

#include "tests/oracle/model_harness.h"
#include "tests/oracle/random_microbatch.h"
#include "tests/support/specs.h"

namespace phalanx::oracle {
namespace {

using job::Recompute;
using support::AJob;
using support::ClipVision;
using support::Layout;
using support::Llama;
using support::Regressor;
using support::Whisper;

const Layout kLayouts[] = {{}, {.tp = 2}, {.tp = 3}, {.tp = 2, .pp = 2}};

std::string NameOf(const Layout& layout) {
  return "tp " + std::to_string(layout.tp) + " pp " + std::to_string(layout.pp);
}

Layout With(Layout layout, bool frozen, Recompute recompute = Recompute::kNone) {
  layout.frozen = frozen;
  layout.recompute = recompute;
  return layout;
}

TEST(GraphTest, AudioAndLanguage_EachLayout_EqualsPlainModel) {
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(NameOf(layout));
    ExpectSameAsPlain(AJob()
                          .Module("audio", Whisper({.mlp_size = 61}), layout)
                          .Module("language", Llama(), {.tp = 2})
                          .Edge("audio", "language", {.projector = 45}));
    ExpectSameAsPlain(AJob()
                          .Module("audio", Whisper({.mel_bins = 3, .frames = 6}), layout)
                          .Module("language", Llama())
                          .Edge("audio", "language"));
  }
}

TEST(GraphTest, Regressor_EachLayout_EqualsPlainModel) {
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(NameOf(layout));
    AJob job;
    job.Module("language", Llama({.tied_head = true}), {.tp = 2, .pp = 2})
        .Module("regressor", Regressor({.hidden_size = 48, .layers = 2, .heads = 6}), layout)
        .Edge("language", "regressor", {.projector = 45});
    job.spec().modules[1].loss_weight = 0.75;
    ExpectSameAsPlain(job);
  }
}

TEST(GraphTest, RegressorWithoutProjector_TakesHiddenStates) {
  ExpectSameAsPlain(AJob()
                        .Module("language", Llama())
                        .Module("regressor", Regressor(), {.tp = 3})
                        .Edge("language", "regressor"));
}

// Two sinks, and a regressor between language and another that has no loss of its own.
TEST(GraphTest, Regressors_InAChainAndBeside_EqualPlainModel) {
  ExpectSameAsPlain(AJob()
                        .Module("language", Llama(), {.tp = 2})
                        .Module("middle", Regressor({.layers = 2}), {.pp = 2})
                        .Module("last", Regressor({.layers = 1}), {.tp = 2})
                        .Module("other", Regressor({.layers = 1}))
                        .Edge("language", "middle", {.projector = 40})
                        .Edge("middle", "last")
                        .Edge("language", "other", {.projector = 32}));
}

// The regressor gets an image's rows and the language module's at the same positions: they add up.
TEST(GraphTest, EncoderOfTwoModules_EachLayout_EqualsPlainModel) {
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(NameOf(layout));
    ExpectSameAsPlain(AJob()
                          .Module("vision", ClipVision(), layout)
                          .Module("audio", Whisper(), {.tp = 2})
                          .Module("language", Llama({.context = 64}), {.tp = 2})
                          .Module("regressor", Regressor({.layers = 2, .context = 64}), layout)
                          .Edge("vision", "language", {.projector = 40})
                          .Edge("vision", "regressor")
                          .Edge("audio", "language")
                          .Edge("language", "regressor", {.projector = 32})
                          .Edge("audio", "regressor", {.projector = 48}));
  }
}

TEST(GraphTest, MicrobatchesWithoutItems_LeaveNoGradient) {
  // The second microbatch has none.
  ExpectSameAsPlain(AJob()
                        .Module("vision", ClipVision(), {.tp = 2, .pp = 2})
                        .Module("audio", Whisper(), {.pp = 2})
                        .Module("language", Llama({.context = 64}))
                        .Module("regressor", Regressor({.layers = 2}))
                        .Edge("vision", "language", {.projector = 32})
                        .Edge("audio", "language", {.projector = 24})
                        .Edge("language", "regressor")
                        .Edge("vision", "regressor"),
                    /*items=*/1);
}

// Everything at one layout, `frozen` a bit each of vision, audio, language, regressor, and the
// projectors vision -> language and language -> regressor.
job::JobSpec FrozenJob(int32_t frozen, const Layout& layout,
                       Recompute recompute = Recompute::kNone) {
  const auto bit = [frozen](int32_t index) { return (frozen >> index & 1) != 0; };
  return AJob()
      .Module("vision", ClipVision(), With(layout, bit(0), recompute))
      .Module("audio", Whisper(), With(layout, bit(1), recompute))
      .Module("language", Llama({.context = 64}), With(layout, bit(2), recompute))
      .Module("regressor", Regressor({.layers = 2}), With(layout, bit(3), recompute))
      .Edge("vision", "language", {.projector = 32, .frozen = bit(4)})
      .Edge("audio", "language")
      .Edge("language", "regressor", {.projector = 32, .frozen = bit(5)});
}
constexpr int32_t kFrozenJobs = 64;

TEST(GraphTest, Frozen_EveryCombination_EqualsPlainModel) {
  for (int32_t frozen = 0; frozen < kFrozenJobs; ++frozen) {
    SCOPED_TRACE(frozen);
    ExpectSameAsPlain(FrozenJob(frozen, {.pp = frozen % 2 + 1}));
  }
}

TEST(GraphTest, Frozen_OverTensorRanks_EqualsPlainModel) {
  for (const int32_t frozen : {0b000001, 0b110100, 0b011011, 0b001111, 0b000111, 0b101101}) {
    SCOPED_TRACE(frozen);
    ExpectSameAsPlain(FrozenJob(frozen, {.tp = 2, .pp = 2}));
    ExpectSameAsPlain(FrozenJob(frozen, {.tp = 3}));
  }
}

TEST(GraphTest, Frozen_WithRecomputation_EqualsPlainModel) {
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    for (const int32_t frozen : {0, 0b000001, 0b000100, 0b001111}) {
      SCOPED_TRACE(frozen);
      ExpectSameAsPlain(FrozenJob(frozen, {.tp = 2, .pp = 2}, recompute));
    }
  }
}

TEST(GraphTest, Recomputation_OfEveryLayout_GivesTheSameBits) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const Layout& layout : kLayouts) {
      SCOPED_TRACE(NameOf(layout));
      const auto gradients = [&](Recompute recompute) {
        const job::JobSpec spec = FrozenJob(0, layout, recompute);
        StageWorld world(spec, type);
        world.RunStep(0, RandomMicrobatch(spec, {}, type));
        return world.Gradients();
      };
      const NamedTensors expected = gradients(Recompute::kNone);
      EXPECT_EQ(LargestError(gradients(Recompute::kSelective), expected), 0);
      EXPECT_EQ(LargestError(gradients(Recompute::kFull), expected), 0);
    }
  }
}

TEST(GraphTest, PartWithoutBackward_LeavesItsSlotFree) {
  const job::JobSpec spec = FrozenJob(0b111111, {.tp = 2, .pp = 2});
  StageWorld world(spec, at::kDouble);
  const PlainMicrobatch batch = RandomMicrobatch(spec, {}, at::kDouble);
  const double loss = world.Forward(0, batch);
  EXPECT_EQ(world.Forward(0, batch), loss);  // would be refused if the slot were in use
  EXPECT_GT(loss, 0);
}

TEST(GraphTest, FrozenWeights_InputsTrain_SlotIsFreeAfterBackwardInput) {
  const job::JobSpec spec = AJob()
                                .Module("vision", ClipVision())
                                .Module("language", Llama(), {.frozen = true})
                                .Edge("vision", "language");
  StageWorld world(spec, at::kDouble);
  const PlainMicrobatch batch = RandomMicrobatch(spec, {}, at::kDouble);
  world.Forward(0, batch);
  world.BackwardInput(0);
  world.BackwardWeight(0, 0);
  const double loss = world.Forward(0, batch);
  EXPECT_GT(loss, 0);
}

TEST(GraphTest, Evaluate_OfRegressor_GivesItsLossAndItsHiddenStates) {
  const job::JobSpec spec = AJob()
                                .Module("language", Llama())
                                .Module("regressor", Regressor(), {.tp = 2})
                                .Edge("language", "regressor", {.projector = 32});
  const PlainModel plain(spec, at::kDouble);
  StageWorld world(spec, at::kDouble);
  const PlainMicrobatch batch = RandomMicrobatch(spec, {}, at::kDouble);
  const model::StageOutput output = world.Evaluate(batch);
  EXPECT_TRUE(at::equal(output.predicted, plain.Logits(plain.Hidden(batch)).argmax(-1).flatten()));
  EXPECT_EQ(output.hidden.at(0).size(0), batch.positions[0].size(0));
  EXPECT_NEAR(world.Forward(0, batch), plain.Loss(batch).item<double>(), 1e-9);
}

TEST(GraphTest, Bf16_FollowsFp32) {
  const job::JobSpec spec = FrozenJob(0, {.tp = 2});
  StageWorld exact(spec, at::kFloat), rounded(spec, at::kBFloat16);
  const double loss = exact.RunStep(0, RandomMicrobatch(spec, {}, at::kFloat));
  EXPECT_NEAR(rounded.RunStep(0, RandomMicrobatch(spec, {}, at::kBFloat16)) / loss, 1, 2e-2);
  const NamedTensors gradients = rounded.Gradients();
  for (const auto& [name, expected] : exact.Gradients()) {
    if (name.find("k_proj.bias") != std::string::npos) continue;  // a true gradient of zero
    const at::Tensor error = (gradients.at(name) - expected).norm() / expected.norm();
    EXPECT_LT(error.item<double>(), 0.1) << name;
  }
}

}  // namespace
}  // namespace phalanx::oracle
