#include <ATen/ATen.h>

#include <utility>

#include "core/base/status.h"
#include "core/plan/rows.h"
#include "worker/model/kernels.h"
#include "worker/model/layer.h"

namespace phalanx::model {
namespace {

// What the class below takes for granted.
static_assert(job::FamiliesWhere([](const job::FamilyTraits& family) {
                return family.decoder() &&
                       (family.norm != job::Norm::kRms || !family.gated() || family.biases ||
                        family.positions != job::Positions::kRotary);
              }) == 0);

class DecoderLayer final : public Layer {
 public:
  DecoderLayer(const LayerContext& context, const ParameterTable& table, int32_t layer)
      : context_(context),
        norm1_(table.Vector(plan::MatrixRole::kNorm1, layer)),
        qkv_(MatrixOf(table, plan::MatrixRole::kQkv, layer)),
        o_(MatrixOf(table, plan::MatrixRole::kO, layer)),
        norm2_(table.Vector(plan::MatrixRole::kNorm2, layer)),
        gate_up_(MatrixOf(table, plan::MatrixRole::kGateUp, layer)),
        down_(MatrixOf(table, plan::MatrixRole::kDown, layer)) {}

  absl::Status Forward(LayerRows input, const SequenceShape& shape, LayerState* state,
                       LayerRows* output) const override;
  absl::Status BackwardInput(const Operand& output_gradient, const SequenceShape& shape,
                             LayerState* state, WeightWork* work,
                             Operand* input_gradient) const override;

 private:
  // With its products as the context says. Before those that follow: context_ is there.
  Parameter MatrixOf(const ParameterTable& table, plan::MatrixRole role, int32_t layer) const {
    Parameter matrix = table.Matrix(role, layer);
    if (context_.fp8) {
      matrix.fp8 =
          std::make_shared<Fp8Weight>(matrix.weight, context_.back, context_.weights_version);
    }
    return matrix;
  }
  // What a backward pass is to find.
  struct Wanted {
    bool attention = false;  // attention's state
    bool operands = false;   // of products, where the weights train
    bool gathered = false;   // of those all that is gathered
  };
  // From s->attention_input to s->mlp_hidden.
  absl::Status Compute(const SequenceShape& shape, const Wanted& wanted, LayerState* s) const;
  // Where a kernel is to leave the largest magnitude of what it makes, which `operand` becomes.
  at::Tensor* LargestOf(Operand* operand) const {
    operand->largest.reset();
    return context_.fp8 && context_.largest_on_the_way ? &operand->largest : nullptr;
  }
  // s->attention_input, and s->mlp_input, as norms of s->input, which is that of `input`, and of
  // s->middle.
  void NormInput(LayerRows input, LayerState* s) const;
  void NormMiddle(LayerState* s) const;
  // From attention's output of the rows that leave: s->middle, and its norm. `kept` as of Linear.
  absl::Status AddAttention(const at::Tensor& attended, const SequenceShape& shape, Operand* kept,
                            LayerState* s) const;
  // What recomputation left out, but for s->mlp_active.
  absl::Status Restore(const SequenceShape& shape, LayerState* s) const;
  at::Tensor ByHead(const at::Tensor& qkv, const SequenceShape& shape) const {
    return qkv.view({shape.batch, shape.length, -1, context_.heads.head_size});
  }
  // Of all rows that this rank has between products, from `whole`, those that leave.
  at::Tensor InPlace(const SequenceShape& shape, const at::Tensor& whole) const {
    const RowChoice mine{.rows = shape.leaving.rows,
                         .place = context_.group.Mine(shape.leaving.place),
                         .chosen = context_.group.Mine(shape.leaving.chosen)};
    return mine.PutBack(whole);
  }
  int64_t rotated_heads() const { return context_.heads.query_heads + context_.heads.kv_heads; }

  const LayerContext& context_;
  const Parameter norm1_, qkv_, o_, norm2_, gate_up_, down_;
};

void DecoderLayer::NormInput(LayerRows input, LayerState* s) const {
  RmsNormed normed = RmsNormOf(norm1_.weight, context_.architecture.norm_epsilon, &input,
                               LargestOf(&s->attention_input));
  s->input = std::move(input.rows);
  s->attention_input.rows = std::move(normed.y);
  s->norm1_rstd = std::move(normed.rstd);
}

void DecoderLayer::NormMiddle(LayerState* s) const {
  RmsNormed normed = RmsNorm(s->middle, norm2_.weight, context_.architecture.norm_epsilon,
                             LargestOf(&s->mlp_input));
  s->mlp_input.rows = std::move(normed.y);
  s->norm2_rstd = std::move(normed.rstd);
}

absl::Status DecoderLayer::AddAttention(const at::Tensor& attended, const SequenceShape& shape,
                                        Operand* kept, LayerState* s) const {
  const TensorGroup& group = context_.group;
  s->middle = Linear(attended, o_, kept);
  if (shape.leaving.all() || !group.slices()) {
    RETURN_IF_ERROR(group.Sum(&s->middle));
    RmsNormed normed = AddRmsNorm(shape.leaving.Take(s->input), s->middle, norm2_.weight,
                                  context_.architecture.norm_epsilon, LargestOf(&s->mlp_input));
    s->mlp_input.rows = std::move(normed.y);
    s->norm2_rstd = std::move(normed.rstd);
    return absl::OkStatus();
  }
  // Slices of the rows that leave are not those of all rows. So a row of the input goes where it
  // belongs with the sum: whoever has it adds it to its summand.
  const plan::UnitRange mine = plan::SliceOf(shape.rows(), group.width(), group.rank());
  if (mine.count > 0) s->middle.add_(shape.leaving.TakeFromPart(s->input, mine.first));
  RETURN_IF_ERROR(group.Sum(&s->middle));
  NormMiddle(s);
  return absl::OkStatus();
}

absl::Status DecoderLayer::Compute(const SequenceShape& shape, const Wanted& wanted,
                                   LayerState* s) const {
  const auto if_trained = [&](Operand& kept) {
    return wanted.operands && context_.trains ? &kept : nullptr;
  };
  // What is gathered once more need not stay.
  const auto if_whole = [&](Operand& kept) {
    return wanted.gathered || !context_.group.slices() ? if_trained(kept) : nullptr;
  };
  RETURN_IF_ERROR(GatheredLinear(context_.group, s->attention_input, shape.rows(), qkv_, {},
                                 if_whole(s->attention_rows), &s->qkv));
  if (s->attention_rows.defined()) s->attention_input = {};
  s->qkv = s->qkv.view({shape.batch, shape.length, -1});
  Rotate(ByHead(s->qkv, shape), rotated_heads(), context_.cos, context_.sin, /*inverse=*/false);
  const at::Tensor attended = shape.leaving.Take(Attention(
      s->qkv, context_.heads, /*causal=*/true, wanted.attention ? &s->attention : nullptr));
  RETURN_IF_ERROR(AddAttention(attended, shape, if_trained(s->context), s));
  RETURN_IF_ERROR(GatheredLinear(context_.group, s->mlp_input, shape.leaving_rows(), gate_up_, {},
                                 if_whole(s->mlp_rows), &s->mlp_hidden));
  if (s->mlp_rows.defined()) s->mlp_input = {};
  return absl::OkStatus();
}

absl::Status DecoderLayer::Restore(const SequenceShape& shape, LayerState* s) const {
  if (context_.recompute == job::Recompute::kNone) return absl::OkStatus();
  NormInput(s->input, s);
  if (context_.recompute == job::Recompute::kFull)
    return Compute(shape, {.attention = true, .operands = true, .gathered = true}, s);
  s->context = shape.leaving.Take(OutputOf(s->attention));
  NormMiddle(s);
  return absl::OkStatus();
}

absl::Status DecoderLayer::Forward(LayerRows input, const SequenceShape& shape, LayerState* state,
                                   LayerRows* output) const {
  LayerState s;
  NormInput(std::move(input), &s);
  const bool operands = state != nullptr && context_.recompute == job::Recompute::kNone;
  const bool attention = state != nullptr && context_.recompute != job::Recompute::kFull;
  RETURN_IF_ERROR(Compute(shape, {.attention = attention, .operands = operands}, &s));
  Operand active;
  active.rows = SwiGlu(s.mlp_hidden, context_.architecture.block, LargestOf(&active));
  at::Tensor branch = Linear(active, down_, operands && context_.trains ? &s.mlp_active : nullptr);
  RETURN_IF_ERROR(context_.group.Sum(&branch));
  *output = LayerRows(s.middle, std::move(branch), {});
  if (state != nullptr) *state = Kept(context_, std::move(s));
  return absl::OkStatus();
}

absl::Status DecoderLayer::BackwardInput(const Operand& output_gradient, const SequenceShape& shape,
                                         LayerState* state, WeightWork* work,
                                         Operand* input_gradient) const {
  LayerState s = std::exchange(*state, {});
  const TensorGroup& group = context_.group;
  Transfer gradient, input, sum;
  at::Tensor normed_gradient;
  Operand rows, product_gradient;
  const int64_t leaving = shape.leaving_rows();
  RETURN_IF_ERROR(BeginWhole(group, leaving, output_gradient, &rows, &gradient));
  WorkWhileRowsTravel(context_, work);
  RETURN_IF_ERROR(Restore(shape, &s));
  DropOperands(context_, &s);  // what is not there is not gathered
  s.qkv.reset();
  RETURN_IF_ERROR(BeginWhole(group, leaving, std::exchange(s.mlp_input, {}), &s.mlp_rows, &input));
  RETURN_IF_ERROR(AwaitWhole(&gradient, &rows));
  at::Tensor active_gradient = LinearInputGradient(rows, down_, &product_gradient);
  rows = {};
  const bool active_again = context_.trains && !s.mlp_active.defined();
  const auto down_work = [&] {
    work->Matrix(down_, std::exchange(product_gradient, {}), std::exchange(s.mlp_active, {}));
  };
  if (!active_again) down_work();  // memory goes back as soon as it can
  Operand hidden_gradient;
  SwiGluAgain again{.largest = LargestOf(&s.mlp_active)};
  hidden_gradient.rows =
      SwiGluBackward(active_gradient, std::exchange(s.mlp_hidden, {}), context_.architecture.block,
                     LargestOf(&hidden_gradient), active_again ? &again : nullptr);
  active_gradient.reset();
  s.mlp_active.rows = std::move(again.y);
  if (active_again) down_work();
  RETURN_IF_ERROR(
      group.BeginSum(LinearInputGradient(hidden_gradient, gate_up_, &product_gradient), &sum));
  hidden_gradient = {};
  RETURN_IF_ERROR(AwaitWhole(&input, &s.mlp_rows));
  work->Matrix(gate_up_, std::exchange(product_gradient, {}), std::exchange(s.mlp_rows, {}));
  WorkWhileRowsTravel(context_, work);
  RETURN_IF_ERROR(Await(&sum, &normed_gradient));
  Operand residual_gradient;
  NormGradient norm = RmsNormBackward(normed_gradient, s.middle, s.norm2_rstd, norm2_.weight,
                                      output_gradient.rows, LargestOf(&residual_gradient));
  work->Sum(norm2_, std::move(norm.weight));
  residual_gradient.rows = std::move(norm.x);
  s.middle.reset();

  RETURN_IF_ERROR(BeginWhole(group, leaving, residual_gradient, &rows, &gradient));
  WorkWhileRowsTravel(context_, work);
  RETURN_IF_ERROR(BeginWhole(group, shape.rows(), std::exchange(s.attention_input, {}),
                             &s.attention_rows, &input));
  RETURN_IF_ERROR(AwaitWhole(&gradient, &rows));
  const at::Tensor context_gradient =
      shape.leaving.PutBack(LinearInputGradient(rows, o_, &product_gradient));
  if (!shape.leaving.all()) residual_gradient = InPlace(shape, rows.rows);
  rows = {};
  work->Matrix(o_, std::exchange(product_gradient, {}), std::exchange(s.context, {}));
  Operand qkv_gradient;
  qkv_gradient.rows = AttentionBackward(context_gradient, context_.heads, /*causal=*/true,
                                        std::exchange(s.attention, {}), context_.cos, context_.sin,
                                        LargestOf(&qkv_gradient))
                          .view({shape.rows(), -1});
  RETURN_IF_ERROR(group.BeginSum(LinearInputGradient(qkv_gradient, qkv_, &product_gradient), &sum));
  RETURN_IF_ERROR(AwaitWhole(&input, &s.attention_rows));
  work->Matrix(qkv_, std::exchange(product_gradient, {}), std::exchange(s.attention_rows, {}));
  WorkWhileRowsTravel(context_, work);
  RETURN_IF_ERROR(Await(&sum, &normed_gradient));
  Operand of_input;
  norm = RmsNormBackward(normed_gradient, s.input, s.norm1_rstd, norm1_.weight,
                         residual_gradient.rows, LargestOf(&of_input));
  work->Sum(norm1_, std::move(norm.weight));
  of_input.rows = std::move(norm.x);
  *input_gradient = std::move(of_input);
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Layer> MakeDecoderLayer(const LayerContext& context, const ParameterTable& table,
                                        int32_t layer) {
  return std::make_unique<DecoderLayer>(context, table, layer);
}

}  // namespace phalanx::model
