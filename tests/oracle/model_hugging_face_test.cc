// The oracle and the engine give what Hugging Face transformers gives, in fp32 to 1e-5.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "tests/oracle/fixture.h"
#include "tests/oracle/model_harness.h"
#include "tests/support/specs.h"

namespace phalanx::oracle {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;

constexpr double kTolerance = 1e-5;

void LoadInto(PlainModel& model, const NamedTensors& weights) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, value] : weights) model.parameters().at(name).copy_(value);
}

double Error(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

struct LlamaCase {
  const char* fixture;
  bool tied;
  support::Layout layout;
};

class LlamaTest : public testing::TestWithParam<LlamaCase> {};

job::JobSpec SpecOf(const LlamaCase& test) {
  return AJob().Module("language",
                       Llama({.hidden_size = 16,
                              .layers = 2,
                              .heads = 4,
                              .kv_heads = 2,
                              .mlp_size = 24,
                              .block = 5,
                              .vocabulary = 32,
                              .context = 16,
                              .tied_head = test.tied}),
                       test.layout);
}

PlainMicrobatch BatchOf(const NamedTensors& fixture) {
  PlainMicrobatch batch;
  batch.tokens = fixture.at("tokens");
  batch.labels = fixture.at("labels");
  batch.label_weights = fixture.at("label_weights");
  return batch;
}

TEST_P(LlamaTest, Oracle_EqualsTransformers) {
  const NamedTensors fixture = ReadFixture(GetParam().fixture);
  PlainModel plain(SpecOf(GetParam()), at::kFloat);
  LoadInto(plain, Select(fixture, "weight/", "language"));
  const PlainMicrobatch batch = BatchOf(fixture);
  EXPECT_LT(Error(plain.Logits(plain.Hidden(batch)), fixture.at("logits")), kTolerance);
  EXPECT_LT(Error(plain.Loss(batch), fixture.at("loss")), kTolerance);
  plain.Accumulate(batch);
  EXPECT_LT(LargestError(plain.Gradients(), Select(fixture, "gradient/", "language")), kTolerance);
}

TEST_P(LlamaTest, Stages_EqualTransformers) {
  const NamedTensors fixture = ReadFixture(GetParam().fixture);
  StageWorld world(SpecOf(GetParam()), at::kFloat);
  world.LoadWeights(Select(fixture, "weight/", "language"));
  const double loss = world.RunStep(0, BatchOf(fixture));
  EXPECT_NEAR(loss / fixture.at("loss").item<double>(), 1, kTolerance);
  EXPECT_LT(LargestError(world.Gradients(), Select(fixture, "gradient/", "language")), kTolerance);
}

INSTANTIATE_TEST_SUITE_P(Layouts, LlamaTest,
                         testing::Values(LlamaCase{"llama.bin", false, {}},
                                         LlamaCase{"llama.bin", false, {.tp = 3}},
                                         LlamaCase{"llama.bin", false, {.tp = 2, .pp = 2}},
                                         LlamaCase{"llama_tied.bin", true, {}},
                                         LlamaCase{"llama_tied.bin", true, {.tp = 2, .pp = 2}}));

class ClipVisionTest : public testing::TestWithParam<support::Layout> {};

job::JobSpec VisionSpec(const support::Layout& layout) {
  return AJob()
      .Module("vision",
              ClipVision({.hidden_size = 16, .layers = 2, .heads = 4, .mlp_size = 24, .block = 5}),
              layout)
      .Module("language", Llama({.hidden_size = 16}))
      .Edge("vision", "language");
}

// Gradients of the vision module alone.
NamedTensors OfVision(NamedTensors tensors) {
  std::erase_if(tensors, [](const auto& entry) { return entry.first.rfind("vision/", 0) != 0; });
  return tensors;
}

TEST_P(ClipVisionTest, Oracle_EqualsTransformers) {
  const NamedTensors fixture = ReadFixture("clip_vision.bin");
  PlainModel plain(VisionSpec(GetParam()), at::kFloat);
  LoadInto(plain, Select(fixture, "weight/", "vision"));
  const at::Tensor features = plain.Features(0, fixture.at("pixels"));
  EXPECT_LT(Error(features, fixture.at("features").flatten(0, 1)), kTolerance);
  features.backward(fixture.at("features_gradient").flatten(0, 1));
  EXPECT_LT(LargestError(OfVision(plain.Gradients()), Select(fixture, "gradient/", "vision")),
            kTolerance);
}

TEST_P(ClipVisionTest, Stages_EqualTransformers) {
  const NamedTensors fixture = ReadFixture("clip_vision.bin");
  const job::JobSpec spec = VisionSpec(GetParam());
  StageWorld world(spec, at::kFloat);
  NamedTensors weights = PlainModel(spec, at::kFloat).parameters();
  for (const auto& [name, value] : Select(fixture, "weight/", "vision")) weights[name] = value;
  world.LoadWeights(weights);
  PlainMicrobatch batch;
  batch.pixels = {fixture.at("pixels"), {}};
  const at::Tensor features = world.ForwardModule(0, 0, batch).hidden.at(0);
  EXPECT_LT(Error(features, fixture.at("features").flatten(0, 1)), kTolerance);
  world.BackwardModule(0, 0, {fixture.at("features_gradient").flatten(0, 1)});
  world.BackwardWeight(0, 0);
  EXPECT_LT(LargestError(OfVision(world.Gradients()), Select(fixture, "gradient/", "vision")),
            kTolerance);
}

INSTANTIATE_TEST_SUITE_P(Layouts, ClipVisionTest,
                         testing::Values(support::Layout{}, support::Layout{.tp = 3},
                                         support::Layout{.tp = 2, .pp = 2}));

}  // namespace
}  // namespace phalanx::oracle
