// Casts of cuda_fp8.h.
#include <cuda_fp8.h>

#include <algorithm>

#include "worker/model/cuda_fp8.h"
#include "worker/model/cuda_vectors.cuh"

namespace phalanx::model::cuda {
namespace {

constexpr int kThreads = 256;
constexpr uint32_t kInfinity = 0x7f800000u;

// --- the largest magnitude

constexpr int kAhead = 4;  // accesses of a thread under way

__global__ void __launch_bounds__(kThreads)
    LargestKernel(int64_t vectors, const void* x, uint32_t* largest) {
  __shared__ uint32_t of_warps[kThreads / 32];
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  uint32_t mine = 0;
  int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; at + (kAhead - 1) * stride < vectors; at += kAhead * stride) {
    Vector<Bf16, 8> vector[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) vector[i] = Load<Bf16, 8>(x, (at + i * stride) * 8);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) mine = max(mine, Magnitude(vector[i]));
  }
  for (; at < vectors; at += stride) mine = max(mine, Magnitude(Load<Bf16, 8>(x, at * 8)));
  KeepLargest(mine, static_cast<int>(threadIdx.x), kThreads, of_warps, largest);
}

// --- casts

// The largest finite values are 1.75 times these powers of two.
template <Fp8 kFormat>
inline constexpr int kTopExponent = kFormat == Fp8::kE4M3 ? 8 : 15;

// What x is multiplied with, and what 1 stands for then.
struct Scale {
  float factor, inverse;
};
template <Fp8 kFormat>
__device__ Scale ScaleOf(uint32_t largest) {
  if (largest == 0) return {1.0f, 1.0f};
  if (largest >= kInfinity) return {1.0f, __uint_as_float(0x7fc00000u)};
  const int exponent = static_cast<int>(largest >> 23) - 127;
  const bool past = (largest & 0x7fffffu) > 0x600000u;  // 1.75
  // Factor and inverse are both normal numbers.
  const int power = min(kTopExponent<kFormat> - exponent - (past ? 1 : 0), 126);
  return {__uint_as_float(static_cast<uint32_t>(127 + power) << 23),
          __uint_as_float(static_cast<uint32_t>(127 - power) << 23)};
}

// Eight of them, the first in the lowest byte.
template <Fp8 kFormat>
__device__ uint2 CastEight(const Vector<Bf16, 8>& vector, float factor) {
  constexpr __nv_fp8_interpretation_t kInterpretation =
      kFormat == Fp8::kE4M3 ? __NV_E4M3 : __NV_E5M2;
  float values[8];
  vector.To(values);
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[i] =
        __nv_cvt_float2_to_fp8x2(make_float2(values[2 * i] * factor, values[2 * i + 1] * factor),
                                 __NV_SATFINITE, kInterpretation);
  }
  return make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}

// Four words are rows of four bytes; they become columns.
__device__ void Turn(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
  const uint32_t ab01 = __byte_perm(a, b, 0x5140), cd01 = __byte_perm(c, d, 0x5140);
  const uint32_t ab23 = __byte_perm(a, b, 0x7362), cd23 = __byte_perm(c, d, 0x7362);
  a = __byte_perm(ab01, cd01, 0x5410), b = __byte_perm(ab01, cd01, 0x7632);
  c = __byte_perm(ab23, cd23, 0x5410), d = __byte_perm(ab23, cd23, 0x7632);
}

// A block casts kSide rows of kSide features, a thread eight of eight.
constexpr int kSide = 128, kGroups = kSide / 8;

template <Fp8 kFormat, bool kStraight, bool kTransposed>
__global__ void __launch_bounds__(kThreads) CastKernel(CastArguments to) {
  // [feature][group of eight rows], the groups of a feature in an order of its own, so that threads
  // next to each other meet different banks both ways.
  __shared__ __align__(16) uint2 turned[kTransposed ? kSide * kGroups : 1];
  const int column = threadIdx.x % kGroups, group = threadIdx.x / kGroups;
  const int64_t top = int64_t{blockIdx.x} * kSide, left = int64_t{blockIdx.y} * kSide;
  const int64_t row = top + group * 8, feature = left + column * 8;
  const Scale scale = ScaleOf<kFormat>(*to.largest);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *to.scale = scale.inverse;

  Vector<Bf16, 8> x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    x[i].raw = make_uint4(0, 0, 0, 0);
    if (row + i < to.rows && feature < to.features)
      x[i] = Load<Bf16, 8>(to.x, (row + i) * to.features + feature);
  }
  uint2 cast[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    cast[i] = CastEight<kFormat>(x[i], scale.factor);
    if (kStraight && row + i < to.rows && feature < to.features) {
      *reinterpret_cast<uint2*>(static_cast<uint8_t*>(to.straight) + (row + i) * to.features +
                                feature) = cast[i];
    }
  }
  if constexpr (kTransposed) {
    Turn(cast[0].x, cast[1].x, cast[2].x, cast[3].x);
    Turn(cast[4].x, cast[5].x, cast[6].x, cast[7].x);
    Turn(cast[0].y, cast[1].y, cast[2].y, cast[3].y);
    Turn(cast[4].y, cast[5].y, cast[6].y, cast[7].y);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint2 eight_rows =
          i < 4 ? make_uint2(cast[i].x, cast[i + 4].x) : make_uint2(cast[i - 4].y, cast[i].y);
      turned[(column * 8 + i) * kGroups + (group ^ column)] = eight_rows;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kSide * kGroups / 2 / kThreads; ++i) {
      const int chunk = static_cast<int>(threadIdx.x) + i * kThreads;
      const int of_feature = chunk / (kGroups / 2), sixteen = chunk % (kGroups / 2);
      const int order = of_feature / 8;
      uint4 raw = *reinterpret_cast<const uint4*>(
          &turned[of_feature * kGroups + 2 * (sixteen ^ (order >> 1))]);
      if (order % 2 != 0) raw = make_uint4(raw.z, raw.w, raw.x, raw.y);
      const int64_t at = top + sixteen * 16;
      if (left + of_feature < to.features && at < to.padded) {
        *reinterpret_cast<uint4*>(static_cast<uint8_t*>(to.transposed) +
                                  (left + of_feature) * to.padded + at) = raw;
      }
    }
  }
}

template <Fp8 kFormat>
void CastTo(const CastArguments& arguments, Stream stream) {
  const dim3 grid(static_cast<unsigned>(CeilDiv(arguments.rows, kSide)),
                  static_cast<unsigned>(CeilDiv(arguments.features, kSide)));
  if (arguments.transposed == nullptr) {
    CastKernel<kFormat, true, false><<<grid, kThreads, 0, stream>>>(arguments);
  } else if (arguments.straight == nullptr) {
    CastKernel<kFormat, false, true><<<grid, kThreads, 0, stream>>>(arguments);
  } else {
    CastKernel<kFormat, true, true><<<grid, kThreads, 0, stream>>>(arguments);
  }
}

}  // namespace

void Largest(int64_t count, const void* x, uint32_t* largest, Stream stream) {
  const int64_t vectors = count / 8;
  if (vectors == 0) return;
  constexpr int64_t kBlocks = 132 * 8;  // the maximum is the same however many there are
  const int64_t blocks = std::min(kBlocks, CeilDiv(vectors, kThreads));
  LargestKernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(vectors, x, largest);
}

void Cast(Fp8 format, const CastArguments& arguments, Stream stream) {
  if (arguments.rows == 0 || arguments.features == 0) return;
  format == Fp8::kE4M3 ? CastTo<Fp8::kE4M3>(arguments, stream)
                       : CastTo<Fp8::kE5M2>(arguments, stream);
}

}  // namespace phalanx::model::cuda
