#include "worker/model/outgoing.h"

#include <ATen/ATen.h>

#include <utility>

#include "core/base/status.h"

namespace phalanx::model {

absl::Status Outgoing::Forward(const at::Tensor& features, bool upstream, OutgoingState* state,
                               std::vector<at::Tensor>* outputs) const {
  outputs->resize(size());
  if (state != nullptr) state->resize(size());
  for (size_t i = 0; i < size(); ++i) {
    if (!projectors_[i].has_value()) {
      (*outputs)[i] = features;
      continue;
    }
    const bool keep = state != nullptr && (upstream || projectors_[i]->trains());
    RETURN_IF_ERROR(
        projectors_[i]->Forward(features, keep ? &(*state)[i] : nullptr, &(*outputs)[i]));
  }
  return absl::OkStatus();
}

absl::Status Outgoing::Backward(const std::vector<at::Tensor>& output_gradient, bool upstream,
                                OutgoingState* state, WeightWork* work,
                                at::Tensor* gradient) const {
  at::Tensor sum;
  for (size_t i = 0; i < size() && i < output_gradient.size(); ++i) {
    at::Tensor part = output_gradient[i];
    if (!part.defined()) continue;
    if (projectors_[i].has_value()) {
      if (!upstream && !projectors_[i]->trains()) continue;
      at::Tensor through;
      RETURN_IF_ERROR(
          projectors_[i]->BackwardInput(part, &(*state)[i], work, upstream ? &through : nullptr));
      part = std::move(through);
    }
    if (upstream) sum = sum.defined() ? sum.add(part) : part;
  }
  *gradient = std::move(sum);
  return absl::OkStatus();
}

}  // namespace phalanx::model
