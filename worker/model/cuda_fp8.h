// worker/model/cuda_fp8.h: bf16 matrices cast to FP8 on CUDA, each by one scale.
//
// The scale is the power of two that brings the largest magnitude into the upper half of the
// format's range, so casting changes a value by rounding it to the format's digits and nothing
// else, except values under 2^-14 (E4M3) or 2^-29 (E5M2) of the largest, which lose digits.
//
// Pointers are to device memory, aligned to 16 bytes; matrices are row-major and contiguous.
// Everything is enqueued on `stream`; errors show up at the next CUDA call. Equal inputs give equal
// bits. Zero rows are none.
#pragma once

#include <cstdint>

#include "worker/model/cuda_kernels.h"

namespace phalanx::model::cuda {

enum class Fp8 : uint8_t { kE4M3, kE5M2 };

// `largest` becomes max(largest, |x|), as the bits of an fp32; a NaN is larger than infinity.
// `count` is a multiple of 8.
void Largest(int64_t count, const void* x, uint32_t* largest, Stream stream);

// Matrices cast to FP8 are read along their sum by products, so there are two forms of one.
struct CastArguments {
  int64_t rows, features;  // features is a multiple of 8
  const void* x;           // bf16 [rows, features]
  const uint32_t* largest;
  void* straight;    // [rows, features]; may be null
  void* transposed;  // [features, padded], whose columns past `rows` become 0; may be null
  int64_t padded;    // of `transposed`: a multiple of 16, under rows + 128
  float* scale;      // what 1 stands for; NaN if not all of x is finite
};
void Cast(Fp8 format, const CastArguments& arguments, Stream stream);

}  // namespace phalanx::model::cuda
