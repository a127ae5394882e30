// worker/model/sounds.h: log-mel frames to the first rows of a Whisper encoder.
//
// Two convolutions over time of width 3, each followed by an exact GELU, the second at every other
// frame; then fixed sinusoidal positions are added. Every tensor rank computes all of it.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/layer.h"

namespace phalanx::model {

struct SoundState {
  at::Tensor sounds;         // the input
  at::Tensor first, second;  // what the convolutions gave, before GELU, [items * frames, hidden]
                             // and [items * frames / 2, hidden]
};

// Immutable but for the gradients it adds to.
class SoundEmbedding {
 public:
  SoundEmbedding(const LayerContext& context, const ParameterTable& table);
  // sounds [items, mel_bins, frames] -> [items * frames / 2, hidden]. `state` may be nullptr.
  at::Tensor Forward(const at::Tensor& sounds, SoundState* state) const;
  void Backward(const at::Tensor& output_gradient, SoundState* state, WeightWork* work) const;

 private:
  Parameter conv1_, conv1_bias_, conv2_, conv2_bias_;
  at::Tensor positions_;  // [frames / 2, hidden], of the weights' type
};

}  // namespace phalanx::model
