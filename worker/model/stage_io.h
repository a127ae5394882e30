// worker/model/stage_io.h: tensors that go into and come out of a Stage, and how to make one.
#pragma once

#include <ATen/ATen.h>

#include "worker/model/stage.h"

namespace phalanx::model {

// Tensors are shared, never copied: what goes into a pass or comes out of it stays unchanged until
// BackwardWeight of the slot has run.
struct StageInput {
  // From the stage before; not on the first. [B, T, H]; vision: [items, patches + 1, H], because
  // the class token takes part in every layer.
  at::Tensor hidden;
  // First stage of the language module.
  // [B, T] int64; any valid id where a row of an item or padding stands.
  at::Tensor tokens;
  // [R, H] from incoming edges, concatenated in edge order; undefined without items.
  at::Tensor rows;
  // [R] int64: flat position b * T + t of each row.
  at::Tensor row_positions;
  // Last stage of the language module.
  // [B, T] int64: the token that position t predicts; any value where the weight is 0.
  at::Tensor labels;
  // [B, T] fp32 (fp64 under fp64), whatever the compute type: 1 counts, 0 does not.
  at::Tensor label_weights;
  // First stage of a vision module: [items, 3, image, image] of the compute type, normalised.
  at::Tensor pixels;
};

struct StageOutput {
  // Forward: [B, T, H] to the next stage (vision as StageInput::hidden). Last stage of a source
  // module: one entry an outgoing edge in the order of spec.edges, [items * patches, H of the
  // destination] after its projector. Entries are undefined where there are no items or samples.
  // BackwardInput: hidden[0] is the gradient of StageInput::hidden, undefined on the first stage.
  std::vector<at::Tensor> hidden;
  // BackwardInput: gradient of StageInput::rows.
  at::Tensor rows;
  // Last stage of a sink: scalar, fp32 or fp64: sum of weighted token losses, the same on every
  // tensor rank. Evaluate gives it where labels are given.
  at::Tensor loss_sum;
  // Evaluate on the last language stage: [B, T] int64, the most probable next token.
  at::Tensor predicted;
};

struct StageOptions {
  at::Device device = at::kCPU;
  at::ScalarType compute = at::kFloat;   // kBFloat16 | kFloat | kDouble
  at::ScalarType gradient = at::kFloat;  // max(fp32, compute)
};

// `parameters` must be plan::ParametersOf(plan, place, chunk); `weights` [parameters.elements] of
// the compute type, `gradients` [parameters.elements] of the gradient type, both alive as long as
// the stage. `tensor_group` is nullptr for width 1.
absl::StatusOr<std::unique_ptr<Stage>> MakeStage(const plan::Plan& plan, const plan::Place& place,
                                                 int32_t chunk,
                                                 const plan::StageParameters& parameters,
                                                 at::Tensor weights, at::Tensor gradients,
                                                 comm::Communicator* tensor_group,
                                                 const StageOptions& options);

// Fills `weights` with plan::InitialValue through the pieces; padding is 0. In parallel on
// `threads`.
void InitialiseWeights(const plan::Plan& plan, const plan::Place& place,
                       const plan::StageParameters& parameters, at::Tensor weights,
                       int32_t threads);

}  // namespace phalanx::model
