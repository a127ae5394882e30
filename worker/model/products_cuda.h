// worker/model/products_cuda.h: the functions of products.h on CUDA, on ATen's current stream.
// Defined where PHALANX_WITH_CUDA is.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "core/schedule/product_table.h"

namespace phalanx::model::fused {

// Of d = a b, or d += a b, where a table may have it: bf16 operands at 16 bytes, rows too, that are
// or whose transposes are without gaps. `d_type`: bf16 or fp32.
std::optional<schedule::ProductKey> KeyOf(const at::Tensor& a, const at::Tensor& b,
                                          const at::Tensor& bias, at::ScalarType d_type, bool add);
// Whether the table of this thread has one for a b of bf16, which is noted.
bool HasAlgorithm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias);
// False: the table of this thread does not have it, or the library does not take what it has.
bool MultiplyByTable(const at::Tensor& d, const at::Tensor& a, const at::Tensor& b,
                     const at::Tensor& bias, bool add);
int64_t ProductLibrary();

}  // namespace phalanx::model::fused
