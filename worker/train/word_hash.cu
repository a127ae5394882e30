#include <algorithm>

#include "worker/train/word_hash.cuh"

namespace phalanx::train {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kWord = 8;
constexpr uint64_t kPlace = 0x1E3779B97F4A7C15, kMix = 0x3F58476D1CE4E5B9;

__device__ uint64_t Scramble(uint64_t value, int64_t place) {
  uint64_t mixed = value + static_cast<uint64_t>(place + 1) * kPlace;
  mixed = (mixed ^ (mixed >> 29)) * kMix;
  return mixed ^ (mixed >> 32);
}

__global__ void HashWords(const uint64_t* words, int64_t count, const uint8_t* rest, int64_t left,
                          unsigned long long* sum) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  unsigned long long own = 0;
  for (int64_t i = first; i < count; i += stride) own += Scramble(words[i], i);
  if (first < left) own += Scramble(rest[first], first);
  for (int offset = 16; offset > 0; offset /= 2) own += __shfl_down_sync(~0u, own, offset);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, own);
}

}  // namespace

void LaunchWordHash(const void* data, int64_t bytes, int64_t* sum, cudaStream_t stream) {
  const int64_t count = bytes / kWord;
  const int64_t blocks = std::clamp<int64_t>((count + kThreads - 1) / kThreads, 1, 132 * 8);
  HashWords<<<static_cast<int>(blocks), kThreads, 0, stream>>>(
      static_cast<const uint64_t*>(data), count, static_cast<const uint8_t*>(data) + count * kWord,
      bytes % kWord, reinterpret_cast<unsigned long long*>(sum));
}

}  // namespace phalanx::train
