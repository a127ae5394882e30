// worker/model/stage_io.h: tensors that go into and come out of a Stage, and how to make one.
#pragma once

#include <ATen/ATen.h>

#include "worker/model/stage.h"

namespace phalanx::model {

struct StageInput {
  at::Tensor hidden;  // [B, T, H] (vision: [items, patches, H]): from the stage before; not on the first
  // First stage of the language module:
  at::Tensor tokens;         // [B, T] int64; any valid id where a row of an item or padding stands
  at::Tensor rows;           // [R, H] from incoming edges, concatenated in edge order; undefined without items
  at::Tensor row_positions;  // [R] int64: flat position b * T + t of each row
  // Last stage of the language module:
  at::Tensor labels;         // [B, T] int64: the token that position t predicts
  at::Tensor label_weights;  // [B, T] compute-independent fp32 (fp64 under fp64): 1 counts, 0 does not
  // First stage of a vision module:
  at::Tensor pixels;         // [items, 3, image, image] compute type, normalised
};

struct StageOutput {
  // Forward: [B, T, H] to the next stage. Last stage of a source module: one entry an outgoing edge,
  // [items * patches, H of the destination] after its projector (undefined entries if there are no
  // items). BackwardInput: hidden[0] is the gradient of StageInput::hidden.
  std::vector<at::Tensor> hidden;
  at::Tensor rows;      // BackwardInput: gradient of StageInput::rows
  at::Tensor loss_sum;  // last stage of a sink: scalar, fp32 or fp64: sum of weighted token losses, the same on
                        // every tensor rank
  at::Tensor predicted; // Evaluate on the last language stage: [B, T] int64, the most probable next token
};

struct StageOptions {
  at::Device device = at::kCPU;
  at::ScalarType compute = at::kFloat;   // kBFloat16 | kFloat | kDouble
  at::ScalarType gradient = at::kFloat;  // max(fp32, compute)
};

// `parameters` must be plan::ParametersOf(plan, place, chunk); `weights` [parameters.elements] of the
// compute type, `gradients` [parameters.elements] of the gradient type, both alive as long as the
// stage. `tensor_group` is nullptr for width 1.
absl::StatusOr<std::unique_ptr<Stage>> MakeStage(const plan::Plan& plan, const plan::Place& place, int32_t chunk,
                                                 const plan::StageParameters& parameters, at::Tensor weights,
                                                 at::Tensor gradients, comm::Communicator* tensor_group,
                                                 const StageOptions& options);

// Fills `weights` with plan::InitialValue through the pieces; padding is 0. In parallel on `threads`.
void InitialiseWeights(const plan::Plan& plan, const plan::Place& place, const plan::StageParameters& parameters,
                       at::Tensor weights, int32_t threads);

}  // namespace phalanx::model
