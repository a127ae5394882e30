#include <ATen/ATen.h>

#include <utility>

#include "core/base/status.h"
#include "worker/model/kernels.h"
#include "worker/model/layer.h"

namespace phalanx::model {
namespace {

// What the class below takes for granted.
static_assert(job::FamiliesWhere([](const job::FamilyTraits& family) {
                return family.encoder() &&
                       (family.norm != job::Norm::kLayer || family.gated() || !family.biases);
              }) == 0);

GeluKind KindOf(job::Activation activation) {
  switch (activation) {
    case job::Activation::kQuickGelu:
      return GeluKind::kQuick;
    case job::Activation::kGeluTanh:
      return GeluKind::kTanh;
    default:
      return GeluKind::kErf;
  }
}

class EncoderLayer final : public Layer {
 public:
  EncoderLayer(const LayerContext& context, const ParameterTable& table, int32_t layer)
      : context_(context),
        gelu_(KindOf(job::TraitsOf(context.architecture).activation)),
        key_bias_(job::TraitsOf(context.architecture).key_bias),
        norm1_(table.Vector(plan::MatrixRole::kNorm1, layer)),
        norm1_bias_(table.Vector(plan::MatrixRole::kNorm1Bias, layer)),
        qkv_(table.Matrix(plan::MatrixRole::kQkv, layer)),
        qkv_bias_(table.Vector(plan::MatrixRole::kQkvBias, layer)),
        o_(table.Matrix(plan::MatrixRole::kO, layer)),
        o_bias_(table.Vector(plan::MatrixRole::kOBias, layer)),
        norm2_(table.Vector(plan::MatrixRole::kNorm2, layer)),
        norm2_bias_(table.Vector(plan::MatrixRole::kNorm2Bias, layer)),
        up_(table.Matrix(plan::MatrixRole::kUp, layer)),
        up_bias_(table.Vector(plan::MatrixRole::kUpBias, layer)),
        down_(table.Matrix(plan::MatrixRole::kDown, layer)),
        down_bias_(table.Vector(plan::MatrixRole::kDownBias, layer)) {}

  absl::Status Forward(LayerRows input, const SequenceShape& shape, LayerState* state,
                       LayerRows* output) const override;
  absl::Status BackwardInput(const Operand& output_gradient, const SequenceShape& shape,
                             LayerState* state, WeightWork* work,
                             Operand* input_gradient) const override;

 private:
  // s->attention_input as the norm of s->input, which is that of `input`.
  void NormInput(LayerRows input, LayerState* s) const;
  // From there to s->mlp_active. `attention`: attention's state is wanted too. `again`: and all
  // that is gathered.
  absl::Status Compute(const SequenceShape& shape, bool attention, bool again, LayerState* s) const;
  // What recomputation left out.
  absl::Status Restore(const SequenceShape& shape, LayerState* s) const;
  void QkvBias(const at::Tensor& qkv_gradient, WeightWork* work) const;

  const LayerContext& context_;
  const GeluKind gelu_;
  const bool key_bias_;
  const Parameter norm1_, norm1_bias_, qkv_, qkv_bias_, o_, o_bias_;
  const Parameter norm2_, norm2_bias_, up_, up_bias_, down_, down_bias_;
};

void EncoderLayer::NormInput(LayerRows input, LayerState* s) const {
  LayerNormed normed =
      LayerNormOf(norm1_.weight, norm1_bias_.weight, context_.architecture.norm_epsilon, &input);
  s->input = std::move(input.rows);
  s->attention_input = std::move(normed.y);
  s->norm1_mean = std::move(normed.mean);
  s->norm1_rstd = std::move(normed.rstd);
}

absl::Status EncoderLayer::Compute(const SequenceShape& shape, bool attention, bool again,
                                   LayerState* s) const {
  RETURN_IF_ERROR(GatheredLinear(context_.group, s->attention_input, shape.rows(), qkv_, qkv_bias_,
                                 again ? &s->attention_rows : nullptr, &s->qkv));
  s->qkv = s->qkv.view({shape.batch, shape.length, -1});
  s->context =
      Attention(s->qkv, context_.heads, /*causal=*/false, attention ? &s->attention : nullptr);

  s->middle = Linear(s->context.rows, o_);
  RETURN_IF_ERROR(context_.group.Sum(&s->middle));
  // The bias once, after the sum over ranks.
  LayerNormed normed = AddLayerNorm(s->input, s->middle, o_bias_.weight, norm2_.weight,
                                    norm2_bias_.weight, context_.architecture.norm_epsilon);
  s->mlp_input = std::move(normed.y);
  s->norm2_mean = std::move(normed.mean);
  s->norm2_rstd = std::move(normed.rstd);
  RETURN_IF_ERROR(GatheredLinear(context_.group, s->mlp_input, shape.rows(), up_, up_bias_,
                                 again ? &s->mlp_rows : nullptr, &s->mlp_hidden));
  s->mlp_active = Gelu(gelu_, s->mlp_hidden);
  return absl::OkStatus();
}

absl::Status EncoderLayer::Restore(const SequenceShape& shape, LayerState* s) const {
  if (context_.recompute == job::Recompute::kNone) return absl::OkStatus();
  NormInput(s->input, s);
  if (context_.recompute == job::Recompute::kFull)
    return Compute(shape, /*attention=*/true, /*again=*/true, s);
  s->context = OutputOf(s->attention);
  LayerNormed normed =
      LayerNorm(s->middle, norm2_.weight, norm2_bias_.weight, context_.architecture.norm_epsilon);
  s->mlp_input = std::move(normed.y);
  s->norm2_mean = std::move(normed.mean);
  s->norm2_rstd = std::move(normed.rstd);
  s->mlp_active = Gelu(gelu_, s->mlp_hidden);
  return absl::OkStatus();
}

absl::Status EncoderLayer::Forward(LayerRows input, const SequenceShape& shape, LayerState* state,
                                   LayerRows* output) const {
  LayerState s;
  NormInput(std::move(input), &s);
  const bool attention = state != nullptr && context_.recompute != job::Recompute::kFull;
  RETURN_IF_ERROR(Compute(shape, attention, /*again=*/false, &s));
  at::Tensor branch = Linear(s.mlp_active.rows, down_);
  RETURN_IF_ERROR(context_.group.Sum(&branch));
  *output = LayerRows(s.middle, std::move(branch), down_bias_.weight);
  if (state != nullptr) *state = Kept(context_, std::move(s));
  return absl::OkStatus();
}

// Rows of a bias that keys do not have stay 0.
void EncoderLayer::QkvBias(const at::Tensor& qkv_gradient, WeightWork* work) const {
  if (key_bias_) {
    work->Bias(qkv_bias_, qkv_gradient);
    return;
  }
  const int64_t queries = context_.heads.query_heads * context_.heads.head_size;
  const int64_t keys = context_.heads.kv_heads * context_.heads.head_size;
  work->Bias(NarrowRows(qkv_bias_, 0, queries), qkv_gradient.narrow(1, 0, queries));
  work->Bias(NarrowRows(qkv_bias_, queries + keys, keys),
             qkv_gradient.narrow(1, queries + keys, keys));
}

absl::Status EncoderLayer::BackwardInput(const Operand& upstream, const SequenceShape& shape,
                                         LayerState* state, WeightWork* work,
                                         Operand* input_gradient) const {
  const at::Tensor& output_gradient = upstream.rows;
  LayerState s = std::exchange(*state, {});
  const TensorGroup& group = context_.group;
  Transfer gradient, input, sum;
  at::Tensor rows, normed_gradient;
  RETURN_IF_ERROR(group.BeginWhole(output_gradient, shape.rows(), &gradient));
  WorkWhileRowsTravel(context_, work);
  RETURN_IF_ERROR(Restore(shape, &s));
  DropOperands(context_, &s);  // what is not there is not gathered
  s.qkv.reset();
  RETURN_IF_ERROR(
      BeginWhole(group, shape.rows(), std::exchange(s.mlp_input, {}), &s.mlp_rows, &input));
  RETURN_IF_ERROR(Await(&gradient, &rows));
  GeluGradient hidden =
      GeluBackward(gelu_, LinearInputGradient(rows, down_), std::exchange(s.mlp_hidden, {}),
                   /*column_sums=*/up_bias_.gradient.defined());
  work->Matrix(down_, std::move(rows), std::move(s.mlp_active));
  RETURN_IF_ERROR(group.BeginSum(LinearInputGradient(hidden.x, up_), &sum));
  RETURN_IF_ERROR(AwaitWhole(&input, &s.mlp_rows));
  work->Matrix(up_, hidden.x, std::exchange(s.mlp_rows, {}));
  work->Bias(up_bias_, std::move(hidden.x), std::move(hidden.sum));
  WorkWhileRowsTravel(context_, work);
  RETURN_IF_ERROR(Await(&sum, &normed_gradient));
  NormGradient norm = LayerNormBackward(normed_gradient, s.middle, {{}, s.norm2_mean, s.norm2_rstd},
                                        norm2_.weight, norm2_bias_.weight, output_gradient,
                                        /*column_sums=*/o_bias_.gradient.defined());
  work->Bias(down_bias_, output_gradient, std::move(norm.residual_sum));
  work->Sum(norm2_, std::move(norm.weight));
  work->Sum(norm2_bias_, std::move(norm.bias));
  const at::Tensor middle_gradient = std::move(norm.x);
  s.middle.reset();

  RETURN_IF_ERROR(group.BeginWhole(middle_gradient, shape.rows(), &gradient));
  WorkWhileRowsTravel(context_, work);
  RETURN_IF_ERROR(BeginWhole(group, shape.rows(), std::exchange(s.attention_input, {}),
                             &s.attention_rows, &input));
  RETURN_IF_ERROR(Await(&gradient, &rows));
  const at::Tensor context_gradient = LinearInputGradient(rows, o_);
  work->Matrix(o_, std::move(rows), std::move(s.context));
  work->Bias(o_bias_, middle_gradient, std::move(norm.x_sum));
  const at::Tensor qkv_gradient =
      AttentionBackward(context_gradient, context_.heads, /*causal=*/false,
                        std::exchange(s.attention, {}))
          .view({shape.rows(), -1});
  RETURN_IF_ERROR(group.BeginSum(LinearInputGradient(qkv_gradient, qkv_), &sum));
  RETURN_IF_ERROR(AwaitWhole(&input, &s.attention_rows));
  work->Matrix(qkv_, qkv_gradient, std::exchange(s.attention_rows, {}));
  QkvBias(qkv_gradient, work);
  WorkWhileRowsTravel(context_, work);
  RETURN_IF_ERROR(Await(&sum, &normed_gradient));
  norm = LayerNormBackward(normed_gradient, s.input, {{}, s.norm1_mean, s.norm1_rstd},
                           norm1_.weight, norm1_bias_.weight, middle_gradient);
  work->Sum(norm1_, std::move(norm.weight));
  work->Sum(norm1_bias_, std::move(norm.bias));
  *input_gradient = std::move(norm.x);
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Layer> MakeEncoderLayer(const LayerContext& context, const ParameterTable& table,
                                        int32_t layer) {
  return std::make_unique<EncoderLayer>(context, table, layer);
}

}  // namespace phalanx::model
