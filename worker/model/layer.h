// worker/model/layer.h: one layer of a module, and what layers of a module share.
//
// A layer takes and returns token rows [batch * length, hidden], complete, of which each tensor
// rank has all or its slice (tensor_group.h); the last one of a decoder may return some of them
// alone (SequenceShape::leaving), which are cut into slices of their own. It keeps what it needs in
// a state that the stage owns, one for each microbatch in flight. Errors: those of the
// communicator; LibTorch's exceptions pass through to the stage, which ends them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/job/job_spec.h"
#include "core/plan/parameters.h"
#include "worker/model/attention.h"
#include "worker/model/kernels.h"
#include "worker/model/row_choice.h"
#include "worker/model/tensor_group.h"
#include "worker/model/weight_work.h"

namespace phalanx::model {

// Finds the views of a stage's parameters in the flat buffers.
class ParameterTable {
 public:
  // Keeps references to all three. `gradients` may be undefined: no parameter has a gradient.
  ParameterTable(const plan::StageParameters& parameters, const at::Tensor& weights,
                 const at::Tensor& gradients)
      : parameters_(parameters), weights_(weights), gradients_(gradients) {}

  bool Has(plan::MatrixRole role, int32_t layer = -1, int32_t edge = -1) const {
    return parameters_.Find(role, layer, edge) != nullptr;
  }
  // As its logical tensors lie, so a transposed view of what is stored transposed. Throws
  // c10::Error if there is none. Without gradient where the matrix does not train.
  Parameter Matrix(plan::MatrixRole role, int32_t layer = -1, int32_t edge = -1) const;
  // The same as [rows]; the matrix has one column.
  Parameter Vector(plan::MatrixRole role, int32_t layer = -1, int32_t edge = -1) const;

 private:
  const plan::StageParameters& parameters_;
  const at::Tensor& weights_;
  const at::Tensor& gradients_;
};

// How the rows of a microbatch are cut into sequences, and which of them are of use behind the
// layer, or behind the last one of a stack: others are left out of all that follows attention.
struct SequenceShape {
  int64_t batch = 0, length = 0;
  RowChoice leaving = {};  // decoders
  int64_t rows() const { return batch * length; }
  int64_t leaving_rows() const { return leaving.CountOf(rows()); }
};

// What every layer of a stage shares. Constant after construction.
struct LayerContext {
  job::Architecture architecture;
  job::Recompute recompute = job::Recompute::kNone;
  bool trains = true;  // the layers' weights do; else only their input's gradient is asked for
  bool back = true;    // the layers have a backward pass
  bool fp8 = false;    // products of the layers are in FP8
  // Kernels find the largest magnitudes of what they make for such products. Else passes of their
  // own do, to the same bits.
  bool largest_on_the_way = true;
  int64_t weights_version = 0;  // another one wherever weights may have changed
  TensorGroup group{nullptr};
  HeadMap heads;
  at::Tensor cos, sin;  // [context, head_size / 2]; decoders
};

// What one layer keeps of one microbatch, and what its backward pass reads: those are the same but
// for recomputation.
struct LayerState {
  at::Tensor input, middle;  // rows of hidden_size, of this rank
  Operand attention_input, mlp_input;
  // All of them instead, where the backward pass need not gather them.
  Operand attention_rows, mlp_rows;
  at::Tensor qkv;         // [batch, length, columns of the heads]
  Operand context;        // attention's output, local heads
  at::Tensor mlp_hidden;  // before the activation, local columns
  Operand mlp_active;     // after it
  at::Tensor norm1_mean, norm1_rstd, norm2_mean, norm2_rstd;
  AttentionState attention;
};

// What of `computed` stays until the backward pass: under full recomputation the input alone; under
// selective recomputation the outputs of matrix products (input, qkv, middle, mlp_hidden) and of
// attention, from which pointwise work leads to the rest; else all that the backward pass reads.
LayerState Kept(const LayerContext& context, LayerState computed);
// Of what the backward pass reads, forgets what serves gradients of weights alone, where those do
// not train.
void DropOperands(const LayerContext& context, LayerState* s);

// What a layer's backward pass does while rows travel among its tensor ranks: weight products that
// wait. A pass has four such products. Under sequence parallelism its rows travel four times
// exposed, so each time hides one of them, the last that of the layer behind; else they travel
// twice, and nothing waits for long.
inline void WorkWhileRowsTravel(const LayerContext& context, WeightWork* work) {
  work->RunSome(context.group.slices() ? 1 : WeightWork::kAll);
}

// Rows between two layers, [rows of this rank, hidden_size]. Where `branch` is defined, a product
// of the layer before, it is still to be added to them, and with it `bias`, where that is defined
// (encoders): the norm behind does so in its own pass, in place of `branch`, which nobody else
// names. The bits are those of a pass of its own.
struct LayerRows {
  LayerRows() = default;
  LayerRows(at::Tensor all) : rows(std::move(all)) {}  // NOLINT: nothing is to be added
  LayerRows(at::Tensor residual, at::Tensor branch, at::Tensor bias)
      : rows(std::move(residual)), branch(std::move(branch)), bias(std::move(bias)) {}

  // `rows` become the sum, in a pass of its own.
  void Add();

  at::Tensor rows, branch, bias;
};
// The norms behind a layer; `input->rows` become the sum.
RmsNormed RmsNormOf(const at::Tensor& weight, double epsilon, LayerRows* input,
                    at::Tensor* largest = nullptr);
LayerNormed LayerNormOf(const at::Tensor& weight, const at::Tensor& bias, double epsilon,
                        LayerRows* input);

// Not thread-safe.
class Layer {
 public:
  virtual ~Layer() = default;
  // `state` may be nullptr: nothing is kept.
  virtual absl::Status Forward(LayerRows input, const SequenceShape& shape, LayerState* state,
                               LayerRows* output) const = 0;
  // Empties `state` into `work`. `shape` as in Forward. Full recomputation repeats the sum after
  // attention. Gradients are rows that are not rounded.
  virtual absl::Status BackwardInput(const Operand& output_gradient, const SequenceShape& shape,
                                     LayerState* state, WeightWork* work,
                                     Operand* input_gradient) const = 0;
};

// RMSNorm, rotary grouped-query attention, RMSNorm, SwiGLU, no biases. `context` outlives the
// layer.
std::unique_ptr<Layer> MakeDecoderLayer(const LayerContext& context, const ParameterTable& table,
                                        int32_t layer);
// LayerNorm, attention, LayerNorm, the family's GELU, with biases (but for keys where the family
// has none).
std::unique_ptr<Layer> MakeEncoderLayer(const LayerContext& context, const ParameterTable& table,
                                        int32_t layer);

// The layers of a stage one after the other. Not thread-safe.
class LayerStack {
 public:
  // `pace`: called between layers. `begins`: before each layer of Forward but the first.
  explicit LayerStack(Pace pace = nullptr, Pace begins = nullptr)
      : pace_(std::move(pace)), begins_(std::move(begins)) {}

  void Add(std::unique_ptr<Layer> layer) { layers_.push_back(std::move(layer)); }
  bool empty() const { return layers_.empty(); }
  // `hidden`: in and out. `states` may be nullptr: nothing is kept.
  absl::Status Forward(const SequenceShape& shape, std::vector<LayerState>* states,
                       LayerRows* hidden) const;
  // `gradient` of the last layer's output in, of the first layer's input out.
  absl::Status BackwardInput(const SequenceShape& shape, std::vector<LayerState>* states,
                             WeightWork* work, at::Tensor* gradient) const;

 private:
  // For the layer at `i`.
  SequenceShape ShapeOf(size_t i, const SequenceShape& shape) const {
    return i + 1 == layers_.size() ? shape : SequenceShape{shape.batch, shape.length};
  }

  const Pace pace_, begins_;
  std::vector<std::unique_ptr<Layer>> layers_;
};

// `whole` becomes, after AwaitWhole, all `rows` of what enters a product, of which this rank has
// `mine` (not rounded; undefined: so is `whole`), unless it has them already.
absl::Status BeginWhole(const TensorGroup& group, int64_t rows, Operand mine, Operand* whole,
                        Transfer* transfer);
absl::Status AwaitWhole(Transfer* transfer, Operand* whole);

// y = x W^T, and its input gradient. `kept` becomes what the weight's gradient takes of x or of y's
// gradient, where it is asked for.
at::Tensor Linear(const Operand& input, const Parameter& weight, Operand* kept = nullptr);
at::Tensor Linear(const at::Tensor& input, const Parameter& weight, const Parameter& bias);
// The same of all `rows` of x, of which this rank has `mine`: those first, while the others come,
// unless they are rounded together. Without a bias the parameter does not exist.
absl::Status GatheredLinear(const TensorGroup& group, const Operand& mine, int64_t rows,
                            const Parameter& weight, const Parameter& bias, Operand* kept,
                            at::Tensor* output);
at::Tensor LinearInputGradient(const Operand& output_gradient, const Parameter& weight,
                               Operand* kept = nullptr);

}  // namespace phalanx::model
