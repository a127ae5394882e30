// Each layer's backward passes alone against differences of its forward pass, in fp64.
#include "worker/model/layer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/plan/activation_estimate.h"
#include "core/plan/plan.h"
#include "tests/support/specs.h"
#include "worker/comm/communicator.h"
#include "worker/model/patches.h"
#include "worker/model/prediction.h"
#include "worker/model/projector.h"
#include "worker/model/sounds.h"
#include "worker/model/vocabulary.h"

namespace phalanx::model {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using support::Regressor;
using support::Whisper;

// Parameters of one module on one rank, with random values.
class Rig {
 public:
  // `place`: of a module that a rank has whole, or its part, of which others' are zero.
  Rig(const job::JobSpec& spec, int32_t module) : Rig(spec, plan::Place{.module = module}) {}
  Rig(const job::JobSpec& spec, const plan::Place& place)
      : plan_(*plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1})),
        parameters_(plan::ParametersOf(plan_, place)) {
    const int32_t module = place.module;
    at::manual_seed(11);
    weights_ = at::randn({parameters_.elements}, at::kDouble).mul_(0.3);
    gradients_ = at::zeros_like(weights_);
    const job::Architecture& a = plan_.module_spec(module).architecture;
    context_.architecture = a;
    const plan::TensorUnits units = plan::TensorUnitsOf(a, place.width, place.tp);
    context_.heads = MakeHeadMap(units, a.heads / plan::KvHeads(a), plan::HeadSize(a), at::kCPU);
    const at::Tensor angles = at::randn({32, plan::HeadSize(a) / 2}, at::kDouble);
    context_.cos = angles.cos();
    context_.sin = angles.sin();
    rows_ = RowsOf(units, a);
  }

  ParameterTable table() const { return {parameters_, weights_, gradients_}; }
  const LayerContext& context() const { return context_; }
  VocabularyRows rows() const { return rows_; }
  at::Tensor& gradients() { return gradients_; }

  // `forward` maps an input to an output under the present weights; `backward` fills the gradient
  // buffer and returns the input's gradient, undefined where there is none.
  void ExpectGradients(at::Tensor input,
                       const std::function<at::Tensor(const at::Tensor&)>& forward,
                       const std::function<at::Tensor(const at::Tensor& upstream)>& backward) {
    constexpr double kStep = 1e-5;
    const at::Tensor upstream = at::randn_like(forward(input));
    const at::Tensor input_gradient = backward(upstream);
    const auto value = [&](const at::Tensor& x) {
      return (forward(x) * upstream).sum().item<double>();
    };
    if (input_gradient.defined()) {
      const at::Tensor direction = at::randn_like(input);
      const double difference = value(input + direction * kStep) - value(input - direction * kStep);
      ExpectNear(difference / (2 * kStep), (input_gradient * direction).sum().item<double>(),
                 "input");
    }
    for (const plan::LocalMatrix& matrix : parameters_.matrices) {
      const auto part = [&](const at::Tensor& buffer) {
        return buffer.narrow(0, matrix.offset, matrix.rows * matrix.cols);
      };
      const at::Tensor direction = at::randn_like(part(weights_)), weights = part(weights_).clone();
      part(weights_).copy_(weights + direction * kStep);
      const double above = value(input);
      part(weights_).copy_(weights - direction * kStep);
      const double below = value(input);
      part(weights_).copy_(weights);
      ExpectNear((above - below) / (2 * kStep), (part(gradients_) * direction).sum().item<double>(),
                 std::string(plan::RoleName(matrix.role)));
    }
  }

 private:
  static void ExpectNear(double difference, double gradient, const std::string& what) {
    EXPECT_NEAR(difference, gradient, 1e-6 * (1 + std::abs(gradient))) << what;
  }

  plan::Plan plan_;
  plan::StageParameters parameters_;
  at::Tensor weights_, gradients_;
  LayerContext context_;
  VocabularyRows rows_;
};

void ExpectLayerGradients(Rig& rig, const Layer& layer, const SequenceShape& shape) {
  const at::Tensor input =
      at::randn({shape.rows(), rig.context().architecture.hidden_size}, at::kDouble);
  const auto forward = [&](const at::Tensor& x) {
    LayerRows output;
    EXPECT_TRUE(layer.Forward(x, shape, nullptr, &output).ok());
    output.Add();
    return output.rows;
  };
  rig.ExpectGradients(input, forward, [&](const at::Tensor& upstream) {
    LayerState state;
    WeightWork work;
    LayerRows output;
    Operand gradient;
    EXPECT_TRUE(layer.Forward(input, shape, &state, &output).ok());
    output.Add();
    EXPECT_TRUE(at::equal(output.rows, forward(input)));
    EXPECT_TRUE(layer.BackwardInput(upstream, shape, &state, &work, &gradient).ok());
    work.Run();
    return gradient.rows;
  });
}

TEST(LayerTest, Decoder_Gradients_EqualDifferences) {
  Rig rig(AJob().Module("language", Llama({.layers = 1, .mlp_size = 61})), 0);
  ExpectLayerGradients(rig, *MakeDecoderLayer(rig.context(), rig.table(), 0), {2, 5});
}

job::JobSpec VisionJob() {
  return AJob()
      .Module("vision", ClipVision({.layers = 1, .mlp_size = 61}))
      .Module("language", Llama())
      .Edge("vision", "language", {.projector = 45});
}

TEST(LayerTest, Encoder_Gradients_EqualDifferences) {
  Rig rig(VisionJob(), 0);
  ExpectLayerGradients(rig, *MakeEncoderLayer(rig.context(), rig.table(), 0), {2, 5});
}

job::JobSpec AudioJob() {
  return AJob()
      .Module("audio", Whisper({.layers = 1, .mlp_size = 61}))
      .Module("language", Llama())
      .Edge("audio", "language");
}

TEST(LayerTest, AudioEncoder_Gradients_EqualDifferences) {
  Rig rig(AudioJob(), 0);
  ExpectLayerGradients(rig, *MakeEncoderLayer(rig.context(), rig.table(), 0), {2, 5});
}

// Each kind of layer under each kind of recomputation.
TEST(LayerTest, Recomputation_KeepsLess_AndGivesEqualGradients) {
  for (const bool decoder : {true, false}) {
    for (const job::Recompute recompute : {job::Recompute::kSelective, job::Recompute::kFull}) {
      Rig rig(decoder ? AJob().Module("language", Llama({.layers = 1})).Build() : AudioJob(), 0);
      LayerContext context = rig.context();
      context.recompute = recompute;
      const std::unique_ptr<Layer> layer = decoder ? MakeDecoderLayer(context, rig.table(), 0)
                                                   : MakeEncoderLayer(context, rig.table(), 0);
      ExpectLayerGradients(rig, *layer, {2, 5});
      LayerState state;
      LayerRows output;
      EXPECT_TRUE(layer->Forward(at::randn({10, 32}, at::kDouble), {2, 5}, &state, &output).ok());
      EXPECT_TRUE(state.input.defined());
      EXPECT_FALSE(state.context.defined() || state.mlp_active.defined() ||
                   state.attention_input.defined() || state.mlp_input.defined());
      EXPECT_EQ(state.mlp_hidden.defined(), recompute == job::Recompute::kSelective);
      EXPECT_EQ(state.attention.output.defined(), recompute == job::Recompute::kSelective);
    }
  }
}

// Bytes that layers keep, of each storage once, without single numbers of a row. A member that is
// added does not compile here.
int64_t BytesKept(const std::vector<LayerState>& states) {
  std::map<const void*, size_t> storages;
  for (const LayerState& s : states) {
    const auto& [input, middle, attention_input, mlp_input, attention_rows, mlp_rows, qkv, context,
                 mlp_hidden, mlp_active, mean1, rstd1, mean2, rstd2, attention] = s;
    const auto& [query, key, value, output, log_sum, seed, offset, length] = attention;
    for (const at::Tensor& tensor :
         {input, middle, attention_input.rows, mlp_input.rows, attention_rows.rows, mlp_rows.rows,
          qkv, context.rows, mlp_hidden, mlp_active.rows, query, key, value, output}) {
      if (tensor.defined()) storages[tensor.storage().data()] = tensor.storage().nbytes();
    }
  }
  size_t bytes = 0;
  for (const auto& [storage, size] : storages) bytes += size;
  return static_cast<int64_t>(bytes);
}

// Estimates are of a part of so many layers, of 32 rows of a decoder or 4 of an encoder.
int64_t EstimateOf(bool decoder, int32_t layers, job::Recompute recompute, double labelled_share) {
  AJob job;
  const support::Layout layout{.recompute = recompute};
  if (!decoder) job.Module("vision", ClipVision({.layers = layers}), layout);
  job.Module("language", Llama({.layers = layers}), decoder ? layout : support::Layout())
      .Batch(1, 1)
      .Compute(job::Precision::kFp64);
  if (!decoder) job.Edge("vision", "language");
  const plan::Plan plan = *plan::MakePlan(job, plan::MakeCluster(1, decoder ? 1 : 2), Epoch{1});
  return plan::ActivationsOfPart(plan, {.module = 0}, 0,
                                 {.items = 1, .labelled_share = labelled_share})
      .kept;
}

TEST(LayerTest, WhatLayersKeep_IsWhatThePlansEstimateSays) {
  for (const bool decoder : {true, false}) {
    for (const job::Recompute recompute :
         {job::Recompute::kNone, job::Recompute::kSelective, job::Recompute::kFull}) {
      for (const bool labelled : {false, true}) {
        if (labelled && !decoder) continue;
        SCOPED_TRACE(testing::Message()
                     << decoder << " " << static_cast<int>(recompute) << " " << labelled);
        Rig rig(decoder ? AJob().Module("language", Llama({.layers = 2})).Build()
                        : AJob()
                              .Module("vision", ClipVision({.layers = 2}))
                              .Module("language", Llama())
                              .Edge("vision", "language")
                              .Build(),
                0);
        LayerContext context = rig.context();
        context.recompute = recompute;
        LayerStack layers;
        for (const int32_t layer : {0, 1}) {
          layers.Add(decoder ? MakeDecoderLayer(context, rig.table(), layer)
                             : MakeEncoderLayer(context, rig.table(), layer));
        }
        SequenceShape shape{1, decoder ? 32 : 4};
        if (decoder) {  // the rows with a label are taken, be it all
          const int64_t every = labelled ? 4 : 1;
          shape.leaving.rows = at::arange(0, 32, every);
          shape.leaving.place = at::arange(32).div(every, "floor");
          shape.leaving.chosen = at::arange(32).remainder(every).eq(0);
        }
        std::vector<LayerState> states;
        LayerRows hidden = at::randn({shape.rows(), 32}, at::kDouble);
        ASSERT_TRUE(layers.Forward(shape, &states, &hidden).ok());
        // Ends of an encoder keep something, too.
        const int64_t estimate =
            decoder ? EstimateOf(true, 2, recompute, labelled ? 0.25 : 1)
                    : EstimateOf(false, 3, recompute, 1) - EstimateOf(false, 1, recompute, 1);
        EXPECT_EQ(BytesKept(states), estimate);
      }
    }
  }
}

// Of 8 heads rank 1 of 3 has one of the first KV head and two of the second, so keys and values are
// repeated for each.
TEST(LayerTest, WhatLayersOfUnevenHeadsKeep_IsWhatThePlansEstimateSays) {
  for (const job::Recompute recompute :
       {job::Recompute::kNone, job::Recompute::kSelective, job::Recompute::kFull}) {
    const auto job_of = [&](int32_t layers) {
      return AJob()
          .Module("language",
                  Llama({.hidden_size = 64, .layers = layers, .heads = 8, .kv_heads = 2}),
                  {.tp = 3, .recompute = recompute})
          .Batch(1, 1)
          .Compute(job::Precision::kFp64)
          .Build();
    };
    const plan::Place place{.module = 0, .tp = 1, .width = 3};
    Rig rig(job_of(2), place);
    LayerContext context = rig.context();
    ASSERT_FALSE(context.heads.regular);
    context.recompute = recompute;
    LayerStack layers;
    for (const int32_t layer : {0, 1}) layers.Add(MakeDecoderLayer(context, rig.table(), layer));
    std::vector<LayerState> states;
    LayerRows hidden = at::randn({32, 64}, at::kDouble);
    ASSERT_TRUE(layers.Forward({1, 32}, &states, &hidden).ok());
    const auto estimate = [&](int32_t count) {
      const plan::Plan plan = *plan::MakePlan(job_of(count), plan::MakeCluster(1, 3), Epoch{1});
      return plan::ActivationsOfPart(plan, place, 0, {}).kept;
    };
    EXPECT_EQ(BytesKept(states), estimate(3) - estimate(1)) << static_cast<int>(recompute);
  }
}

// Two layers, with what is still to be added between them, and with the sum handed over.
TEST(LayerTest, Branches_AreAddedByTheNormBehind_ToTheSameBits) {
  for (const bool decoder : {true, false}) {
    for (const job::Recompute recompute :
         {job::Recompute::kNone, job::Recompute::kSelective, job::Recompute::kFull}) {
      SCOPED_TRACE(testing::Message() << decoder << " " << static_cast<int>(recompute));
      Rig rig(decoder ? AJob().Module("language", Llama({.layers = 2})).Build()
                      : AJob()
                            .Module("vision", ClipVision({.layers = 2, .mlp_size = 61}))
                            .Module("language", Llama())
                            .Edge("vision", "language")
                            .Build(),
              0);
      LayerContext context = rig.context();
      context.recompute = recompute;
      std::vector<std::unique_ptr<Layer>> layers;
      for (const int32_t layer : {0, 1}) {
        layers.push_back(decoder ? MakeDecoderLayer(context, rig.table(), layer)
                                 : MakeEncoderLayer(context, rig.table(), layer));
      }
      const SequenceShape shape{2, 5};
      const at::Tensor input = at::randn({10, 32}, at::kDouble), upstream = at::randn_like(input);
      const auto passes = [&](bool sums) {
        LayerState states[2];
        LayerRows hidden = input;
        for (const size_t i : {0, 1}) {
          LayerRows output;
          EXPECT_TRUE(
              layers[i]->Forward(std::exchange(hidden, {}), shape, &states[i], &output).ok());
          EXPECT_TRUE(output.branch.defined());
          EXPECT_EQ(output.bias.defined(), !decoder);
          hidden = std::move(output);
          if (sums) hidden.Add();
        }
        hidden.Add();
        EXPECT_FALSE(hidden.branch.defined() || hidden.bias.defined());
        WeightWork work;
        Operand gradient = upstream;
        for (const size_t i : {1, 0}) {
          Operand of_input;
          EXPECT_TRUE(layers[i]->BackwardInput(gradient, shape, &states[i], &work, &of_input).ok());
          gradient = of_input;
        }
        rig.gradients().zero_();
        work.Run();
        return std::vector<at::Tensor>{hidden.rows, gradient.rows, rig.gradients().clone()};
      };
      const std::vector<at::Tensor> summed = passes(true), handed_on = passes(false);
      for (size_t i = 0; i < summed.size(); ++i)
        EXPECT_TRUE(at::equal(handed_on[i], summed[i])) << i;
    }
  }
}

// Output, input's gradient and weights' gradients.
std::vector<at::Tensor> PassesOf(Rig& rig, const LayerContext& context, const at::Tensor& input,
                                 const at::Tensor& upstream) {
  const std::unique_ptr<Layer> layer = MakeDecoderLayer(context, rig.table(), 0);
  LayerState state;
  WeightWork work;
  LayerRows output;
  Operand gradient;
  EXPECT_TRUE(layer->Forward(input, {2, 5}, &state, &output).ok());
  EXPECT_TRUE(layer->BackwardInput(upstream, {2, 5}, &state, &work, &gradient).ok());
  rig.gradients().zero_();
  work.Run();
  output.Add();
  return {output.rows, gradient.rows, rig.gradients().clone()};
}

// What is computed again is rounded to the same bits.
TEST(LayerTest, ProductsInFp8_AreTheSameUnderRecomputation) {
  Rig rig(AJob().Module("language", Llama({.layers = 1})), 0);
  const at::Tensor input = at::randn({10, 32}, at::kDouble), upstream = at::randn_like(input);
  LayerContext context = rig.context();
  const std::vector<at::Tensor> exact = PassesOf(rig, context, input, upstream);
  context.fp8 = true;
  const std::vector<at::Tensor> rounded = PassesOf(rig, context, input, upstream);
  for (size_t i = 0; i < exact.size(); ++i) {
    const double error = ((rounded[i] - exact[i]).norm() / exact[i].norm()).item<double>();
    EXPECT_GT(error, 1e-3) << i;
    EXPECT_LT(error, 0.2) << i;
  }
  for (const job::Recompute recompute : {job::Recompute::kSelective, job::Recompute::kFull}) {
    context.recompute = recompute;
    const std::vector<at::Tensor> again = PassesOf(rig, context, input, upstream);
    for (size_t i = 0; i < again.size(); ++i) EXPECT_TRUE(at::equal(again[i], rounded[i])) << i;
  }
}

// It is the slice's.
TEST(LayerTest, LargestMagnitude_OfWhatIsGathered_IsForgotten) {
  plan::CommunicatorSpec spec{.use = plan::CommunicatorSpec::Use::kTensor, .name = "group"};
  spec.ranks = {Rank{0}};
  comm::InProcessWorld world(1);
  const comm::Communicators communicators = world.Connect({spec}, Rank{0});
  Operand mine = at::randn({6, 32}, at::kDouble);
  mine.largest = mine.rows.abs().max();
  for (const bool slices : {false, true}) {
    const TensorGroup group(communicators[0].get(), slices);
    Operand whole;
    Transfer transfer;
    ASSERT_TRUE(BeginWhole(group, 6, mine, &whole, &transfer).ok());
    ASSERT_TRUE(AwaitWhole(&transfer, &whole).ok());
    EXPECT_TRUE(at::equal(whole.rows, mine.rows));
    EXPECT_EQ(whole.largest.defined(), !slices);
  }
}

TEST(LayerTest, FrozenLayer_KeepsWhatItsInputGradientNeeds) {
  Rig rig(AudioJob(), 0);
  LayerContext context = rig.context();
  context.trains = false;
  const std::unique_ptr<Layer> layer = MakeEncoderLayer(context, rig.table(), 0);
  const at::Tensor input = at::randn({10, 32}, at::kDouble), upstream = at::randn_like(input);
  const auto gradient = [&](const Layer& of, bool* kept) {
    LayerState state;
    WeightWork work;
    LayerRows output;
    Operand input_gradient;
    EXPECT_TRUE(of.Forward(input, {2, 5}, &state, &output).ok());
    *kept = state.mlp_active.defined() || state.attention_input.defined();
    EXPECT_TRUE(of.BackwardInput(upstream, {2, 5}, &state, &work, &input_gradient).ok());
    return input_gradient.rows;
  };
  bool kept_frozen = true, kept_trained = false;
  const at::Tensor expected =
      gradient(*MakeEncoderLayer(rig.context(), rig.table(), 0), &kept_trained);
  EXPECT_TRUE(at::equal(gradient(*layer, &kept_frozen), expected));
  EXPECT_FALSE(kept_frozen);
  EXPECT_TRUE(kept_trained);
}

TEST(LayerTest, SoundEmbedding_Gradients_EqualDifferences) {
  Rig rig(AudioJob(), 0);
  const SoundEmbedding embedding(rig.context(), rig.table());
  const at::Tensor sounds = at::randn({2, 5, 8}, at::kDouble);
  const auto forward = [&](const at::Tensor& x) { return embedding.Forward(x, nullptr); };
  EXPECT_EQ(forward(sounds).size(0), 2 * 4);
  rig.ExpectGradients(sounds, forward, [&](const at::Tensor& upstream) {
    SoundState state;
    WeightWork work;
    embedding.Forward(sounds, &state);
    embedding.Backward(upstream, &state, &work);
    work.Run();
    return at::Tensor();  // nobody asks for the gradient of a sound
  });
}

TEST(LayerTest, Prediction_Gradients_EqualDifferences) {
  Rig rig(AJob()
              .Module("language", Llama())
              .Module("regressor", Regressor({.layers = 1}))
              .Edge("language", "regressor"),
          1);
  const Prediction prediction(rig.table().Matrix(plan::MatrixRole::kPredict), 0.75);
  const at::Tensor input = at::randn({6, 32}, at::kDouble);
  const at::Tensor targets = at::randn({3, 32}, at::kDouble),
                   positions = at::tensor({5, 0, 2}, at::kLong),
                   weights = at::tensor({1.0, 0.0, 1.0}, at::kDouble);
  at::Tensor scale;
  const auto forward = [&](const at::Tensor& x) {
    const at::Tensor loss = prediction.Forward(x, targets, positions, weights, nullptr);
    return scale.defined() ? loss * scale : loss;
  };
  rig.ExpectGradients(input, forward, [&](const at::Tensor& upstream) {
    // A loss takes no gradient from above: what the check scales by is undone.
    scale = 1 / upstream;
    PredictionState state;
    WeightWork work;
    prediction.Forward(input, targets, positions, weights, &state);
    const at::Tensor gradient = at::zeros_like(input);
    prediction.Backward(&state, &work, gradient);
    work.Run();
    return gradient;
  });
}

TEST(LayerTest, Projector_Gradients_EqualDifferences) {
  Rig rig(VisionJob(), 0);
  const Projector projector(TensorGroup(nullptr), rig.table(), 0);
  const at::Tensor input = at::randn({6, 32}, at::kDouble);
  const auto forward = [&](const at::Tensor& x) {
    at::Tensor output;
    EXPECT_TRUE(projector.Forward(x, nullptr, &output).ok());
    return output;
  };
  rig.ExpectGradients(input, forward, [&](const at::Tensor& upstream) {
    ProjectorState state;
    WeightWork work;
    at::Tensor output, gradient;
    EXPECT_TRUE(projector.Forward(input, &state, &output).ok());
    EXPECT_TRUE(projector.BackwardInput(upstream, &state, &work, &gradient).ok());
    work.Run();
    return gradient;
  });
}

TEST(LayerTest, PatchEmbedding_Gradients_EqualDifferences) {
  Rig rig(VisionJob(), 0);
  const PatchEmbedding patches(rig.context(), rig.table());
  const at::Tensor pixels = at::randn({2, 3, 8, 8}, at::kDouble);
  const auto forward = [&](const at::Tensor& x) { return patches.Forward(x, nullptr); };
  rig.ExpectGradients(pixels, forward, [&](const at::Tensor& upstream) {
    PatchState state;
    WeightWork work;
    patches.Forward(pixels, &state);
    patches.Backward(upstream, &state, &work);
    work.Run();
    return at::Tensor();  // nobody asks for the gradient of pixels
  });
}

TEST(LayerTest, Embedding_Gradients_EqualDifferences) {
  Rig rig(AJob().Module("language", Llama({.layers = 1, .vocabulary = 93})), 0);
  const Embedding embedding(TensorGroup(nullptr), rig.table().Matrix(plan::MatrixRole::kEmbedding),
                            rig.rows());
  const at::Tensor tokens = at::tensor({4, 92, 4, 0, 7}, at::kLong),
                   positions = at::tensor({3, 1, 3}, at::kLong);  // two at one position
  const TokenRows rows = MakeTokenRows(tokens, positions);
  const at::Tensor items = at::randn({3, 32}, at::kDouble);
  const auto forward = [&](const at::Tensor& x) {
    at::Tensor output;
    EXPECT_TRUE(embedding.Forward(rows, x, positions, nullptr, &output).ok());
    return output;
  };
  rig.ExpectGradients(items, forward, [&](const at::Tensor& upstream) {
    EmbeddingState state;
    WeightWork work;
    at::Tensor output;
    EXPECT_TRUE(embedding.Forward(rows, items, positions, &state, &output).ok());
    at::Tensor gradient;
    EXPECT_TRUE(embedding.Backward(upstream, &state, &work, &gradient).ok());
    work.Run();
    return gradient;
  });
}

TEST(LayerTest, Embedding_ItemsAtOnePosition_AddUpInPlaceOfTheToken) {
  Rig rig(AJob().Module("language", Llama({.layers = 1})), 0);
  const Embedding embedding(TensorGroup(nullptr), rig.table().Matrix(plan::MatrixRole::kEmbedding),
                            rig.rows());
  const at::Tensor items = at::randn({3, 32}, at::kDouble);
  const at::Tensor positions = at::tensor({1, 0, 1}, at::kLong);
  at::Tensor output;
  EXPECT_TRUE(embedding
                  .Forward(MakeTokenRows(at::tensor({4, 9, 4}, at::kLong), positions), items,
                           positions, nullptr, &output)
                  .ok());
  EXPECT_TRUE(at::equal(output[0], items[1]));
  EXPECT_TRUE(at::equal(output[1], items[0] + items[2]));
  EXPECT_TRUE(at::equal(output[2], rig.table().Matrix(plan::MatrixRole::kEmbedding).weight[4]));
}

TEST(LayerTest, Head_Gradients_EqualDifferences) {
  Rig rig(AJob().Module("language", Llama({.layers = 1, .vocabulary = 93})), 0);
  const ParameterTable table = rig.table();
  const Head head(TensorGroup(nullptr), table.Matrix(plan::MatrixRole::kHead), rig.rows());
  const at::Tensor input = at::randn({4, 32}, at::kDouble);
  const at::Tensor labels = at::tensor({4, 92, 0, 7}, at::kLong),
                   weights = at::tensor({1.0, 1.0, 0.0, 1.0}, at::kDouble);
  const auto forward = [&](const at::Tensor& x) {
    at::Tensor loss;
    EXPECT_TRUE(head.Forward(x, labels, weights, nullptr, &loss).ok());
    return loss.clone();
  };
  at::Tensor scale;
  rig.ExpectGradients(
      input, [&](const at::Tensor& x) { return scale.defined() ? forward(x) * scale : forward(x); },
      [&](const at::Tensor& upstream) {
        // A loss takes no gradient from above: what the check scales by is undone.
        scale = 1 / upstream;
        HeadState state;
        WeightWork work;
        at::Tensor loss, gradient;
        EXPECT_TRUE(head.Forward(input, labels, weights, &state, &loss).ok());
        EXPECT_TRUE(head.Backward(&state, &work, &gradient).ok());
        work.Run();
        return gradient;
      });
}

}  // namespace
}  // namespace phalanx::model
