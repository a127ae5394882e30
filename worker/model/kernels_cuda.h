// worker/model/kernels_cuda.h: the functions of kernels.h on CUDA tensors of bf16 and fp32, by the
// kernels of cuda_kernels.h on ATen's current stream. Defined where PHALANX_WITH_CUDA is.
#pragma once

#include "worker/model/kernels.h"

namespace phalanx::model::fused {

// Whether these functions take tensors of this kind; the norms, `rows` of this width.
bool Takes(const at::Tensor& tensor);
bool TakesRows(const at::Tensor& rows);

// `branch`, with `branch_bias`, may be undefined; else it becomes their sum with x, whose norm is
// taken. Without `bias`, an RMSNorm.
LayerNormed Norm(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& branch_bias,
                 const at::Tensor& weight, const at::Tensor& bias, double epsilon,
                 at::Tensor* largest = nullptr);
// Without `mean`, of an RMSNorm.
NormGradient NormBackward(const at::Tensor& output_gradient, const at::Tensor& x,
                          const at::Tensor& mean, const at::Tensor& rstd, const at::Tensor& weight,
                          const at::Tensor& residual_gradient, bool column_sums,
                          at::Tensor* largest = nullptr);
void AddBiasAndResidual(const at::Tensor& branch, const at::Tensor& bias,
                        const at::Tensor& residual);
// `rows` [any, elements of sum], whose columns alone need be contiguous.
void AddColumnSums(const at::Tensor& sum, const at::Tensor& rows);
void Rotate(const at::Tensor& x, int64_t heads, const at::Tensor& cos, const at::Tensor& sin,
            bool inverse);
void PackHeads(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& packed,
               at::Tensor* largest);
at::Tensor SwiGlu(const at::Tensor& gate_up, int64_t block, at::Tensor* largest);
at::Tensor SwiGluBackward(const at::Tensor& output_gradient, const at::Tensor& gate_up,
                          int64_t block, at::Tensor* largest, SwiGluAgain* again);
at::Tensor Gelu(GeluKind kind, const at::Tensor& x);
GeluGradient GeluBackward(GeluKind kind, const at::Tensor& output_gradient, const at::Tensor& x,
                          bool column_sums);
at::Tensor TakeRows(const at::Tensor& table, const at::Tensor& index, const at::Tensor& keep);
void AddRows(const at::Tensor& sum, const at::Tensor& index, const at::Tensor& keep,
             const at::Tensor& values);
at::Tensor EmbedRows(const at::Tensor& table, int64_t first, const TokenRows& rows,
                     const at::Tensor& items);
void AddTokenRows(const at::Tensor& sum, int64_t first, const at::Tensor& tokens,
                  const at::Tensor& order, const at::Tensor& values);
at::Tensor SoftmaxStatistics(const at::Tensor& logits, const at::Tensor& labels,
                             const at::Tensor& weights, int64_t first);
at::Tensor CrossEntropy(const at::Tensor& logits, const at::Tensor& gathered,
                        const at::Tensor& labels, const at::Tensor& weights, int64_t first,
                        bool gradient);
at::Tensor WholeCrossEntropy(const at::Tensor& logits, const at::Tensor& labels,
                             const at::Tensor& weights, bool gradient);

}  // namespace phalanx::model::fused
