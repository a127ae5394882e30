// worker/model/prediction.h: the end of a regressor: a linear map and the squared error.
//
// Every tensor rank computes all of it on complete rows, so nothing is exchanged.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/weight_work.h"

namespace phalanx::model {

struct PredictionState {
  at::Tensor rows;      // [R, hidden], normed
  at::Tensor gradient;  // [R, hidden], of the predicted rows
  at::Tensor positions;
};

// Immutable but for the gradient it adds to.
class Prediction {
 public:
  Prediction(Parameter predict, double loss_weight)
      : predict_(std::move(predict)), loss_weight_(loss_weight) {}
  // loss_weight * sum over the targets [R, hidden] of weight * the mean squared difference between
  // a target and what the row of `normed` [rows, hidden] at its position predicts; a scalar of the
  // sum type. `state` may be nullptr.
  at::Tensor Forward(const at::Tensor& normed, const at::Tensor& targets,
                     const at::Tensor& positions, const at::Tensor& weights,
                     PredictionState* state) const;
  // Adds to the gradient of `normed`.
  void Backward(PredictionState* state, WeightWork* work, const at::Tensor& normed_gradient) const;

 private:
  Parameter predict_;
  double loss_weight_;
};

}  // namespace phalanx::model
