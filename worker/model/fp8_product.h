// worker/model/fp8_product.h: products of FP8 matrices on CUDA, by cuBLASLt.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker/model/cuda_fp8.h"

struct cublasLtContext;

namespace phalanx::model::cuda {

// D = A B^T, or D += A B^T. Pointers are to device memory, aligned to 16 bytes; matrices are
// row-major and contiguous; n and k are multiples of 16.
struct Fp8Product {
  struct Operand {
    Fp8 format;
    const void* values;
    const float* scale;  // what 1 stands for
  };
  int64_t m, n, k;
  Operand a, b;  // [m, k], [n, k]; not both in E5M2
  void* d;       // [m, n]
  bool wide;     // fp32 instead of bf16
  bool add;
  // Sums in the 14 bits that the tensor cores have, not moved into fp32 along the way.
  bool fast;
};

inline constexpr int64_t kFp8WorkspaceBytes = int64_t{32} << 20;

// Shapes that a thread knows, some 2 KB each; at the bound it forgets all of them. A model of one
// size has twelve for each number of rows, and of those there are few (kinds of microbatches).
inline constexpr size_t kFp8DescribedMax = 4096;

// Enqueues it. The algorithm is the library's first choice for the shape, asked for once a thread
// as long as it knows the shape, so equal operands give equal bits. Returns 0 or a cublasStatus_t.
int Multiply(cublasLtContext* handle, const Fp8Product& product, void* workspace, Stream stream);

}  // namespace phalanx::model::cuda
