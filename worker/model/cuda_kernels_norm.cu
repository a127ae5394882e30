#include <cuda_pipeline_primitives.h>

#include "worker/model/cuda_vectors.cuh"

namespace phalanx::model::cuda {
namespace {

// A row is the work of a group: the threads of one threadIdx.y, each with kVectors vectors of it,
// those at threadIdx.x, threadIdx.x + blockDim.x, ...
constexpr int kThreads = 512;         // of a block, at most
constexpr int kSmallThreads = 128;    // of a block whose groups are warps
constexpr int kBackwardBlocks = 256;  // two to a multiprocessor, where they fit
constexpr int kGroupsMax = 15;        // that wait for themselves
constexpr int kStagesMax = 2;
constexpr int64_t kStageBytes = 196608;  // of a multiprocessor's shared memory
template <typename T, int kWidth, int kVectors>
struct Row {
  int64_t features;
  // The first element of a vector of this thread, and whether the row has it.
  __device__ int64_t At(int v) const {
    return static_cast<int64_t>(threadIdx.x + v * blockDim.x) * kWidth;
  }
  __device__ bool Has(int v) const { return At(v) < features; }
  __device__ void Load(const void* base, int64_t row,
                       Vector<T, kWidth> (&vectors)[kVectors]) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (Has(v)) vectors[v] = cuda::Load<T, kWidth>(base, row * features + At(v));
    }
  }
};

template <typename T, int kWidth, int kVectors, bool kLayer>
__global__ void __launch_bounds__(kThreads) NormKernel(NormArguments a) {
  __shared__ float scratch[2][32];  // of one group, unless they are warps
  __shared__ uint32_t largest_scratch[kThreads / 32];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const Row<T, kWidth, kVectors> of{a.features};
  Vector<T, kWidth> in[kVectors];
  of.Load(a.x, row, in);
  if (a.branch != nullptr) {
    Vector<T, kWidth> branch[kVectors];
    of.Load(a.branch, row, branch);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!of.Has(v)) continue;
      float x[kWidth], addend[kWidth];
      in[v].To(x);
      branch[v].To(addend);
      if (a.branch_bias != nullptr) {
        float bias[kWidth];
        Load<T, kWidth>(a.branch_bias, of.At(v)).To(bias);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) addend[i] += bias[i];
      }
#pragma unroll
      for (int i = 0; i < kWidth; ++i) x[i] += addend[i];
      in[v].From(x);  // the norm is of what is kept
      Store<T, kWidth>(a.branch, row * a.features + of.At(v), x);
    }
  }
  // What stays in registers are vectors as they were loaded, half as many for bf16.
  const float inverse = 1.0f / static_cast<float>(a.features);
  float mean = 0;
  if constexpr (kLayer) {
    float sum[1] = {0};
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!of.Has(v)) continue;
      float x[kWidth];
      in[v].To(x);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum[0] += x[i];
    }
    GroupSum</*kGroups=*/false>(sum, scratch[0]);
    mean = sum[0] * inverse;
  }
  float square[1] = {0};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (!of.Has(v)) continue;
    float x[kWidth];
    in[v].To(x);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) square[0] += (x[i] - mean) * (x[i] - mean);
  }
  GroupSum</*kGroups=*/false>(square, scratch[1]);
  const float rstd = rsqrtf(square[0] * inverse + a.epsilon);
  if (threadIdx.x == 0) {
    a.rstd[row] = rstd;
    if constexpr (kLayer) a.mean[row] = mean;
  }
  uint32_t largest = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (!of.Has(v)) continue;
    float x[kWidth], weight[kWidth];
    in[v].To(x);
    Load<T, kWidth>(a.weight, of.At(v)).To(weight);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) x[i] = (x[i] - mean) * rstd * weight[i];
    if constexpr (kLayer) {
      float bias[kWidth];
      Load<T, kWidth>(a.bias, of.At(v)).To(bias);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) x[i] += bias[i];
    }
    largest = max(largest, Magnitude(Store<T, kWidth>(a.y, row * a.features + of.At(v), x)));
  }
  if (a.largest != nullptr) {
    KeepLargest(largest, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x),
                largest_scratch, a.largest);
  }
}

// All blocks go through the rows side by side, a row for each group at a turn; columns stay with
// their threads, so that the sums over rows are the threads' own. Rows travel through `stages`
// stages of shared memory ahead of their use, where accesses are of 16 bytes; a thread reads what
// it has loaded. kKinds as in cuda_kernels.h.
template <typename T, int kWidth, int kVectors, int kKinds, int kSideBySide>
__global__ void __launch_bounds__(kThreads, kSideBySide)
    NormBackwardKernel(NormBackwardArguments a, int stages) {
  constexpr bool kStaged = kWidth > 1, kLayer = kKinds > 1;
  constexpr int kMeans = kLayer ? 2 : 1;
  // What was made of one vector stays in registers from its first use to its second; of more, it is
  // made again.
  constexpr bool kStays = kVectors == 1;
  __shared__ float scratch[2][kThreads / 32 * kMeans];
  __shared__ uint32_t largest_scratch[kThreads / 32];
  extern __shared__ uint4 dynamic[];
  cudaTriggerProgrammaticLaunchCompletion();
  const Row<T, kWidth, kVectors> of{a.features};
  const float inverse = 1.0f / static_cast<float>(a.features);
  const int threads = static_cast<int>(blockDim.x * blockDim.y);
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  const int inputs = a.residual == nullptr ? 2 : 3, groups = static_cast<int>(blockDim.y);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * groups;
  const int64_t step = static_cast<int64_t>(gridDim.x) * groups;
  const auto turns = static_cast<int>(CeilDiv(a.rows - first, step));
  int64_t row = first + threadIdx.y;  // this group's

  const auto slot = [&](int stage, int input, int v) {
    return dynamic + ((stage * inputs + input) * kVectors + v) * threads + thread;
  };
  const auto fetch = [&](int64_t at_row, int stage) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (at_row >= a.rows || !of.Has(v)) continue;
      const int64_t at = at_row * a.features + of.At(v);
      __pipeline_memcpy_async(slot(stage, 0, v), static_cast<const T*>(a.x) + at, 16);
      __pipeline_memcpy_async(slot(stage, 1, v), static_cast<const T*>(a.output_gradient) + at, 16);
      if (a.residual != nullptr)
        __pipeline_memcpy_async(slot(stage, 2, v), static_cast<const T*>(a.residual) + at, 16);
    }
    __pipeline_commit();
  };
  const auto take = [&](const void* base, int stage, int input, int v) {
    if constexpr (kStaged) {
      Vector<T, kWidth> vector;
      vector.raw = *reinterpret_cast<const decltype(vector.raw)*>(slot(stage, input, v));
      return vector;
    } else {
      return Load<T, kWidth>(base, row * a.features + of.At(v));
    }
  };
  if constexpr (kStaged) {
    for (int stage = 0; stage < stages; ++stage) fetch(row + stage * step, stage);
  }
  Vector<T, kWidth> weights[kVectors];
  of.Load(a.weight, 0, weights);
  // x - mean, and the gradient of what was normed.
  float centred[kWidth], g[kWidth];
  const auto load = [&](int stage, int v, float mean, float(&upstream)[kWidth]) {
    float weight[kWidth];
    weights[v].To(weight);
    take(a.x, stage, 0, v).To(centred);
    take(a.output_gradient, stage, 1, v).To(upstream);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if constexpr (kLayer) centred[i] -= mean;
      g[i] = upstream[i] * weight[i];
    }
  };

  float sums[kKinds][kVectors][kWidth] = {};
  uint32_t largest = 0;
  // A turn ahead.
  float next_rstd = row < a.rows ? a.rstd[row] : 0.0f, next_mean = 0;
  if (kLayer && row < a.rows) next_mean = a.mean[row];
  int stage = 0;
  // Groups without a row left turn with the others: after barriers that only some have passed,
  // racecheck sees races where there are none.
  for (int turn = 0; turn < turns; ++turn, row += step) {
    const float rstd = next_rstd, mean = next_mean;
    if (row + step < a.rows) {
      next_rstd = a.rstd[row + step];
      if constexpr (kLayer) next_mean = a.mean[row + step];
    }
    if constexpr (kStaged) __pipeline_wait_prior(stages - 1);
    // The sums of g * centred and, with a mean, of g.
    float means[kMeans] = {};
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (row >= a.rows || !of.Has(v)) continue;
      float upstream[kWidth];
      load(stage, v, mean, upstream);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        means[0] += g[i] * centred[i];
        sums[0][v][i] += upstream[i] * (centred[i] * rstd);
        if constexpr (kLayer) {
          means[1] += g[i];
          sums[1][v][i] += upstream[i];
        }
      }
    }
    GroupSum</*kGroups=*/true>(means, scratch[turn % 2] + threadIdx.y * (blockDim.x / 32) * kMeans);
    const float slope = -rstd * rstd * rstd * inverse * means[0];
    const float shift = kLayer ? -rstd * inverse * means[kMeans - 1] : 0.0f;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (row >= a.rows || !of.Has(v)) continue;
      float addend[kWidth] = {}, dx[kWidth];
      if constexpr (!kStays) load(stage, v, mean, dx);
      if (a.residual != nullptr) take(a.residual, stage, 2, v).To(addend);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        dx[i] = rstd * g[i] + (slope * centred[i] + (shift + addend[i]));
        if constexpr (kKinds == 4) {
          sums[2][v][i] += addend[i];
          sums[3][v][i] += dx[i];
        }
      }
      const Vector<T, kWidth> stored =
          Store<T, kWidth>(a.input_gradient, row * a.features + of.At(v), dx);
      largest = max(largest, Magnitude(stored));
    }
    if constexpr (kStaged) {
      fetch(row + stages * step, stage);
      stage = stage + 1 == stages ? 0 : stage + 1;
    }
  }
  // The groups of a block, in order, through shared memory, which is free by now.
  if constexpr (kStaged) __pipeline_wait_prior(0);
  __syncthreads();
  if (a.largest != nullptr) KeepLargest(largest, thread, threads, largest_scratch, a.largest);
  const int64_t width = kKinds * a.features;
  float* const partials = a.partials + blockIdx.x * width;
  float* const shared = reinterpret_cast<float*>(dynamic);
  float* const to = groups == 1 ? partials : shared + threadIdx.y * width;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (!of.Has(v)) continue;
#pragma unroll
    for (int kind = 0; kind < kKinds; ++kind)
      StoreSums<kWidth>(to + kind * a.features + of.At(v), sums[kind][v]);
  }
  if (groups == 1) return;
  __syncthreads();
  for (int64_t at = thread; at < width; at += threads) {
    float sum = 0;
    for (int group = 0; group < groups; ++group) sum += shared[group * width + at];
    partials[at] = sum;
  }
}

constexpr int kSumRows = 32;  // at a time
__global__ void __launch_bounds__(32 * kSumRows)
    SumPartialsKernel(const float* partials, int64_t count, int64_t width, bool add, float* sums) {
  __shared__ float of_rows[kSumRows][33];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
  float sum = 0;
  cudaGridDependencySynchronize();
  if (column < width) {
#pragma unroll 8
    for (int64_t row = threadIdx.y; row < count; row += kSumRows)
      sum += partials[row * width + column];
  }
  of_rows[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= width) return;
  sum = 0;
#pragma unroll
  for (int row = 0; row < kSumRows; ++row) sum += of_rows[row][threadIdx.x];
  sums[column] = add ? sums[column] + sum : sum;
}

// How rows of so many vectors are cut: the threads of a group, their vectors, groups in a block.
struct Cut {
  int group, vectors, groups;
};
int GroupOf(int64_t vectors, int each) {
  return static_cast<int>(CeilDiv(CeilDiv(vectors, each), 32) * 32);
}
// Forward: two vectors a thread, unless too many threads would have none or rows are long; one
// group in a block, unless they are warps.
Cut ForwardCut(int64_t vectors) {
  int each = 2;
  while (each > 1 && 5 * vectors < 4 * each * GroupOf(vectors, each)) each /= 2;
  while (GroupOf(vectors, each) > kThreads) each *= 2;
  const int group = GroupOf(vectors, each);
  return {group, each, group == 32 ? kSmallThreads / 32 : 1};
}
// Backward: as few vectors a thread as leave it room for its sums.
Cut BackwardCut(int64_t vectors, int kinds) {
  int each = vectors <= 32 || (kinds == 1 && vectors <= kThreads / 2) ? 1 : 2;
  while (GroupOf(vectors, each) > kThreads) each *= 2;
  const int group = GroupOf(vectors, each);
  // Blocks of short rows are half as large, and two fit side by side.
  const int groups = (each == 2 && group <= kThreads / 4 ? kThreads / 2 : kThreads) / group;
  return {group, each, group > 32 && groups > kGroupsMax ? kGroupsMax : groups};
}

bool IsWide(Type type, const NormArguments& a) {
  return Whole(type, a.features) && Aligned(a.x, a.branch, a.branch_bias, a.weight, a.bias, a.y);
}
bool IsWide(Type type, const NormBackwardArguments& a) {
  return Whole(type, a.features) &&
         Aligned(a.output_gradient, a.x, a.weight, a.residual, a.input_gradient);
}

}  // namespace

int64_t NormFeaturesMax(Type type, int64_t features) {
  return Whole(type, features) ? int64_t{4} * kThreads * WidthOf(type, true) : 8 * kThreads;
}
int64_t NormSumsMax(Type type, int64_t features) {
  return Whole(type, features) ? kThreads * WidthOf(type, true) : 4 * kThreads;
}

void Norm(Type type, const NormArguments& a, Stream stream) {
  if (a.rows == 0) return;
  ForVectors(type, IsWide(type, a), [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int kWidth = decltype(width)::value;
    const Cut cut = ForwardCut(a.features / kWidth);
    const dim3 threads(cut.group, cut.groups);
    const auto blocks = static_cast<unsigned>(CeilDiv(a.rows, cut.groups));
    const auto launch = [&](auto vectors) {
      constexpr int kVectors = decltype(vectors)::value;
      if (a.mean == nullptr) {
        NormKernel<T, kWidth, kVectors, false><<<blocks, threads, 0, stream>>>(a);
      } else {
        NormKernel<T, kWidth, kVectors, true><<<blocks, threads, 0, stream>>>(a);
      }
    };
    if (cut.vectors == 1) return launch(Width<1>());
    if (cut.vectors == 2) return launch(Width<2>());
    if (kWidth > 1 || cut.vectors == 4) return launch(Width<4>());
    if constexpr (kWidth == 1) launch(Width<8>());
  });
}

int64_t NormPartials(int64_t rows) { return rows < kBackwardBlocks ? rows : kBackwardBlocks; }

void NormBackward(Type type, const NormBackwardArguments& a, Stream stream) {
  if (a.rows == 0) {
    cudaMemsetAsync(a.sums, 0, static_cast<size_t>(a.kinds * a.features) * sizeof(float), stream);
    return;
  }
  int64_t blocks = NormPartials(a.rows);
  ForVectors(type, IsWide(type, a), [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int kWidth = decltype(width)::value;
    const Cut cut = BackwardCut(a.features / kWidth, a.kinds);
    const auto launch = [&](auto vectors, auto kinds) {
      constexpr int kVectors = decltype(vectors)::value, kKinds = decltype(kinds)::value;
      constexpr int kSideBySide = kVectors == 1 && kKinds == 1 ? 2 : 1;
      const bool alone = kSideBySide == 1 && cut.group * cut.groups > kThreads / 2;
      if (alone && blocks > kBackwardBlocks / 2) blocks = kBackwardBlocks / 2;
      const int64_t stage = kWidth == 1 ? 0
                                        : int64_t{a.residual == nullptr ? 32 : 48} * kVectors *
                                              cut.group * cut.groups;
      int64_t stages = stage == 0 ? 0 : kStageBytes / (alone ? 1 : 2) / stage;
      stages = stages > kStagesMax ? kStagesMax : stages;
      const int64_t combined =
          cut.groups == 1 ? 0 : cut.groups * kKinds * a.features * int64_t{sizeof(float)};
      const int64_t shared = combined > stages * stage ? combined : stages * stage;
      const auto kernel = NormBackwardKernel<T, kWidth, kVectors, kKinds, kSideBySide>;
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(shared));
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                           cudaSharedmemCarveoutMaxShared);
      kernel<<<static_cast<unsigned>(blocks), dim3(cut.group, cut.groups),
               static_cast<size_t>(shared), stream>>>(a, static_cast<int>(stages));
    };
    const auto launch_kinds = [&](auto vectors) {
      if (a.kinds == 1) return launch(vectors, Width<1>());
      if (a.kinds == 2) return launch(vectors, Width<2>());
      // Of longer rows they are not asked for: NormSumsMax.
      constexpr int kVectors = decltype(vectors)::value;
      if constexpr (kWidth == 1 ? kVectors < 8 : kVectors <= 2) launch(vectors, Width<4>());
    };
    if (cut.vectors == 8) {
      if constexpr (kWidth == 1) launch_kinds(Width<8>());
    } else if (cut.vectors == 4) {
      launch_kinds(Width<4>());
    } else if (cut.vectors == 2) {
      launch_kinds(Width<2>());
    } else {
      launch_kinds(Width<1>());
    }
  });
  SumPartials(a.partials, blocks, a.kinds * a.features, /*add=*/false, a.sums, stream);
}

void SumPartials(const float* partials, int64_t count, int64_t width, bool add, float* sums,
                 Stream stream) {
  // It may be on its way while the kernel before it in the stream still runs, for which it waits.
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(CeilDiv(width, 32)));
  launch.blockDim = dim3(32, kSumRows);
  launch.stream = stream;
  launch.attrs = &early;
  launch.numAttrs = 1;
  cudaLaunchKernelEx(&launch, SumPartialsKernel, partials, count, width, add, sums);
}

}  // namespace phalanx::model::cuda
