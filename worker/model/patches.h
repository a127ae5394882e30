// worker/model/patches.h: pixels to the first rows of a vision encoder.
//
// A patch is a row of pixels times a matrix, with a bias in families that have one; the class
// token's row, where there is one, is put before the patches of each image, positions are added,
// and the sum is normed where the family does so. Every tensor rank computes all of it.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/kernels.h"
#include "worker/model/layer.h"

namespace phalanx::model {

struct PatchState {
  at::Tensor patches;   // [items * patches, 3 * patch * patch]
  at::Tensor embedded;  // [items * rows, hidden], before the norm
  LayerNormed norm;
};

// Immutable but for the gradients it adds to.
class PatchEmbedding {
 public:
  PatchEmbedding(const LayerContext& context, const ParameterTable& table);
  // pixels [items, 3, image, image] -> [items * rows, hidden]. `state` may be nullptr.
  at::Tensor Forward(const at::Tensor& pixels, PatchState* state) const;
  void Backward(const at::Tensor& output_gradient, PatchState* state, WeightWork* work) const;

 private:
  const LayerContext& context_;
  const bool class_token_, pre_norm_;
  Parameter patch_, position_;
  Parameter patch_bias_, class_, norm_, norm_bias_;  // where the family has them
};

// Rows of one item in the layers of an encoder.
int64_t EncoderRows(const job::Architecture& architecture);

}  // namespace phalanx::model
