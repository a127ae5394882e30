#include "worker/model/cuda_vectors.cuh"

namespace phalanx::model::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChunk = 16;  // sorted rows that one block adds up

__global__ void __launch_bounds__(kThreads)
    MakeKeysKernel(int64_t rows, const int64_t* index, const bool* keep, int32_t* keys) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= rows) return;
  keys[row] = keep == nullptr || keep[row] ? static_cast<int32_t>(index[row]) : kNoRow;
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    TakeRowsKernel(int64_t features, const void* __restrict__ table, const int64_t* index,
                   const bool* keep, void* __restrict__ y) {
  const int64_t row = blockIdx.x;
  const bool kept = keep == nullptr || keep[row];
  const int64_t from = kept ? index[row] * features : 0;
#pragma unroll 2
  for (int64_t at = threadIdx.x * kWidth; at < features; at += kThreads * kWidth) {
    float values[kWidth] = {};
    if (kept) Load<T, kWidth>(table, from + at).To(values);
    Store<T, kWidth>(y, row * features + at, values);
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) EmbedRowsKernel(EmbedRowsArguments a) {
  const int64_t row = blockIdx.x, source = a.source[row];
  const bool text = source >= 0;
  const int64_t place = text ? source - a.first : -1 - source;
  const void* const from = text ? (place >= 0 && place < a.count ? a.table : nullptr) : a.items;
  const int64_t more = text || a.next == nullptr || a.items == nullptr ? -1 : a.next[place];
#pragma unroll 2
  for (int64_t at = threadIdx.x * kWidth; at < a.features; at += kThreads * kWidth) {
    float values[kWidth] = {};
    if (from != nullptr) Load<T, kWidth>(from, place * a.features + at).To(values);
    for (int64_t item = more; item >= 0; item = a.next[item]) {
      float addend[kWidth];
      Load<T, kWidth>(a.items, item * a.features + at).To(addend);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[i] += addend[i];
    }
    Store<T, kWidth>(a.y, row * a.features + at, values);
  }
}

template <typename S, int kWidth>
__device__ void AddTo(void* sum, int64_t at, const float (&values)[kWidth]) {
  constexpr int kStep = kWidth == 1 ? 1 : kWide<S> < kWidth ? kWide<S> : kWidth;
#pragma unroll
  for (int i = 0; i < kWidth; i += kStep) {
    float total[kStep];
    Load<S, kStep>(sum, at + i).To(total);
#pragma unroll
    for (int j = 0; j < kStep; ++j) total[j] += values[i + j];
    Store<S, kStep>(sum, at + i, total);
  }
}

// Adds up the rows of equal keys in a chunk, as far as they are in [first, last). Who has begun and
// ended here is added to `sum`; else the chunk's first partial is what belongs to a run that began
// before, its second what begins here and goes on.
template <typename S, typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    AddRunsKernel(int64_t rows, int64_t features, const int32_t* keys, const int64_t* order,
                  int32_t first, int32_t last, const void* values, float* partials, void* sum) {
  const int64_t at = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kWidth;
  if (at >= features) return;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kChunk;
  const int64_t end = min(rows, begin + kChunk);
  Vector<T, kWidth> vectors[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if (begin + i < end && keys[begin + i] >= first && keys[begin + i] < last)
      vectors[i] = Load<T, kWidth>(values, order[begin + i] * features + at);
  }
  bool before = begin > 0 && keys[begin - 1] == keys[begin];
  float total[kWidth] = {};
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if (begin + i >= end) break;
    const int32_t key = keys[begin + i];
    if (key >= last) break;
    if (key < first) {
      before = false;  // nor is what begins behind it
      continue;
    }
    float addend[kWidth];
    vectors[i].To(addend);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) total[j] += addend[j];
    const bool on = begin + i + 1 < rows && keys[begin + i + 1] == key;
    if (on && begin + i + 1 < end) continue;
    float* const partial = partials + (2 * static_cast<int64_t>(blockIdx.x)) * features + at;
    if (before) {
      StoreSums<kWidth>(partial, total);
    } else if (on) {
      StoreSums<kWidth>(partial + features, total);
    } else {
      AddTo<S, kWidth>(sum, (key - first) * features + at, total);
    }
    before = false;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) total[j] = 0;
  }
}

// Adds up the partials of a run that begins in this block's chunk and goes on.
template <typename S, int kWidth>
__global__ void __launch_bounds__(kThreads)
    AddPartialsKernel(int64_t rows, int64_t features, const int32_t* keys, int32_t first,
                      int32_t last, const float* partials, void* sum) {
  const int64_t next = (static_cast<int64_t>(blockIdx.x) + 1) * kChunk;  // exists: see the launch
  const int32_t key = keys[next];
  if (key < first || key >= last || keys[next - 1] != key) return;
  if (next > kChunk && keys[next - kChunk - 1] == key) return;  // it began earlier
  const int64_t at = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kWidth;
  if (at >= features) return;
  float total[kWidth];
  Load<float, kWidth>(partials, (2 * static_cast<int64_t>(blockIdx.x) + 1) * features + at)
      .To(total);
  for (int64_t row = next; row < rows && keys[row] == key; row += kChunk) {
    float addend[kWidth];
    Load<float, kWidth>(partials, 2 * (row / kChunk) * features + at).To(addend);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) total[j] += addend[j];
  }
  AddTo<S, kWidth>(sum, (key - first) * features + at, total);
}

template <typename S>
void AddRuns(Type type, const SortedRowsArguments& a, Stream stream) {
  const auto chunks = static_cast<unsigned>(AddRowsChunks(a.rows));
  const int64_t features = a.features;
  const bool wide = features % 8 == 0 && Aligned(a.values, a.partials, a.sum);
  ForVectors(type, wide, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int kWidth = decltype(width)::value;
    const auto tiles = static_cast<unsigned>(CeilDiv(features, kThreads * kWidth));
    AddRunsKernel<S, T, kWidth><<<dim3(chunks, tiles), kThreads, 0, stream>>>(
        a.rows, features, a.keys, a.order, a.first, a.end, a.values, a.partials, a.sum);
  });
  if (chunks == 1) return;
  constexpr int kWidth = 4;
  const auto tiles = static_cast<unsigned>(CeilDiv(features, kThreads * (wide ? kWidth : 1)));
  const dim3 blocks(chunks - 1, tiles);
  if (wide) {
    AddPartialsKernel<S, kWidth><<<blocks, kThreads, 0, stream>>>(a.rows, features, a.keys, a.first,
                                                                  a.end, a.partials, a.sum);
  } else {
    AddPartialsKernel<S, 1><<<blocks, kThreads, 0, stream>>>(a.rows, features, a.keys, a.first,
                                                             a.end, a.partials, a.sum);
  }
}

}  // namespace

void TakeRows(Type type, int64_t rows, int64_t features, const void* table, const int64_t* index,
              const bool* keep, void* y, Stream stream) {
  if (rows == 0) return;
  ForVectors(type, Whole(type, features) && Aligned(table, y), [&](auto element, auto width) {
    TakeRowsKernel<decltype(element), decltype(width)::value>
        <<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(features, table, index, keep, y);
  });
}

void MakeKeys(int64_t rows, const int64_t* index, const bool* keep, int32_t* keys, Stream stream) {
  if (rows == 0) return;
  MakeKeysKernel<<<static_cast<unsigned>(CeilDiv(rows, kThreads)), kThreads, 0, stream>>>(
      rows, index, keep, keys);
}

int64_t AddRowsChunks(int64_t rows) { return CeilDiv(rows, kChunk); }

void AddSortedRows(Type sum_type, Type type, const SortedRowsArguments& a, Stream stream) {
  if (a.rows == 0) return;
  if (sum_type == Type::kBf16) {
    AddRuns<Bf16>(type, a, stream);
  } else {
    AddRuns<float>(type, a, stream);
  }
}

void EmbedRows(Type type, const EmbedRowsArguments& a, Stream stream) {
  if (a.rows == 0) return;
  ForVectors(type, Whole(type, a.features) && Aligned(a.table, a.items, a.y),
             [&](auto element, auto width) {
               EmbedRowsKernel<decltype(element), decltype(width)::value>
                   <<<static_cast<unsigned>(a.rows), kThreads, 0, stream>>>(a);
             });
}

}  // namespace phalanx::model::cuda
