#include <cooperative_groups.h>

#include <cfloat>

#include "worker/model/cuda_vectors.cuh"

namespace phalanx::model::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kSumThreads = 1024;
// WholeKernel: vectors that a thread has, threads of a block where a cluster may be larger instead,
// and at most; blocks of a cluster.
constexpr int kHeld = 8;
constexpr int kWholeThreads = 256;
constexpr int kWholeMax = 1024;
constexpr int kClusterMax = 8;

// e^x: of bf16 logits, in the fast form.
template <typename T>
__device__ float Exp(float x) {
  return sizeof(T) == 2 ? __expf(x) : expf(x);
}
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// e^(x - offset), where `offset` is the same for many.
template <typename T>
struct ExpFrom {
  float offset;
  __device__ explicit ExpFrom(float from) : offset(sizeof(T) == 2 ? -kLog2E * from : from) {}
  __device__ float operator()(float x) const {
    return sizeof(T) == 2 ? Exp2(fmaf(x, kLog2E, offset)) : expf(x - offset);
  }
  static constexpr float kLog2E = 1.4426950408889634f;
};

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
  const ExpFrom<T> exp(largest);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum += exp(values[i]);
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
__global__ void __launch_bounds__(kSumThreads)
    SumLossesKernel(int64_t rows, const float* losses, float* loss_sum) {
  __shared__ double sums[kSumThreads];
  double sum = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kSumThreads)
    sum += static_cast<double>(losses[row]);
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kSumThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *loss_sum = static_cast<float>(sums[0]);
}

// What becomes of logits: exp(x - largest) * scale, less `weight` at the label.
template <typename T>
struct ToGradient {
  ExpFrom<T> exp;
  float scale, weight;
  T* label;  // nullptr: not here
  __device__ float Of(float x) const { return exp(x) * scale; }
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
__device__ void Zero(T* to) {
  const float zeros[kWide<T>] = {};
  Store<T, kWide<T>>(to, 0, zeros);
}
template <typename T>
__device__ void Clear(const RowVectors<T>& row) {
  for (int i = threadIdx.x; i < row.vectors; i += static_cast<int>(blockDim.x))
    Zero(row.body + static_cast<int64_t>(i) * kWide<T>);
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
  const ToGradient<T> gradient{ExpFrom<T>(scales[2 * row]), scales[2 * row + 1], weight,
                               label >= 0 && label < a.columns ? in.head + label : nullptr};
  StoreGradient(in, static_cast<int>(threadIdx.x), kThreads, gradient);
  if (T* const loose = in.Loose()) gradient.StoreLoose(loose);
}

// A row is the work of a cluster of blocks, whose registers hold it from its one read to its one
// write.
template <typename T>
__global__ void __launch_bounds__(kWholeMax, 1) WholeKernel(CrossEntropyArguments a) {
  __shared__ Softmax scratch[32];
  __shared__ Softmax parts[kClusterMax];
  const auto cluster = cooperative_groups::this_cluster();
  const auto rank = static_cast<int>(cluster.block_rank());
  const auto ranks = static_cast<int>(cluster.num_blocks());
  const int64_t row = blockIdx.x / static_cast<unsigned>(ranks);
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int first = rank * kHeld * threads + thread;
  const RowVectors<T> in(a.logits, row, a.columns);
  const auto at = [&](int v) {
    return in.body + static_cast<int64_t>(first + v * threads) * kWide<T>;
  };
  const auto has = [&](int v) { return first + v * threads < in.vectors; };
  T* const loose = rank == 0 ? in.Loose() : nullptr;
  const float weight = a.weights[row];
  if (weight == 0) {
    for (int v = 0; v < kHeld; ++v) {
      if (has(v)) Zero(at(v));
    }
    if (loose != nullptr) *loose = static_cast<T>(0.0f);
    if (rank == 0 && thread == 0) a.losses[row] = 0;
    return;
  }
  cluster.barrier_arrive();
  Vector<T, kWide<T>> held[kHeld];
#pragma unroll
  for (int v = 0; v < kHeld; ++v) {
    if (has(v)) held[v] = Load<T, kWide<T>>(at(v), 0);
  }
  const int64_t label = a.labels[row];
  T* const label_at = label >= 0 && label < a.columns ? in.head + label : nullptr;
  float label_logit = 0;
  if (rank == 0 && thread == 0 && label_at != nullptr) label_logit = static_cast<float>(*label_at);
  Softmax softmax = kNothing;
  if (loose != nullptr) softmax = {static_cast<float>(*loose), 1.0f};
  float largest = softmax.largest;
#pragma unroll
  for (int v = 0; v < kHeld; ++v) {
    if (!has(v)) continue;
    float values[kWide<T>];
    held[v].To(values);
#pragma unroll
    for (int i = 0; i < kWide<T>; ++i) largest = fmaxf(largest, values[i]);
  }
  softmax.sum *= Exp<T>(softmax.largest - largest);
  softmax.largest = largest;
  const ExpFrom<T> exp(largest);
#pragma unroll
  for (int v = 0; v < kHeld; ++v) {
    if (!has(v)) continue;
    float values[kWide<T>];
    held[v].To(values);
#pragma unroll
    for (int i = 0; i < kWide<T>; ++i) softmax.sum += exp(values[i]);
  }
  softmax = JoinBlock<T>(softmax, scratch);
  cluster.barrier_wait();  // all blocks are there to be written to
  if (thread < ranks) *cluster.map_shared_rank(&parts[rank], thread) = softmax;
  cluster.sync();
  softmax = parts[0];
  for (int r = 1; r < ranks; ++r) Join<T>(softmax, parts[r].largest, parts[r].sum);
  if (rank == 0 && thread == 0)
    a.losses[row] = weight * (softmax.largest + logf(softmax.sum) - label_logit);
  const ToGradient<T> gradient{ExpFrom<T>(softmax.largest), weight / softmax.sum, weight, label_at};
#pragma unroll
  for (int v = 0; v < kHeld; ++v) {
    if (has(v)) gradient.Store(at(v), held[v]);
  }
  if (loose != nullptr) gradient.StoreLoose(loose);
}

// Runs body(T()).
template <typename Body>
void ForElement(Type type, const Body& body) {
  type == Type::kBf16 ? body(Bf16()) : body(float());
}

void SumLosses(const CrossEntropyArguments& a, Stream stream) {
  SumLossesKernel<<<1, kSumThreads, 0, stream>>>(a.rows, a.losses, a.loss_sum);
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

void WholeCrossEntropy(Type type, const CrossEntropyArguments& a, float* scratch, Stream stream) {
  const int64_t vectors = CeilDiv(a.columns, WidthOf(type, true));
  int64_t ranks = 1;
  while (ranks < kClusterMax && vectors > ranks * kHeld * kWholeThreads) ranks *= 2;
  const int64_t threads = CeilDiv(CeilDiv(vectors, ranks * kHeld), 32) * 32;
  if (!a.gradient || threads > kWholeMax || a.rows == 0) {
    SoftmaxStatistics(type, a, scratch, stream);
    CrossEntropy(type, a, 1, scratch, scratch + 3 * a.rows, stream);
    return;
  }
  ForElement(type, [&](auto element) {
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(ranks);
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t launch{};
    launch.gridDim = dim3(static_cast<unsigned>(a.rows * ranks));
    launch.blockDim = dim3(static_cast<unsigned>(threads));
    launch.stream = stream;
    launch.attrs = &cluster;
    launch.numAttrs = 1;
    cudaLaunchKernelEx(&launch, WholeKernel<decltype(element)>, a);
  });
  SumLosses(a, stream);
}

}  // namespace phalanx::model::cuda
