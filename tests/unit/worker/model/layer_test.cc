// Each layer's backward passes alone against differences of its forward pass, in fp64.
#include "worker/model/layer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "core/plan/plan.h"
#include "tests/support/specs.h"
#include "tests/unit/worker/model/rig.h"
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
