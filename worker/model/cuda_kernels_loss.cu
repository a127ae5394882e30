#include <cuda_pipeline_primitives.h>

#include <cfloat>

#include "worker/model/cuda_vectors.cuh"

namespace phalanx::model::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWholeThreads = 1024;
// Vectors of a row that each thread of WholeKernel keeps in shared memory: 224 KiB a block, of 227.
// They arrive in pairs.
constexpr int kKept = 14;

// e^x: of bf16 logits, in the fast form.
template <typename T>
__device__ float Exp(float x) {
  return sizeof(T) == 2 ? __expf(x) : expf(x);
}

// A maximum and the sum of exp(x - maximum).
struct Softmax {
  float largest, sum;
};
__device__ constexpr Softmax kNothing{-FLT_MAX, 0};
template <typename T>
__device__ void Join(Softmax& to, float largest, float sum) {
  const float both = fmaxf(to.largest, largest);
  // Products rounded for themselves: either order of the two gives the same.
  to.sum = __fmul_rn(to.sum, Exp<T>(to.largest - both)) + __fmul_rn(sum, Exp<T>(largest - both));
  to.largest = both;
}
template <typename T, int kWidth>
__device__ void Join(Softmax& to, const float (&values)[kWidth]) {
  float largest = to.largest;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) largest = fmaxf(largest, values[i]);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum += Exp<T>(values[i] - largest);
  to.sum = to.sum * Exp<T>(to.largest - largest) + sum;
  to.largest = largest;
}
template <typename T>
__device__ void JoinWarp(Softmax& of) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const float largest = __shfl_xor_sync(0xffffffffu, of.largest, offset);
    const float sum = __shfl_xor_sync(0xffffffffu, of.sum, offset);
    Join<T>(of, largest, sum);
  }
}
// Of all threads of a block, in all of them. `scratch` as in GroupSum.
template <typename T>
__device__ Softmax JoinBlock(Softmax of, Softmax* scratch) {
  JoinWarp<T>(of);
  const int lane = threadIdx.x % 32;
  if (lane == 0) scratch[threadIdx.x / 32] = of;
  __syncthreads();
  of = lane < static_cast<int>(blockDim.x) / 32 ? scratch[lane] : kNothing;
  JoinWarp<T>(of);
  return of;
}

// A row in accesses of 16 bytes: some elements before the first, some behind the last.
template <typename T>
struct RowVectors {
  T* head;
  T* body;
  int before, vectors, behind;
  __device__ RowVectors(void* logits, int64_t row, int64_t columns)
      : head(static_cast<T*>(logits) + row * columns) {
    const auto past = static_cast<int>(reinterpret_cast<uintptr_t>(head) % 16);
    before = past == 0 ? 0 : (16 - past) / static_cast<int>(sizeof(T));
    if (before > columns) before = static_cast<int>(columns);
    body = head + before;
    const auto rest = static_cast<int>(columns) - before;
    vectors = rest / kWide<T>;
    behind = rest % kWide<T>;
  }
  // The element of this thread among those before and behind, or nullptr.
  __device__ T* Loose() const {
    const int i = threadIdx.x;
    if (i < before) return head + i;
    if (i < before + behind) return body + vectors * kWide<T> + i - before;
    return nullptr;
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    StatisticsKernel(CrossEntropyArguments a, float* statistics) {
  __shared__ Softmax scratch[32];
  const int64_t row = blockIdx.x;
  float* const to = statistics + row * 3;
  if (a.weights[row] == 0) {
    if (threadIdx.x < 3) to[threadIdx.x] = threadIdx.x == 1 ? 1.0f : 0.0f;
    return;
  }
  const RowVectors<T> in(a.logits, row, a.columns);
  Softmax softmax = kNothing;
#pragma unroll 4
  for (int i = threadIdx.x; i < in.vectors; i += kThreads) {
    float values[kWide<T>];
    Load<T, kWide<T>>(in.body, static_cast<int64_t>(i) * kWide<T>).To(values);
    Join<T>(softmax, values);
  }
  if (const T* const loose = in.Loose()) Join<T>(softmax, static_cast<float>(*loose), 1.0f);
  softmax = JoinBlock<T>(softmax, scratch);
  if (threadIdx.x > 0) return;
  const int64_t label = a.labels[row] - a.first;
  to[0] = softmax.largest;
  to[1] = softmax.sum;
  to[2] = label >= 0 && label < a.columns ? static_cast<float>(in.head[label]) : 0.0f;
}

// From the statistics of all ranks, per row: loss, and what turns logits into their gradient,
// exp(logit - scales[0]) * scales[1].
__global__ void __launch_bounds__(kThreads)
    JoinRanksKernel(CrossEntropyArguments a, int64_t width, const float* gathered, float* scales) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= a.rows) return;
  const float weight = a.weights[row];
  float largest = gathered[row * 3], sum = 0, label = 0;
  for (int64_t rank = 1; rank < width; ++rank)
    largest = fmaxf(largest, gathered[(rank * a.rows + row) * 3]);
  for (int64_t rank = 0; rank < width; ++rank) {
    const float* const of = gathered + (rank * a.rows + row) * 3;
    sum += of[1] * expf(of[0] - largest);
    label += of[2];
  }
  a.losses[row] = weight == 0 ? 0.0f : weight * (largest + logf(sum) - label);
  scales[2 * row] = largest;
  scales[2 * row + 1] = weight / sum;
}

// In order, whatever the number of rows.
__global__ void __launch_bounds__(kWholeThreads)
    SumLossesKernel(int64_t rows, const float* losses, float* loss_sum) {
  __shared__ double sums[kWholeThreads];
  double sum = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kWholeThreads)
    sum += static_cast<double>(losses[row]);
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kWholeThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *loss_sum = static_cast<float>(sums[0]);
}

// What becomes of logits: exp(x - largest) * scale, less `weight` at the label.
template <typename T>
struct ToGradient {
  float largest, scale, weight;
  T* label;  // nullptr: not here
  __device__ float Of(float x) const { return Exp<T>(x - largest) * scale; }
  __device__ void Store(T* to, const Vector<T, kWide<T>>& from) const {
    float values[kWide<T>];
    from.To(values);
#pragma unroll
    for (int i = 0; i < kWide<T>; ++i) values[i] = Of(values[i]);
    if (label >= to && label < to + kWide<T>) {
#pragma unroll
      for (int i = 0; i < kWide<T>; ++i) {
        if (to + i == label) values[i] -= weight;
      }
    }
    cuda::Store<T, kWide<T>>(to, 0, values);
  }
  __device__ void StoreLoose(T* to) const {
    *to = static_cast<T>(Of(static_cast<float>(*to)) - (to == label ? weight : 0.0f));
  }
};

// Of vectors first, first + step, ...: some are loaded before the first of them is stored.
template <typename T>
__device__ void StoreGradient(const RowVectors<T>& row, int first, int step,
                              const ToGradient<T>& gradient) {
  constexpr int kAtOnce = 4;
  for (; first < row.vectors; first += kAtOnce * step) {
    Vector<T, kWide<T>> vectors[kAtOnce];
#pragma unroll
    for (int v = 0; v < kAtOnce; ++v) {
      const int i = first + v * step;
      if (i < row.vectors)
        vectors[v] = Load<T, kWide<T>>(row.body, static_cast<int64_t>(i) * kWide<T>);
    }
#pragma unroll
    for (int v = 0; v < kAtOnce; ++v) {
      const int i = first + v * step;
      if (i < row.vectors)
        gradient.Store(row.body + static_cast<int64_t>(i) * kWide<T>, vectors[v]);
    }
  }
}

template <typename T>
__device__ void Clear(const RowVectors<T>& row) {
  const float zeros[kWide<T>] = {};
  for (int i = threadIdx.x; i < row.vectors; i += static_cast<int>(blockDim.x))
    Store<T, kWide<T>>(row.body, static_cast<int64_t>(i) * kWide<T>, zeros);
  if (T* const loose = row.Loose()) *loose = static_cast<T>(0.0f);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    GradientKernel(CrossEntropyArguments a, const float* scales) {
  const int64_t row = blockIdx.x;
  const RowVectors<T> in(a.logits, row, a.columns);
  const float weight = a.weights[row];
  if (weight == 0) return Clear(in);
  const int64_t label = a.labels[row] - a.first;
  const ToGradient<T> gradient{scales[2 * row], scales[2 * row + 1], weight,
                               label >= 0 && label < a.columns ? in.head + label : nullptr};
  StoreGradient(in, static_cast<int>(threadIdx.x), kThreads, gradient);
  if (T* const loose = in.Loose()) gradient.StoreLoose(loose);
}

// A block takes every so many rows. A row, as far as it fits, is in shared memory from its first
// use to its second, the next one being loaded behind it; what does not fit is read again.
template <typename T>
__global__ void __launch_bounds__(kWholeThreads) WholeKernel(CrossEntropyArguments a) {
  extern __shared__ uint4 kept[];  // [kKept][kWholeThreads]; a thread reads what it has loaded
  __shared__ Softmax scratch[2][32];
  const auto wanted = [&](int64_t row) { return row < a.rows && a.weights[row] != 0; };
  const auto fetch = [&](const RowVectors<T>& in, bool wanted, int slot) {
    const int i = slot * kWholeThreads + static_cast<int>(threadIdx.x);
    if (wanted && i < in.vectors)
      __pipeline_memcpy_async(kept + i, in.body + static_cast<int64_t>(i) * kWide<T>, 16);
    if (slot % 2 == 1) __pipeline_commit();
  };
  const auto from_kept = [&](int i) {
    Vector<T, kWide<T>> vector;
    vector.raw = *reinterpret_cast<const decltype(vector.raw)*>(kept + i);
    return vector;
  };
  int64_t row = blockIdx.x;
  const RowVectors<T> first(a.logits, row, a.columns);
  const bool first_wanted = wanted(row);
#pragma unroll
  for (int slot = 0; slot < kKept; ++slot) fetch(first, first_wanted, slot);
  for (int turn = 0; row < a.rows; row += gridDim.x, turn ^= 1) {
    const RowVectors<T> in(a.logits, row, a.columns);
    const RowVectors<T> next(a.logits, row + gridDim.x, a.columns);
    const bool next_wanted = wanted(row + gridDim.x);
    const float weight = a.weights[row];
    if (weight == 0) {
      if (a.gradient) Clear(in);
      if (threadIdx.x == 0) a.losses[row] = 0;
      for (int slot = 0; slot < kKept; ++slot) fetch(next, next_wanted, slot);
      __syncthreads();  // the scratch of this turn is nobody's any more
      continue;
    }
    const int64_t label = a.labels[row] - a.first;
    T* const label_at = label >= 0 && label < a.columns ? in.head + label : nullptr;
    float label_logit = 0;
    if (threadIdx.x == 0 && label_at != nullptr) label_logit = static_cast<float>(*label_at);
    Softmax softmax = kNothing;
#pragma unroll 4
    for (int i = kKept * kWholeThreads + static_cast<int>(threadIdx.x); i < in.vectors;
         i += kWholeThreads) {
      float values[kWide<T>];
      Load<T, kWide<T>>(in.body, static_cast<int64_t>(i) * kWide<T>).To(values);
      Join<T>(softmax, values);
    }
    if (const T* const loose = in.Loose()) Join<T>(softmax, static_cast<float>(*loose), 1.0f);
#pragma unroll
    for (int slot = 0; slot < kKept; ++slot) {
      if (slot % 2 == 0) __pipeline_wait_prior(kKept / 2 - 1 - slot / 2);
      const int i = slot * kWholeThreads + static_cast<int>(threadIdx.x);
      if (i >= in.vectors) continue;
      float values[kWide<T>];
      from_kept(i).To(values);
      Join<T>(softmax, values);
    }
    softmax = JoinBlock<T>(softmax, scratch[turn]);
    if (threadIdx.x == 0)
      a.losses[row] = weight * (softmax.largest + logf(softmax.sum) - label_logit);
    const ToGradient<T> gradient{softmax.largest, weight / softmax.sum, weight, label_at};
#pragma unroll
    for (int slot = 0; slot < kKept; ++slot) {
      const int i = slot * kWholeThreads + static_cast<int>(threadIdx.x);
      if (a.gradient && i < in.vectors)
        gradient.Store(in.body + static_cast<int64_t>(i) * kWide<T>, from_kept(i));
      fetch(next, next_wanted, slot);
    }
    if (!a.gradient) continue;
    StoreGradient(in, kKept * kWholeThreads + static_cast<int>(threadIdx.x), kWholeThreads,
                  gradient);
    if (T* const loose = in.Loose()) gradient.StoreLoose(loose);
  }
  __pipeline_wait_prior(0);
}

// Runs body(T()).
template <typename Body>
void ForElement(Type type, const Body& body) {
  type == Type::kBf16 ? body(Bf16()) : body(float());
}

void SumLosses(const CrossEntropyArguments& a, Stream stream) {
  SumLossesKernel<<<1, kWholeThreads, 0, stream>>>(a.rows, a.losses, a.loss_sum);
}

}  // namespace

void SoftmaxStatistics(Type type, const CrossEntropyArguments& a, float* statistics,
                       Stream stream) {
  if (a.rows == 0) return;
  ForElement(type, [&](auto element) {
    StatisticsKernel<decltype(element)>
        <<<static_cast<unsigned>(a.rows), kThreads, 0, stream>>>(a, statistics);
  });
}

void CrossEntropy(Type type, const CrossEntropyArguments& a, int64_t width, const float* gathered,
                  float* scales, Stream stream) {
  if (a.rows > 0) {
    JoinRanksKernel<<<static_cast<unsigned>(CeilDiv(a.rows, kThreads)), kThreads, 0, stream>>>(
        a, width, gathered, scales);
    if (a.gradient) {
      ForElement(type, [&](auto element) {
        GradientKernel<decltype(element)>
            <<<static_cast<unsigned>(a.rows), kThreads, 0, stream>>>(a, scales);
      });
    }
  }
  SumLosses(a, stream);
}

void WholeCrossEntropy(Type type, const CrossEntropyArguments& a, Stream stream) {
  if (a.rows > 0) {
    ForElement(type, [&](auto element) {
      constexpr int kBytes = kKept * kWholeThreads * 16;
      const auto kernel = WholeKernel<decltype(element)>;
      int device = 0, processors = 0;
      cudaGetDevice(&device);
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      const int64_t blocks = a.rows < processors ? a.rows : processors;
      kernel<<<static_cast<unsigned>(blocks), kWholeThreads, kBytes, stream>>>(a);
    });
  }
  SumLosses(a, stream);
}

}  // namespace phalanx::model::cuda
