// worker/model/kernels.h: the pointwise and row-wise mathematics of the layers.
//
// Rows are tokens: tensors are [rows, features], contiguous. fp32 and fp64 on CPU run in fused
// loops of our own (cpu_kernels.h), bf16 and fp32 on CUDA in kernels of our own (cuda_kernels.h);
// everything else in ATen operations. None waits for a device. Functions allocate what they return;
// "in place" is said where it is meant. They throw as LibTorch does.
//
// What a product in FP8 takes has a scale from its largest magnitude (fp8.h). Functions that make
// such tensors find it along the way where `largest` is not null: it then becomes an fp32 scalar
// with the bits of that magnitude; it stays as it is where nothing finds it so.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/token_rows.h"

namespace phalanx::model {

// y = x / sqrt(mean(x^2) + epsilon) * weight.
struct RmsNormed {
  at::Tensor y;
  at::Tensor rstd;  // [rows] or [rows, 1]: for the backward pass
};
// `largest` is y's.
RmsNormed RmsNorm(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                  at::Tensor* largest = nullptr);
// `branch` becomes residual + branch, in place; then its norm.
RmsNormed AddRmsNorm(const at::Tensor& residual, const at::Tensor& branch, const at::Tensor& weight,
                     double epsilon, at::Tensor* largest = nullptr);
struct NormGradient {
  at::Tensor x;       // `residual_gradient`, where defined, is added
  at::Tensor weight;  // [features]
  at::Tensor bias;    // [features]; LayerNorm
  // [features], the column sums of `residual_gradient` and of `x`: where asked for and had along
  // the way.
  at::Tensor residual_sum, x_sum;
};
// `largest` is the gradient of x's.
NormGradient RmsNormBackward(const at::Tensor& output_gradient, const at::Tensor& x,
                             const at::Tensor& rstd, const at::Tensor& weight,
                             const at::Tensor& residual_gradient, at::Tensor* largest = nullptr);

struct LayerNormed {
  at::Tensor y, mean, rstd;
};
LayerNormed LayerNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      double epsilon);
// `branch` becomes branch + branch_bias + residual, in place; then its norm.
LayerNormed AddLayerNorm(const at::Tensor& residual, const at::Tensor& branch,
                         const at::Tensor& branch_bias, const at::Tensor& weight,
                         const at::Tensor& bias, double epsilon);
// `column_sums`: those of the gradients are asked for.
NormGradient LayerNormBackward(const at::Tensor& output_gradient, const at::Tensor& x,
                               const LayerNormed& normed, const at::Tensor& weight,
                               const at::Tensor& bias, const at::Tensor& residual_gradient,
                               bool column_sums = false);

// branch += bias + residual, in place.
void AddBiasAndResidual(const at::Tensor& branch, const at::Tensor& bias,
                        const at::Tensor& residual);
// sum += the sum over the first dim of `rows` [any, like sum].
void AddColumnSums(const at::Tensor& sum, const at::Tensor& rows);

// Rotary position embedding in Hugging Face's convention (halves of a head are the pair), in place
// on the first `heads` heads of x [batch, length, any heads, head_size], contiguous in the last
// dim. cos and sin are [length or more, head_size / 2] of the norm type (fp64 under fp64, else
// fp32). `inverse` turns back, which is also the gradient.
void Rotate(const at::Tensor& x, int64_t heads, const at::Tensor& cos, const at::Tensor& sin,
            bool inverse);
// packed [batch, length, heads, head_size], contiguous, becomes query, key and value [batch, heads,
// length, head_size] side by side, the first two turned back; with undefined `cos` and `sin`, as
// they are.
void PackHeads(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& packed,
               at::Tensor* largest = nullptr);

// gate_up is [rows, 2 * block * blocks], per block gate columns then up columns; the result is
// silu(gate) * up, [rows, block * blocks].
at::Tensor SwiGlu(const at::Tensor& gate_up, int64_t block, at::Tensor* largest = nullptr);
// The result once more, which the backward pass makes of what it reads anyway.
struct SwiGluAgain {
  at::Tensor y;
  at::Tensor* largest = nullptr;  // of `y`
};
at::Tensor SwiGluBackward(const at::Tensor& output_gradient, const at::Tensor& gate_up,
                          int64_t block, at::Tensor* largest = nullptr,
                          SwiGluAgain* again = nullptr);

// kQuick: x * sigmoid(1.702 x). kTanh: the usual approximation of kErf.
enum class GeluKind : uint8_t { kQuick, kErf, kTanh };
at::Tensor Gelu(GeluKind kind, const at::Tensor& x);
struct GeluGradient {
  at::Tensor x;
  at::Tensor sum;  // [features], the column sums of `x`: where asked for and had along the way
};
GeluGradient GeluBackward(GeluKind kind, const at::Tensor& output_gradient, const at::Tensor& x,
                          bool column_sums = false);

// table[index[i]], with rows of zeros where `keep` is false. Undefined `keep`: all are kept.
at::Tensor TakeRows(const at::Tensor& table, const at::Tensor& index, const at::Tensor& keep);
// sum[index[i]] += values[i] where keep[i], in an order that is the same every time.
void AddRows(const at::Tensor& sum, const at::Tensor& index, const at::Tensor& keep,
             const at::Tensor& values);

// The rows of a microbatch: of `table`, whose row 0 is that of token `first`, those of tokens that
// are here; of `items` (undefined: zeros) the sum of those that stand at one place, in their order,
// rounded once; zeros for tokens that are not here. `positions`: where the items' rows stand.
at::Tensor EmbedRows(const at::Tensor& table, int64_t first, const TokenRows& rows,
                     const at::Tensor& items, const at::Tensor& positions);
// sum[tokens[i] - first] += values[order[i]] for tokens that are here, in that order.
void AddTokenRows(const at::Tensor& sum, int64_t first, const at::Tensor& tokens,
                  const at::Tensor& order, const at::Tensor& values);

// rows[positions[i]] += values[i], in place, in an order of the sums that is the same every time:
// tensor ranks that do so alike get equal bits.
void ScatterRows(const at::Tensor& rows, const at::Tensor& positions, const at::Tensor& values);

// Cross-entropy over logits of which this rank holds the columns [first, first + logits.size(1)).
// Statistics are [rows, kStatistics] in the sum type: the largest logit here, the sum of
// exp(logit - largest) here, the label's logit (0 if it is not here). Rows of weight 0 may have
// any.
inline constexpr int64_t kStatistics = 3;
at::Tensor SoftmaxStatistics(const at::Tensor& logits, const at::Tensor& labels,
                             const at::Tensor& weights, int64_t first);
// From the statistics of all ranks [width, rows, kStatistics]: the weighted sum of losses, a scalar
// of the sum type. With `gradient`, `logits` become the gradient of that sum, in place.
at::Tensor CrossEntropy(const at::Tensor& logits, const at::Tensor& gathered,
                        const at::Tensor& labels, const at::Tensor& weights, int64_t first,
                        bool gradient);

// Both where this rank holds all columns; on CUDA in one read of the logits.
at::Tensor WholeCrossEntropy(const at::Tensor& logits, const at::Tensor& labels,
                             const at::Tensor& weights, bool gradient);

// The type of sums and norms: fp64 under fp64, else fp32.
at::ScalarType SumType(at::ScalarType compute);

}  // namespace phalanx::model
