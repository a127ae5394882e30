// worker/model/cudnn_attention.h: attention by cuDNN, through ATen, and which shapes it computes.
//
// cuDNN has a plan for every shape. ATen makes one where it is first asked for and keeps it, one
// set a thread, for as long as that lives. Making one takes long and loads code, which waits for
// all that the device has been given: so plans are made before training, for the shapes that are
// tried then, and what was not tried is flash attention's. No
// shape of a sample makes a plan in a step, and a thread has kCudnnShapesMax of them at most.
#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
#include <cstddef>
#include <optional>
#include <tuple>

#include "worker/model/attention.h"

namespace phalanx::model {

// Of one thread, for each of which there are a forward and a backward plan.
inline constexpr size_t kCudnnShapesMax = 128;

struct CudnnShape {
  int64_t batch, length, query_heads, kv_heads, head_size;
  bool causal;
  bool packed;  // queries, keys and values are views into one matrix
  bool half;    // fp16, not bf16
  int device;
  friend auto operator<=>(const CudnnShape&, const CudnnShape&) = default;
};

// Whether it is worth trying, as far as its numbers say on any device and of any version: where
// that was measured, cuDNN is not slower than flash.
bool CudnnIsWanted(const CudnnShape& shape);
// Whether cuDNN of this version takes the likes of these on the current device, by LibTorch's own
// check, which its operator does not make itself. Tensors as of CudnnAttention. In a build without
// CUDA it takes nothing.
bool CudnnTakes(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                bool causal);

// Of this thread: whether cuDNN computes the shape; nothing of one that was not tried.
std::optional<bool> CudnnTried(const CudnnShape& shape);
// Beyond kCudnnShapesMax nothing may be tried.
bool CudnnHasRoom();
void SetCudnnTried(const CudnnShape& shape, bool computes);

// On CUDA, in 16 bits, before training and not between the passes of a microbatch: tries both
// passes of a shape on cuDNN, unless this thread has done so. From then on Attention() has cuDNN
// compute it, if it could and agrees with flash; else the log says why. Deterministic heads are not
// tried. Waits for the device.
// `options`: of the joint matrix.
void PrepareAttention(const HeadMap& heads, bool causal, int64_t batch, int64_t length,
                      const at::TensorOptions& options);

// [batch, heads, length, head_size] each; there may be fewer key and value heads. The rows of the
// output lie as those of the query do.
struct CudnnAttended {
  at::Tensor output, log_sum, seed, offset;
};
CudnnAttended CudnnAttention(const at::Tensor& query, const at::Tensor& key,
                             const at::Tensor& value, bool causal);
// Gradients of query, key and value. Those of queries are added up in any order, so they are not
// the same bits again.
std::tuple<at::Tensor, at::Tensor, at::Tensor> CudnnAttentionBackward(
    const at::Tensor& output_gradient, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const CudnnAttended& attended, bool causal);

}  // namespace phalanx::model
