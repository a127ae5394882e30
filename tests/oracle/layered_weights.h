// tests/oracle/layered_weights.h: weights that a forward pass gets layer by layer, as it does while
// parameters are still being gathered (model::StageOptions::layer_begins).
//
// Not thread-safe.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "core/plan/parameters.h"

namespace phalanx::oracle {

class LayeredWeights {
 public:
  // Of a stage. `parameters` outlives it.
  LayeredWeights(const plan::StageParameters& parameters, at::Tensor weights);

  // A pass begins: what neither its first layer nor anything before it reads is no number.
  void Hide();
  // The pass begins its next layer.
  void LayerBegins();
  // The pass is over. Fails the test where it has begun some of its layers and not all.
  void Show();

 private:
  // The layer, counted from the stage's first one, that is not to begin without the matrix.
  int32_t LayerOf(const plan::LocalMatrix& matrix) const;
  void Show(int32_t layer);

  const plan::StageParameters& parameters_;
  at::Tensor weights_;
  int32_t first_ = 0, layers_ = 0;  // of the module, and how many
  int32_t begun_ = 0;               // the pass's last layer
  at::Tensor whole_;                // while a pass runs
};

}  // namespace phalanx::oracle
