#include <ATen/ATen.h>

#include <utility>

#include "core/base/status.h"
#include "worker/model/kernels.h"
#include "worker/model/layer.h"

namespace phalanx::model {
namespace {

class EncoderLayer final : public Layer {
 public:
  EncoderLayer(const LayerContext& context, const ParameterTable& table, int32_t layer, bool frozen)
      : context_(context),
        norm1_(table.Vector("norm1", frozen, layer)),
        norm1_bias_(table.Vector("norm1_bias", frozen, layer)),
        qkv_(table.Matrix("qkv", frozen, layer)),
        qkv_bias_(table.Vector("qkv_bias", frozen, layer)),
        o_(table.Matrix("o", frozen, layer)),
        o_bias_(table.Vector("o_bias", frozen, layer)),
        norm2_(table.Vector("norm2", frozen, layer)),
        norm2_bias_(table.Vector("norm2_bias", frozen, layer)),
        up_(table.Matrix("up", frozen, layer)),
        up_bias_(table.Vector("up_bias", frozen, layer)),
        down_(table.Matrix("down", frozen, layer)),
        down_bias_(table.Vector("down_bias", frozen, layer)) {}

  absl::Status Forward(const at::Tensor& input, const SequenceShape& shape, LayerState* state,
                       at::Tensor* output) const override;
  absl::Status BackwardInput(const at::Tensor& output_gradient, const SequenceShape& shape,
                             LayerState* state, WeightWork* work,
                             at::Tensor* input_gradient) const override;

 private:
  const LayerContext& context_;
  const Parameter norm1_, norm1_bias_, qkv_, qkv_bias_, o_, o_bias_;
  const Parameter norm2_, norm2_bias_, up_, up_bias_, down_, down_bias_;
};

absl::Status EncoderLayer::Forward(const at::Tensor& input, const SequenceShape& shape,
                                   LayerState* state, at::Tensor* output) const {
  LayerState scratch;
  LayerState& s = state == nullptr ? scratch : *state;
  const double epsilon = context_.architecture.norm_epsilon;
  LayerNormed normed = LayerNorm(input, norm1_.weight, norm1_bias_.weight, epsilon);
  const at::Tensor qkv = Linear(normed.y, qkv_, qkv_bias_).view({shape.batch, shape.length, -1});
  s.input = input;
  s.attention_input = std::move(normed.y);
  s.norm1_mean = std::move(normed.mean);
  s.norm1_rstd = std::move(normed.rstd);
  s.context =
      Attention(qkv, context_.heads, /*causal=*/false, state == nullptr ? nullptr : &s.attention);

  s.middle = Linear(s.context, o_);
  RETURN_IF_ERROR(context_.group.AllReduce(s.middle));
  s.middle.add_(o_bias_.weight).add_(input);  // the bias once, after the sum over ranks
  normed = LayerNorm(s.middle, norm2_.weight, norm2_bias_.weight, epsilon);
  s.mlp_input = std::move(normed.y);
  s.norm2_mean = std::move(normed.mean);
  s.norm2_rstd = std::move(normed.rstd);
  s.mlp_hidden = Linear(s.mlp_input, up_, up_bias_);
  s.mlp_active = QuickGelu(s.mlp_hidden);

  *output = Linear(s.mlp_active, down_);
  RETURN_IF_ERROR(context_.group.AllReduce(*output));
  output->add_(down_bias_.weight).add_(s.middle);
  return absl::OkStatus();
}

absl::Status EncoderLayer::BackwardInput(const at::Tensor& output_gradient,
                                         const SequenceShape& shape, LayerState* state,
                                         WeightWork* work, at::Tensor* input_gradient) const {
  LayerState s = std::exchange(*state, {});
  const at::Tensor hidden_gradient = QuickGeluBackward(LinearInputGradient(output_gradient, down_),
                                                       std::exchange(s.mlp_hidden, {}));
  work->Matrix(down_, output_gradient, std::move(s.mlp_active));
  work->Bias(down_bias_, output_gradient);
  at::Tensor normed_gradient = LinearInputGradient(hidden_gradient, up_);
  work->Matrix(up_, hidden_gradient, std::move(s.mlp_input));
  work->Bias(up_bias_, hidden_gradient);
  RETURN_IF_ERROR(context_.group.AllReduce(normed_gradient));
  NormGradient norm = LayerNormBackward(normed_gradient, s.middle, {{}, s.norm2_mean, s.norm2_rstd},
                                        norm2_.weight, norm2_bias_.weight, output_gradient);
  work->Sum(norm2_, std::move(norm.weight));
  work->Sum(norm2_bias_, std::move(norm.bias));
  const at::Tensor middle_gradient = std::move(norm.x);
  s.middle.reset();

  const at::Tensor context_gradient = LinearInputGradient(middle_gradient, o_);
  work->Matrix(o_, middle_gradient, std::move(s.context));
  work->Bias(o_bias_, middle_gradient);
  const at::Tensor qkv_gradient =
      AttentionBackward(context_gradient, context_.heads, /*causal=*/false,
                        std::exchange(s.attention, {}))
          .view({shape.rows(), -1});
  normed_gradient = LinearInputGradient(qkv_gradient, qkv_);
  work->Matrix(qkv_, qkv_gradient, std::move(s.attention_input));
  work->Bias(qkv_bias_, qkv_gradient);
  RETURN_IF_ERROR(context_.group.AllReduce(normed_gradient));
  norm = LayerNormBackward(normed_gradient, s.input, {{}, s.norm1_mean, s.norm1_rstd},
                           norm1_.weight, norm1_bias_.weight, middle_gradient);
  work->Sum(norm1_, std::move(norm.weight));
  work->Sum(norm1_bias_, std::move(norm.bias));
  *input_gradient = std::move(norm.x);
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Layer> MakeEncoderLayer(const LayerContext& context, const ParameterTable& table,
                                        int32_t layer, bool frozen) {
  return std::make_unique<EncoderLayer>(context, table, layer, frozen);
}

}  // namespace phalanx::model
