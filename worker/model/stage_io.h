// worker/model/stage_io.h: tensors that go into and come out of a Stage, and how to make one.
#pragma once

#include <ATen/ATen.h>

#include "worker/model/row_choice.h"
#include "worker/model/stage.h"
#include "worker/model/token_rows.h"
#include "worker/model/weight_work.h"

namespace phalanx::model {

// Tensors are shared, never copied: what goes into a pass or comes out of it stays unchanged until
// BackwardWeight of the slot has run.
struct StageInput {
  // From the stage before; not on the first. Of [rows, H] what this rank has between products
  // (tensor_group.h), of a microbatch with rows defined even if that is none: in a decoder row
  // b * T + t; in an encoder the rows of its layers, item by item, the class token's too, because
  // it takes part in every layer.
  at::Tensor hidden;
  // B and T; of an encoder its items, each of as many rows as the architecture says.
  int64_t batch = 0, length = 0;
  // First stage of the language module.
  // Of B * T rows, items' rows at `row_positions`.
  TokenRows tokens;
  // First stage of a decoder. [R, H] from incoming edges, concatenated in edge order; undefined
  // without items. Rows that stand at one position (several producers) are added.
  at::Tensor rows;
  // [R] int64: flat position b * T + t of each row.
  at::Tensor row_positions;
  // Last stage of a decoder with outgoing edges: [R] int64, flat positions of the rows that leave,
  // in their order: those of every sample without padding.
  at::Tensor output_positions;
  // Last stage of the language module.
  // The rows that are held to labels, R of them: others get no logits. All B * T by default.
  RowChoice labelled;
  // R values, int64: the token that a row predicts; any where the weight is 0.
  at::Tensor labels;
  // R values, fp32 (fp64 under fp64), whatever the compute type: 1 counts, 0 does not.
  at::Tensor label_weights;
  // First stage of a vision module: [items, 3, image, image] of the compute type, normalised.
  at::Tensor pixels;
  // First stage of an audio module: [items, mel bins, frames] of the compute type, log-mel.
  at::Tensor sounds;
  // Last stage of a regressor that has the loss: rows [R, H] to predict, of the compute type; the
  // flat position of each; [R] fp32 (fp64 under fp64) weights, 0: does not count.
  at::Tensor targets, target_positions, target_weights;
};

struct StageOutput {
  // Forward: to the next stage, as StageInput::hidden. Last stage of a source module: one entry an
  // outgoing edge in the order of spec.edges, [rows, H of the destination] after its projector;
  // rows: RowsOfItem of each item of an encoder, output_positions of a decoder. Entries are
  // undefined where there are no items or samples.
  // BackwardInput: hidden[0] is the gradient of StageInput::hidden, undefined on the first stage.
  std::vector<at::Tensor> hidden;
  // BackwardInput: gradient of StageInput::rows.
  at::Tensor rows;
  // Last stage of a module with a loss (Plan::HasLoss), outgoing edges or not: scalar, fp32 or
  // fp64, the same on every tensor rank. Language: sum of weighted token losses. Regressor:
  // loss_weight * sum over its rows of the weighted mean over H of the squared error. Evaluate
  // gives it where labels or targets are given.
  at::Tensor loss_sum;
  // Evaluate on the last language stage: [R] int64, the most probable token behind each of
  // StageInput::labelled.
  at::Tensor predicted;
};

struct StageOptions {
  at::Device device = at::kCPU;
  at::ScalarType compute = at::kFloat;   // kBFloat16 | kFloat | kDouble
  at::ScalarType gradient = at::kFloat;  // max(fp32, compute)
  Pace pace;
  // Called by Stage::Forward() and Evaluate() before each layer but the first, counted from the
  // input: until then nothing reads its weights, nor, before the last one, what is behind it.
  Pace layer_begins;
  // Called by Stage::Backward() behind each layer but its last one, counted from the output: the
  // gradients of the layer's weights are enqueued, and those of everything behind it.
  Pace layer_done;
};

// `parameters` must be plan::ParametersOf(plan, place, chunk); `weights` [parameters.elements] of
// the compute type, `gradients` [parameters.elements] of the gradient type or, where nothing
// trains, undefined; both alive as long as the stage. `tensor_group` is nullptr for width 1.
absl::StatusOr<std::unique_ptr<Stage>> MakeStage(const plan::Plan& plan, const plan::Place& place,
                                                 int32_t chunk,
                                                 const plan::StageParameters& parameters,
                                                 at::Tensor weights, at::Tensor gradients,
                                                 comm::Communicator* tensor_group,
                                                 const StageOptions& options);

// Fills `weights` with plan::InitialValues through the pieces; padding is 0. In parallel on
// `threads`.
void InitialiseWeights(const plan::Plan& plan, const plan::Place& place,
                       const plan::StageParameters& parameters, at::Tensor weights,
                       int32_t threads);

}  // namespace phalanx::model
