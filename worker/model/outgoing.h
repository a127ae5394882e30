// worker/model/outgoing.h: what the last part of a module sends along its edges.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "worker/model/projector.h"

namespace phalanx::model {

// One an outgoing edge; empty without a projector.
using OutgoingState = std::vector<ProjectorState>;

// The module's features, through the projector of each edge that has one. Immutable but for the
// gradients it adds to.
class Outgoing {
 public:
  // An edge with a projector, by its index in spec.edges, or one without.
  void AddProjector(TensorGroup group, const ParameterTable& table, int32_t edge) {
    projectors_.emplace_back(Projector(group, table, edge));
  }
  void AddPlain() { projectors_.emplace_back(); }

  size_t size() const { return projectors_.size(); }
  // One output an edge. `upstream`: whether the features' gradient will be asked for; a projector
  // that does not train keeps nothing otherwise. `state` may be nullptr.
  absl::Status Forward(const at::Tensor& features, bool upstream, OutgoingState* state,
                       std::vector<at::Tensor>* outputs) const;
  // From the gradient of each output (undefined or missing: nobody used it) the gradient of the
  // features, undefined if there is none or not `upstream`.
  absl::Status Backward(const std::vector<at::Tensor>& output_gradient, bool upstream,
                        OutgoingState* state, WeightWork* work, at::Tensor* gradient) const;

 private:
  std::vector<std::optional<Projector>> projectors_;
};

}  // namespace phalanx::model
