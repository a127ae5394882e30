// worker/model/projector.h: the two linear layers along an edge, with an exact GELU between.
//
// Tensor-parallel like an MLP: the first layer by blocks of columns, the second by the same rows,
// one sum over the tensor ranks after it and the bias after the sum.
#pragma once

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "worker/model/layer.h"

namespace phalanx::model {

struct ProjectorState {
  at::Tensor input, hidden, active;
};

// Immutable but for the gradients it adds to.
class Projector {
 public:
  Projector(TensorGroup group, const ParameterTable& table, int32_t edge);
  bool trains() const { return up_.gradient.defined(); }
  // `state` may be nullptr.
  absl::Status Forward(const at::Tensor& input, ProjectorState* state, at::Tensor* output) const;
  // `input_gradient` may be nullptr: nobody asks for it.
  absl::Status BackwardInput(const at::Tensor& output_gradient, ProjectorState* state,
                             WeightWork* work, at::Tensor* input_gradient) const;

 private:
  TensorGroup group_;
  Parameter up_, up_bias_, down_, down_bias_;
};

}  // namespace phalanx::model
