// The same stages on CUDA: equal to the plain model on CPU, and never waiting for the device.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include "tests/oracle/model_harness.h"
#include "tests/oracle/random_microbatch.h"
#include "tests/support/specs.h"
#include "worker/model/attention.h"

namespace phalanx::oracle {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using support::Regressor;
using support::Whisper;

// While it lives, an ATen operation that waits for the device throws.
class NoWaiting {
 public:
  NoWaiting() { Set(c10::cuda::SyncDebugMode::L_ERROR); }
  ~NoWaiting() { Set(c10::cuda::SyncDebugMode::L_DISABLED); }

 private:
  static void Set(c10::cuda::SyncDebugMode mode) {
    c10::cuda::warning_state().set_sync_debug_mode(mode);
  }
};

class StageCudaTest : public testing::Test {
 protected:
  StageCudaTest() {
    at::globalContext().setAllowTF32CuBLAS(false);
    at::globalContext().lazyInitDevice(at::kCUDA);
  }
};

// Head sizes that the flash and memory-efficient kernels take: 192 / 6 and 128 / 4.
job::JobSpec MultimodalSpec() {
  return AJob()
      .Module("vision", ClipVision({.hidden_size = 128, .heads = 4, .mlp_size = 250, .block = 32}))
      .Module("language", Llama({.hidden_size = 192,
                                 .heads = 6,
                                 .kv_heads = 2,
                                 .mlp_size = 250,
                                 .block = 32,
                                 .vocabulary = 500}))
      .Edge("vision", "language", {.projector = 96});
}

// Every family, each with another recomputation; image and hidden rows meet in the regressor.
job::JobSpec GraphSpec(bool vision_frozen) {
  return AJob()
      .Module("vision", ClipVision({.hidden_size = 128, .heads = 4, .mlp_size = 250, .block = 32}),
              {.frozen = vision_frozen, .recompute = job::Recompute::kFull})
      .Module("audio", Whisper({.hidden_size = 128, .mlp_size = 250, .block = 32, .mel_bins = 20}),
              {.recompute = job::Recompute::kSelective})
      .Module("language",
              Llama({.hidden_size = 192,
                     .heads = 6,
                     .kv_heads = 2,
                     .mlp_size = 250,
                     .block = 32,
                     .vocabulary = 500,
                     .context = 64}),
              {.recompute = job::Recompute::kSelective})
      .Module(
          "regressor",
          Regressor({.hidden_size = 128, .heads = 4, .mlp_size = 250, .block = 32, .context = 64}),
          {.recompute = job::Recompute::kFull})
      .Edge("vision", "language", {.projector = 96})
      .Edge("audio", "language", {.projector = 64})
      .Edge("language", "regressor", {.projector = 96})
      .Edge("vision", "regressor");
}

struct Case {
  at::ScalarType type;
  double loss, gradients;
};

void ExpectFollowsPlain(const job::JobSpec& spec, const Case& tolerance) {
  PlainModel plain(spec, at::kDouble);
  StageWorld world(spec, tolerance.type, at::kCUDA);
  const PlainMicrobatch batch = RandomMicrobatch(spec, {.samples = 3, .items = 4}, tolerance.type);
  PlainMicrobatch exact = batch;
  for (at::Tensor& pixels : exact.pixels)
    pixels = pixels.defined() ? pixels.to(at::kDouble) : pixels;
  plain.Accumulate(exact);
  EXPECT_NEAR(world.RunStep(0, batch) / plain.Loss(exact).item<double>(), 1, tolerance.loss);
  const NamedTensors gradients = world.Gradients();
  for (const auto& [name, expected] : plain.Gradients()) {
    if (name.find("k_proj.bias") != std::string::npos) continue;  // a true gradient of zero
    const at::Tensor error =
        (gradients.at(name).to(at::kDouble) - expected).norm() / expected.norm();
    EXPECT_LT(error.item<double>(), tolerance.gradients) << name;
  }
}

TEST_F(StageCudaTest, Fp32_EqualsPlainModel) {
  ExpectFollowsPlain(MultimodalSpec(), {at::kFloat, 1e-5, 1e-4});
}
TEST_F(StageCudaTest, Fp64_EqualsPlainModel) {
  ExpectFollowsPlain(MultimodalSpec(), {at::kDouble, 1e-9, 1e-9});
}
TEST_F(StageCudaTest, Bf16_FollowsPlainModel) {
  ExpectFollowsPlain(MultimodalSpec(), {at::kBFloat16, 1e-2, 5e-2});
}

// Devices without FP8 round alike; but bf16 moves some values to the next one of FP8.
TEST_F(StageCudaTest, Fp8_FollowsItsRoundingOnTheCpu) {
  for (const job::Recompute recompute :
       {job::Recompute::kNone, job::Recompute::kSelective, job::Recompute::kFull}) {
    job::JobSpec spec = MultimodalSpec();
    spec.linear = job::LinearFormat::kFp8;
    spec.modules[1].recompute = recompute;
    StageWorld there(spec, at::kBFloat16, at::kCUDA), here(spec, at::kDouble, at::kCPU);
    const PlainMicrobatch batch = RandomMicrobatch(spec, {.samples = 3, .items = 4}, at::kBFloat16);
    PlainMicrobatch exact = batch;
    for (at::Tensor& pixels : exact.pixels)
      pixels = pixels.defined() ? pixels.to(at::kDouble) : pixels;
    EXPECT_NEAR(there.RunStep(0, batch) / here.RunStep(0, exact), 1, 1e-2);
    const NamedTensors gradients = there.Gradients();
    for (const auto& [name, expected] : here.Gradients()) {
      if (name.find("k_proj.bias") != std::string::npos) continue;  // a true gradient of zero
      const at::Tensor error =
          (gradients.at(name).to(at::kDouble) - expected).norm() / expected.norm();
      EXPECT_LT(error.item<double>(), 0.2) << name;
    }
  }
}

TEST_F(StageCudaTest, Graph_EqualsPlainModel) {
  ExpectFollowsPlain(GraphSpec(false), {at::kDouble, 1e-9, 1e-9});
  ExpectFollowsPlain(GraphSpec(false), {at::kFloat, 1e-5, 1e-4});
  ExpectFollowsPlain(GraphSpec(false), {at::kBFloat16, 1e-2, 5e-2});
}

TEST_F(StageCudaTest, TiedHeadInStages_EqualsPlainModel) {
  const job::Architecture architecture = Llama({.vocabulary = 93, .tied_head = true});
  ExpectFollowsPlain(AJob().Module("language", architecture), {at::kFloat, 1e-5, 1e-4});
  ExpectFollowsPlain(AJob().Module("language", architecture, {.pp = 2}), {at::kFloat, 1e-5, 1e-4});
}

TEST_F(StageCudaTest, Predictions_EqualPlainModel) {
  const job::JobSpec spec = MultimodalSpec();
  const PlainModel plain(spec, at::kDouble);
  StageWorld world(spec, at::kDouble, at::kCUDA);
  const PlainMicrobatch batch = RandomMicrobatch(spec, {}, at::kDouble);
  EXPECT_TRUE(at::equal(world.Evaluate(batch).predicted.cpu(),
                        plain.Logits(plain.Hidden(batch)).argmax(-1).flatten()));
}

// Query heads [3, 6) of groups of four: one of one KV head, two of the next.
TEST_F(StageCudaTest, UnequalGroups_EqualCpu) {
  plan::TensorUnits units;
  units.query_heads = {3, 3};
  units.kv_heads = {0, 2};
  const model::HeadMap there = model::MakeHeadMap(units, 4, 64, at::kCUDA);
  const model::HeadMap here = model::MakeHeadMap(units, 4, 64, at::kCPU);
  for (const auto& [type, tolerance] :
       {std::pair{at::kFloat, 1e-5}, {at::kBFloat16, 2e-2}, {at::kDouble, 1e-12}}) {
    const at::Tensor qkv = at::randn({2, 40, there.columns()}, at::kDouble).to(type);
    const at::Tensor upstream = at::randn({80, 3 * 64}, at::kDouble).to(type);
    model::AttentionState state, reference;
    const at::Tensor output = model::Attention(qkv.cuda(), there, true, &state);
    const at::Tensor gradient = model::AttentionBackward(upstream.cuda(), there, true, state);
    const at::Tensor expected = model::Attention(qkv.to(at::kDouble), here, true, &reference);
    const at::Tensor expected_gradient =
        model::AttentionBackward(upstream.to(at::kDouble), here, true, reference);
    EXPECT_LT((output.cpu() - expected).abs().max().item<double>(), tolerance * 3) << type;
    EXPECT_LT((gradient.cpu() - expected_gradient).abs().max().item<double>(), tolerance * 10)
        << type;
  }
}

// What one module's only stage reads, on the device.
model::StageInput InputOf(const job::JobSpec& spec, int32_t module, const PlainMicrobatch& batch,
                          const std::vector<at::Tensor>& sent) {
  const auto index = static_cast<size_t>(module);
  const auto there = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.cuda() : tensor;
  };
  model::StageInput input;
  input.pixels = there(batch.pixels[index]);
  input.sounds = there(batch.sounds[index]);
  input.batch = batch.tokens.size(0);
  input.length = batch.tokens.size(1);
  for (const at::Tensor& items : {input.pixels, input.sounds})
    if (items.defined()) input.batch = items.size(0);
  input.tokens = model::MakeTokenRows(batch.tokens, {}, at::kCUDA);
  // Every other row is held to its label.
  const int64_t all = batch.labels.numel();
  const at::Tensor labelled = at::arange(0, all, 2, at::kLong);
  input.labelled = {there(labelled), there(at::arange(all, at::kLong).div(2, "floor")),
                    there(at::arange(all, at::kLong).remainder(2).eq(0))};
  input.labels = there(batch.labels.flatten().index_select(0, labelled));
  input.label_weights = there(batch.label_weights.flatten().index_select(0, labelled));
  input.targets = there(batch.targets);
  input.target_positions = there(batch.target_positions);
  input.target_weights = there(batch.target_weights);
  input.output_positions = there(batch.positions[index]);
  std::vector<at::Tensor> rows, positions;
  for (size_t i = 0; i < spec.edges.size(); ++i) {
    if (spec.edges[i].to != module) continue;
    rows.push_back(sent[i]);
    positions.push_back(batch.positions[static_cast<size_t>(spec.edges[i].from)]);
  }
  if (rows.empty()) return input;
  input.rows = at::cat(rows);
  input.row_positions = at::cat(positions).cuda();
  input.tokens = model::MakeTokenRows(batch.tokens, at::cat(positions), at::kCUDA);
  return input;
}

void ExpectNeverWaits(const job::JobSpec& spec, at::ScalarType type) {
  const plan::Plan plan = *plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1});
  const PlainMicrobatch batch = RandomMicrobatch(spec, {}, type);
  std::vector<at::Tensor> sent(spec.edges.size());
  for (int32_t module = 0; module < static_cast<int32_t>(spec.modules.size()); ++module) {
    const plan::Place place{.module = module};
    const plan::StageParameters parameters = plan::ParametersOf(plan, place);
    const at::TensorOptions options = at::TensorOptions(at::kCUDA).dtype(type);
    const at::Tensor weights = at::empty({parameters.elements}, options);
    const at::Tensor gradients = at::zeros({parameters.trained_extent}, options.dtype(at::kFloat));
    model::InitialiseWeights(plan, place, parameters, weights, 2);
    auto stage = model::MakeStage(plan, place, 0, parameters, weights, gradients, nullptr,
                                  {.device = at::kCUDA, .compute = type});
    ASSERT_TRUE(stage.ok()) << stage.status();
    const model::StageInput input = InputOf(spec, module, batch, sent);
    const NoWaiting guard;
    auto output = (*stage)->Forward(0, input);
    ASSERT_TRUE(output.ok()) << output.status();
    std::vector<at::Tensor> upstream;
    size_t next = 0;
    for (size_t i = 0; i < spec.edges.size(); ++i) {
      if (spec.edges[i].from != module) continue;
      sent[i] = output->hidden.at(next++);
      upstream.push_back(at::zeros_like(sent[i]));
    }
    const auto back = (*stage)->BackwardInput(0, upstream);
    ASSERT_TRUE(back.ok()) << back.status();
    const absl::Status weight = (*stage)->BackwardWeight(0);
    EXPECT_TRUE(weight.ok()) << weight;
    const auto evaluated = (*stage)->Evaluate(input);
    EXPECT_TRUE(evaluated.ok()) << evaluated.status();
  }
}

TEST_F(StageCudaTest, Passes_NeverWaitForTheDevice) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    ExpectNeverWaits(MultimodalSpec(), type);
    ExpectNeverWaits(GraphSpec(false), type);
    ExpectNeverWaits(GraphSpec(true), type);
  }
  job::JobSpec spec = GraphSpec(false);
  spec.linear = job::LinearFormat::kFp8;
  ExpectNeverWaits(spec, at::kBFloat16);
}

}  // namespace
}  // namespace phalanx::oracle
