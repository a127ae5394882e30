// worker/model/patches.h: pixels to the first rows of a CLIP encoder.
//
// A patch is a row of pixels times a matrix; the class token's row is put before the patches of
// each image, positions are added, and the sum is normed. Every tensor rank computes all of it.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/kernels.h"
#include "worker/model/layer.h"

namespace phalanx::model {

struct PatchState {
  at::Tensor patches;   // [items * patches, 3 * patch * patch]
  at::Tensor embedded;  // [items * (patches + 1), hidden], before the norm
  LayerNormed norm;
};

// Immutable but for the gradients it adds to.
class PatchEmbedding {
 public:
  PatchEmbedding(const LayerContext& context, const ParameterTable& table);
  // pixels [items, 3, image, image] -> [items * (patches + 1), hidden]. `state` may be nullptr.
  at::Tensor Forward(const at::Tensor& pixels, PatchState* state) const;
  void Backward(const at::Tensor& output_gradient, PatchState* state, WeightWork* work) const;

 private:
  const LayerContext& context_;
  Parameter patch_, class_, position_, norm_, norm_bias_;
};

// Rows of one image in the encoder: patches and the class token.
int64_t EncoderRows(const job::Architecture& architecture);

}  // namespace phalanx::model
