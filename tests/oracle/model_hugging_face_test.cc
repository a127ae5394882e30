// The oracle and the engine give what Hugging Face transformers gives, in fp32 to 1e-5.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/prng.h"
#include "tests/oracle/fixture.h"
#include "tests/oracle/model_harness.h"
#include "tests/support/specs.h"

namespace phalanx::oracle {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using support::SiglipVision;
using support::Whisper;

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

struct EncoderCase {
  const char* fixture;
  const char* items;  // the fixture's input
  job::Architecture architecture;
  support::Layout layout;
};

class EncoderTest : public testing::TestWithParam<EncoderCase> {};

job::JobSpec SpecOf(const EncoderCase& test) {
  return AJob()
      .Module("encoder", test.architecture, test.layout)
      .Module("language", Llama({.hidden_size = test.architecture.hidden_size}))
      .Edge("encoder", "language");
}

// Gradients of the encoder alone.
NamedTensors OfEncoder(NamedTensors tensors) {
  std::erase_if(tensors, [](const auto& entry) { return entry.first.rfind("encoder/", 0) != 0; });
  return tensors;
}

TEST_P(EncoderTest, Oracle_EqualsTransformers) {
  const NamedTensors fixture = ReadFixture(GetParam().fixture);
  PlainModel plain(SpecOf(GetParam()), at::kFloat);
  LoadInto(plain, Select(fixture, "weight/", "encoder"));
  const at::Tensor features = plain.Features(0, fixture.at(GetParam().items));
  EXPECT_LT(Error(features, fixture.at("features").flatten(0, 1)), kTolerance);
  features.backward(fixture.at("features_gradient").flatten(0, 1));
  EXPECT_LT(LargestError(OfEncoder(plain.Gradients()), Select(fixture, "gradient/", "encoder")),
            kTolerance);
}

TEST_P(EncoderTest, Stages_EqualTransformers) {
  const NamedTensors fixture = ReadFixture(GetParam().fixture);
  const job::JobSpec spec = SpecOf(GetParam());
  StageWorld world(spec, at::kFloat);
  NamedTensors weights = PlainModel(spec, at::kFloat).parameters();
  for (const auto& [name, value] : Select(fixture, "weight/", "encoder")) weights[name] = value;
  world.LoadWeights(weights);
  PlainMicrobatch batch;
  batch.pixels = batch.sounds = {fixture.at(GetParam().items), {}};
  const at::Tensor features = world.ForwardModule(0, 0, batch).hidden.at(0);
  EXPECT_LT(Error(features, fixture.at("features").flatten(0, 1)), kTolerance);
  world.BackwardModule(0, 0, {fixture.at("features_gradient").flatten(0, 1)});
  world.BackwardWeight(0, 0);
  EXPECT_LT(LargestError(OfEncoder(world.Gradients()), Select(fixture, "gradient/", "encoder")),
            kTolerance);
}

std::vector<EncoderCase> EncoderCases() {
  std::vector<EncoderCase> cases;
  for (const support::Layout& layout :
       {support::Layout{}, support::Layout{.tp = 3}, support::Layout{.tp = 2, .pp = 2}}) {
    cases.push_back({"clip_vision.bin", "pixels",
                     ClipVision({.hidden_size = 16, .mlp_size = 24, .block = 5}), layout});
    // An odd number of blocks, the last of them not full.
    cases.push_back({"siglip_vision.bin", "pixels",
                     SiglipVision({.hidden_size = 16, .mlp_size = 27, .block = 4}), layout});
    cases.push_back({"whisper.bin", "sounds",
                     Whisper({.hidden_size = 16, .mlp_size = 24, .block = 5, .frames = 12}),
                     layout});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Layouts, EncoderTest, testing::ValuesIn(EncoderCases()));

// The values of a name, as make_fixtures.py makes them.
at::Tensor ValuesOf(absl::string_view name, at::IntArrayRef shape) {
  at::Tensor values = at::empty(shape, at::kFloat);
  float* out = values.data_ptr<float>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    const double value = UnitNormal(Mix64(StreamOf(name) ^ static_cast<uint64_t>(i)));
    out[i] = static_cast<float>(value);
  }
  return values;
}

constexpr absl::string_view kEncoderPrefix = "encoder/";

at::Tensor RealWeight(absl::string_view parameter, const at::Tensor& like) {
  const absl::string_view name = absl::StripPrefix(parameter, kEncoderPrefix);
  const at::Tensor values = ValuesOf(name, like.sizes());
  return like.dim() == 1 && absl::EndsWith(name, "weight") ? 1 + 0.25 * values : 0.03125 * values;
}

// Gradients of matrices times a vector each: all that the fixture holds of them.
NamedTensors ProductsOf(NamedTensors gradients) {
  for (auto& [parameter, gradient] : gradients) {
    if (gradient.dim() == 1) continue;
    const absl::string_view name = absl::StripPrefix(parameter, kEncoderPrefix);
    gradient = gradient.mv(ValuesOf(absl::StrCat("product/", name), gradient.sizes().slice(1)));
  }
  return gradients;
}

class SiglipOfRealSizeTest : public testing::TestWithParam<support::Layout> {};

// A layer of the so400m: 1,152 wide, 16 heads of 72, an MLP of 4,304.
TEST_P(SiglipOfRealSizeTest, Stages_EqualTransformers) {
  const NamedTensors fixture = ReadFixture("siglip_vision_real.bin");
  const job::Architecture architecture = SiglipVision({.hidden_size = 1152,
                                                       .layers = 1,
                                                       .heads = 16,
                                                       .mlp_size = 4304,
                                                       .block = 16,
                                                       .image_size = 28,
                                                       .patch_size = 14});
  const job::JobSpec spec = SpecOf(EncoderCase{"", "pixels", architecture, GetParam()});
  StageWorld world(spec, at::kFloat);
  NamedTensors weights = PlainModel(spec, at::kFloat).parameters();
  for (auto& [name, value] : weights) {
    if (absl::StartsWith(name, kEncoderPrefix)) value = RealWeight(name, value);
  }
  world.LoadWeights(weights);
  PlainMicrobatch batch;
  batch.pixels = {ValuesOf("pixels", {1, 3, 28, 28}), {}};
  const at::Tensor features = world.ForwardModule(0, 0, batch).hidden.at(0);
  EXPECT_LT(Error(features, fixture.at("features").flatten(0, 1)), kTolerance);
  world.BackwardModule(0, 0, {ValuesOf("features_gradient", {4, 1152})});
  world.BackwardWeight(0, 0);
  EXPECT_LT(LargestError(ProductsOf(OfEncoder(world.Gradients())),
                         Select(fixture, "gradient/", "encoder")),
            kTolerance);
}

INSTANTIATE_TEST_SUITE_P(Layouts, SiglipOfRealSizeTest,
                         testing::Values(support::Layout{}, support::Layout{.tp = 3}));

}  // namespace
}  // namespace phalanx::oracle
