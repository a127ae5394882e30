// worker/model/fp8_cuda.h: the functions of fp8.h on CUDA, by the kernels of cuda_fp8.h and by
// cuBLASLt, on ATen's current stream. Defined where PHALANX_WITH_CUDA is.
#pragma once

#include "worker/model/fp8.h"

namespace phalanx::model::fused {

// An fp32 scalar of 0 at 16 bytes, on ATen's current stream and its device. Clearing is one launch
// for many of them.
at::Tensor ClearedScalar();

Operand RoundToFp8(const Operand& operand, Fp8Format format, Forms forms);
// d = a b^T, or d += a b^T.
void MultiplyFp8(const at::Tensor& a, const at::Tensor& a_scale, const at::Tensor& b,
                 const at::Tensor& b_scale, Fp8Sums sums, bool add, const at::Tensor& d);
absl::Status CheckFp8(const at::Device& device);

}  // namespace phalanx::model::fused
