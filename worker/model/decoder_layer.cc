#include <ATen/ATen.h>

#include <utility>

#include "core/base/status.h"
#include "worker/model/kernels.h"
#include "worker/model/layer.h"

namespace phalanx::model {
namespace {

class DecoderLayer final : public Layer {
 public:
  DecoderLayer(const LayerContext& context, const ParameterTable& table, int32_t layer)
      : context_(context),
        norm1_(table.Vector(plan::MatrixRole::kNorm1, layer)),
        qkv_(table.Matrix(plan::MatrixRole::kQkv, layer)),
        o_(table.Matrix(plan::MatrixRole::kO, layer)),
        norm2_(table.Vector(plan::MatrixRole::kNorm2, layer)),
        gate_up_(table.Matrix(plan::MatrixRole::kGateUp, layer)),
        down_(table.Matrix(plan::MatrixRole::kDown, layer)) {}

  absl::Status Forward(const at::Tensor& input, const SequenceShape& shape, LayerState* state,
                       at::Tensor* output) const override;
  absl::Status BackwardInput(const at::Tensor& output_gradient, const SequenceShape& shape,
                             LayerState* state, WeightWork* work,
                             at::Tensor* input_gradient) const override;

 private:
  // From s->input to s->mlp_active. `attention`: attention's state is wanted too. `again`: and all
  // that is gathered.
  absl::Status Compute(const SequenceShape& shape, bool attention, bool again, LayerState* s) const;
  // What recomputation left out.
  absl::Status Restore(const SequenceShape& shape, LayerState* s) const;
  at::Tensor ByHead(const at::Tensor& qkv, const SequenceShape& shape) const {
    return qkv.view({shape.batch, shape.length, -1, context_.heads.head_size});
  }
  int64_t rotated_heads() const { return context_.heads.query_heads + context_.heads.kv_heads; }

  const LayerContext& context_;
  const Parameter norm1_, qkv_, o_, norm2_, gate_up_, down_;
};

absl::Status DecoderLayer::Compute(const SequenceShape& shape, bool attention, bool again,
                                   LayerState* s) const {
  const double epsilon = context_.architecture.norm_epsilon;
  RmsNormed normed = RmsNorm(s->input, norm1_.weight, epsilon);
  s->attention_input = std::move(normed.y);
  s->norm1_rstd = std::move(normed.rstd);
  RETURN_IF_ERROR(GatheredLinear(context_.group, s->attention_input, shape.rows(), qkv_, {},
                                 again ? &s->attention_rows : nullptr, &s->qkv));
  s->qkv = s->qkv.view({shape.batch, shape.length, -1});
  Rotate(ByHead(s->qkv, shape), rotated_heads(), context_.cos, context_.sin, /*inverse=*/false);
  s->context =
      Attention(s->qkv, context_.heads, /*causal=*/true, attention ? &s->attention : nullptr);

  s->middle = Linear(s->context, o_);
  RETURN_IF_ERROR(context_.group.Sum(&s->middle));
  normed = AddRmsNorm(s->input, s->middle, norm2_.weight, epsilon);
  s->mlp_input = std::move(normed.y);
  s->norm2_rstd = std::move(normed.rstd);
  RETURN_IF_ERROR(GatheredLinear(context_.group, s->mlp_input, shape.rows(), gate_up_, {},
                                 again ? &s->mlp_rows : nullptr, &s->mlp_hidden));
  s->mlp_active = SwiGlu(s->mlp_hidden, context_.architecture.block);
  return absl::OkStatus();
}

absl::Status DecoderLayer::Restore(const SequenceShape& shape, LayerState* s) const {
  if (context_.recompute == job::Recompute::kNone) return absl::OkStatus();
  if (context_.recompute == job::Recompute::kFull)
    return Compute(shape, /*attention=*/true, /*again=*/true, s);
  const double epsilon = context_.architecture.norm_epsilon;
  RmsNormed normed = RmsNorm(s->input, norm1_.weight, epsilon);
  s->attention_input = std::move(normed.y);
  s->norm1_rstd = std::move(normed.rstd);
  s->context = Attention(s->qkv, context_.heads, /*causal=*/true, &s->attention);
  normed = RmsNorm(s->middle, norm2_.weight, epsilon);
  s->mlp_input = std::move(normed.y);
  s->norm2_rstd = std::move(normed.rstd);
  s->mlp_active = SwiGlu(s->mlp_hidden, context_.architecture.block);
  return absl::OkStatus();
}

absl::Status DecoderLayer::Forward(const at::Tensor& input, const SequenceShape& shape,
                                   LayerState* state, at::Tensor* output) const {
  LayerState s{.input = input};
  const bool attention = state != nullptr && context_.recompute == job::Recompute::kNone;
  RETURN_IF_ERROR(Compute(shape, attention, /*again=*/false, &s));
  *output = Linear(s.mlp_active, down_);
  RETURN_IF_ERROR(context_.group.Sum(output));
  output->add_(s.middle);
  if (state != nullptr) *state = Kept(context_, std::move(s));
  return absl::OkStatus();
}

absl::Status DecoderLayer::BackwardInput(const at::Tensor& output_gradient,
                                         const SequenceShape& shape, LayerState* state,
                                         WeightWork* work, at::Tensor* input_gradient) const {
  LayerState s = std::exchange(*state, {});
  const TensorGroup& group = context_.group;
  Transfer gradient, input, sum;
  at::Tensor rows, normed_gradient;
  RETURN_IF_ERROR(group.BeginWhole(output_gradient, shape.rows(), &gradient));
  WorkWhileRowsTravel(context_, work);
  RETURN_IF_ERROR(Restore(shape, &s));
  s.qkv.reset();
  RETURN_IF_ERROR(BeginInput(group, shape.rows(), &s.mlp_input, &s.mlp_rows, &input));
  RETURN_IF_ERROR(Await(&gradient, &rows));
  at::Tensor active_gradient = LinearInputGradient(rows, down_);
  work->Matrix(down_, std::move(rows), std::move(s.mlp_active));
  at::Tensor hidden_gradient =
      SwiGluBackward(active_gradient, std::exchange(s.mlp_hidden, {}), context_.architecture.block);
  active_gradient.reset();
  RETURN_IF_ERROR(group.BeginSum(LinearInputGradient(hidden_gradient, gate_up_), &sum));
  RETURN_IF_ERROR(Await(&input, &rows));
  work->Matrix(gate_up_, std::move(hidden_gradient), std::move(rows));
  WorkWhileRowsTravel(context_, work);
  RETURN_IF_ERROR(Await(&sum, &normed_gradient));
  NormGradient norm =
      RmsNormBackward(normed_gradient, s.middle, s.norm2_rstd, norm2_.weight, output_gradient);
  work->Sum(norm2_, std::move(norm.weight));
  const at::Tensor middle_gradient = std::move(norm.x);
  s.middle.reset();

  RETURN_IF_ERROR(group.BeginWhole(middle_gradient, shape.rows(), &gradient));
  WorkWhileRowsTravel(context_, work);
  RETURN_IF_ERROR(BeginInput(group, shape.rows(), &s.attention_input, &s.attention_rows, &input));
  RETURN_IF_ERROR(Await(&gradient, &rows));
  const at::Tensor context_gradient = LinearInputGradient(rows, o_);
  work->Matrix(o_, std::move(rows), std::move(s.context));
  const at::Tensor qkv_gradient =
      AttentionBackward(context_gradient, context_.heads, /*causal=*/true,
                        std::exchange(s.attention, {}), context_.cos, context_.sin);
  const at::Tensor qkv_rows = qkv_gradient.view({shape.rows(), -1});
  RETURN_IF_ERROR(group.BeginSum(LinearInputGradient(qkv_rows, qkv_), &sum));
  RETURN_IF_ERROR(Await(&input, &rows));
  work->Matrix(qkv_, qkv_rows, std::move(rows));
  WorkWhileRowsTravel(context_, work);
  RETURN_IF_ERROR(Await(&sum, &normed_gradient));
  norm = RmsNormBackward(normed_gradient, s.input, s.norm1_rstd, norm1_.weight, middle_gradient);
  work->Sum(norm1_, std::move(norm.weight));
  *input_gradient = std::move(norm.x);
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Layer> MakeDecoderLayer(const LayerContext& context, const ParameterTable& table,
                                        int32_t layer) {
  return std::make_unique<DecoderLayer>(context, table, layer);
}

}  // namespace phalanx::model
