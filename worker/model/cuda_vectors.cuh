// worker/model/cuda_vectors.cuh: what the kernels behind cuda_kernels.h share: accesses of several
// elements at a time, the choice of their width, sums and maxima over threads.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "worker/model/cuda_kernels.h"

namespace phalanx::model::cuda {

using Bf16 = __nv_bfloat16;

// kWidth elements of T that are loaded and stored at once.
template <typename T, int kWidth>
struct Vector;

template <>
struct Vector<Bf16, 8> {
  uint4 raw;
  __device__ void To(float (&values)[8]) const {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = __uint_as_float(words[i] << 16);
      values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
  __device__ void From(const float (&values)[8]) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
      words[i] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    raw = make_uint4(words[0], words[1], words[2], words[3]);
  }
};
template <>
struct Vector<Bf16, 4> {
  uint2 raw;
  __device__ void To(float (&values)[4]) const {
    values[0] = __uint_as_float(raw.x << 16), values[1] = __uint_as_float(raw.x & 0xffff0000u);
    values[2] = __uint_as_float(raw.y << 16), values[3] = __uint_as_float(raw.y & 0xffff0000u);
  }
  __device__ void From(const float (&values)[4]) {
    const __nv_bfloat162 low = __floats2bfloat162_rn(values[0], values[1]);
    const __nv_bfloat162 high = __floats2bfloat162_rn(values[2], values[3]);
    raw.x = *reinterpret_cast<const uint32_t*>(&low);
    raw.y = *reinterpret_cast<const uint32_t*>(&high);
  }
};
template <>
struct Vector<float, 4> {
  float4 raw;
  __device__ void To(float (&values)[4]) const {
    values[0] = raw.x, values[1] = raw.y, values[2] = raw.z, values[3] = raw.w;
  }
  __device__ void From(const float (&values)[4]) {
    raw = make_float4(values[0], values[1], values[2], values[3]);
  }
};
template <>
struct Vector<Bf16, 1> {
  Bf16 raw;
  __device__ void To(float (&values)[1]) const { values[0] = __bfloat162float(raw); }
  __device__ void From(const float (&values)[1]) { raw = __float2bfloat16_rn(values[0]); }
};
template <>
struct Vector<float, 1> {
  float raw;
  __device__ void To(float (&values)[1]) const { values[0] = raw; }
  __device__ void From(const float (&values)[1]) { raw = values[0]; }
};

// The vector that begins at element `at` of `base`.
template <typename T, int kWidth>
__device__ Vector<T, kWidth> Load(const void* base, int64_t at) {
  using Raw = decltype(Vector<T, kWidth>::raw);
  return {*reinterpret_cast<const Raw*>(static_cast<const T*>(base) + at)};
}
// Of what is read once: L2 need not keep it.
template <typename T, int kWidth>
__device__ Vector<T, kWidth> LoadOnce(const void* base, int64_t at) {
  using Raw = decltype(Vector<T, kWidth>::raw);
  return {__ldcs(reinterpret_cast<const Raw*>(static_cast<const T*>(base) + at))};
}
// Returns what is stored.
template <typename T, int kWidth>
__device__ Vector<T, kWidth> Store(void* base, int64_t at, const float (&values)[kWidth]) {
  using Raw = decltype(Vector<T, kWidth>::raw);
  Vector<T, kWidth> vector;
  vector.From(values);
  // An ordinary store may become four of four bytes each.
  __stwb(reinterpret_cast<Raw*>(static_cast<T*>(base) + at), vector.raw);
  return vector;
}
// fp32 sums beside vectors of any width.
template <int kWidth>
__device__ void StoreSums(float* to, const float (&values)[kWidth]) {
  if constexpr (kWidth % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kWidth; i += 4) {
      *reinterpret_cast<float4*>(to + i) =
          make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) to[i] = values[i];
  }
}

template <typename T>
inline constexpr int kWide = 16 / static_cast<int>(sizeof(T));

// Runs body(T(), std::integral_constant<int, width>()).
template <int kValue>
struct Width {
  static constexpr int value = kValue;
};
template <typename Body>
void ForVectors(Type type, bool wide, const Body& body) {
  if (type == Type::kBf16) {
    wide ? body(Bf16(), Width<kWide<Bf16>>()) : body(Bf16(), Width<1>());
  } else {
    wide ? body(float(), Width<kWide<float>>()) : body(float(), Width<1>());
  }
}
inline int WidthOf(Type type, bool wide) {
  return !wide ? 1 : type == Type::kBf16 ? kWide<Bf16> : kWide<float>;
}
// Whether the pointers, where not null, stand at 16 bytes, and sizes are whole vectors.
template <typename... Pointers>
bool Aligned(Pointers... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}
template <typename... Sizes>
bool Whole(Type type, Sizes... sizes) {
  return ((sizes % WidthOf(type, true) == 0) && ...);
}

__host__ __device__ inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

__device__ inline float WarpSum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// The sums over the threads of one threadIdx.y, whose number is a multiple of 32, in all of them,
// which call it together: all of a block or, with kGroups, those of one threadIdx.y (15 at most,
// where they are not warps). `scratch`: kCount for each of these warps; used again only after
// another call with other scratch.
template <bool kGroups, int kCount>
__device__ void GroupSum(float (&values)[kCount], float* scratch) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = WarpSum(values[i]);
  const int warps = blockDim.x / 32;
  if (warps == 1) return;
  const int lane = threadIdx.x % 32;
  if (lane == 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) scratch[i * warps + threadIdx.x / 32] = values[i];
  }
  if constexpr (kGroups) {
    asm volatile("bar.sync %0, %1;" ::"r"(threadIdx.y + 1), "r"(blockDim.x) : "memory");
  } else {
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    values[i] = WarpSum(lane < warps ? scratch[i * warps + lane] : 0.0f);
}

// The largest magnitude of its elements, as the bits of an fp32: those of a NaN are above
// infinity's.
template <typename T, int kWidth>
__device__ uint32_t Magnitude(const Vector<T, kWidth>& vector) {
  if constexpr (sizeof(T) == 2 && kWidth == 8) {
    constexpr uint32_t kNoSigns = 0x7fff7fffu;
    const uint4& eight = vector.raw;
    const uint32_t pair = __vmaxu2(__vmaxu2(eight.x & kNoSigns, eight.y & kNoSigns),
                                   __vmaxu2(eight.z & kNoSigns, eight.w & kNoSigns));
    return max(pair & 0xffff0000u, pair << 16);
  } else {
    float values[kWidth];
    vector.To(values);
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      largest = max(largest, __float_as_uint(values[i]) & 0x7fffffffu);
    return largest;
  }
}

// *largest = max(*largest, `mine` of all `threads`), which call it together: all of a block, or one
// warp of it; `thread` is this one's number among them. `scratch`: one for each of their warps.
__device__ inline void KeepLargest(uint32_t mine, int thread, int threads, uint32_t* scratch,
                                   uint32_t* largest) {
  const int warp = thread / 32, warps = static_cast<int>(CeilDiv(threads, 32));
  const int idle = max(0, (warp + 1) * 32 - threads);  // lanes that the last warp does not have
  const uint32_t lanes = 0xffffffffu >> idle;
  mine = __reduce_max_sync(lanes, mine);
  if (warps > 1) {
    if (thread % 32 == 0) scratch[warp] = mine;
    __syncthreads();
    if (warp > 0) return;
    mine = __reduce_max_sync(lanes, thread < warps ? scratch[thread] : 0);
  }
  if (thread == 0 && mine > 0) atomicMax(largest, mine);
}

// sums[i] = or += partials[0][i] + partials[1][i] + ..., `count` rows of `width`.
void SumPartials(const float* partials, int64_t count, int64_t width, bool add, float* sums,
                 Stream stream);

}  // namespace phalanx::model::cuda
