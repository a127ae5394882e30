#include <cuda_pipeline_primitives.h>

#include "worker/model/cuda_vectors.cuh"

namespace phalanx::model::cuda {
namespace {

// A row is the work of a group: the threads of one threadIdx.y, each with kVectors vectors of it,
// those at threadIdx.x, threadIdx.x + blockDim.x, ...
constexpr int kThreads = 512;  // of a block, at most
constexpr int kVectorsMax = 8;
constexpr int kBackwardBlocks = 264;
constexpr int kStagesMax = 4;
constexpr int64_t kStageBytes = 98304;  // of a block's shared memory: two blocks side by side

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
  __shared__ float scratch[2][kThreads / 32][16];
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
  const float count = static_cast<float>(a.features);
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
    GroupSum<true>(sum, scratch[0][threadIdx.y]);
    mean = sum[0] / count;
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
  GroupSum<true>(square, scratch[1][threadIdx.y]);
  const float rstd = rsqrtf(square[0] / count + a.epsilon);
  if (threadIdx.x == 0) {
    a.rstd[row] = rstd;
    if constexpr (kLayer) a.mean[row] = mean;
  }
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
    Store<T, kWidth>(a.y, row * a.features + of.At(v), x);
  }
}

// Groups take every so many rows; columns stay with their threads, so that the sums over rows are
// the threads' own. Rows travel through `stages` stages of shared memory ahead of their use, where
// accesses are of 16 bytes; a thread reads what it has loaded. kKinds as in cuda_kernels.h.
template <typename T, int kWidth, int kVectors, int kKinds>
__global__ void __launch_bounds__(kThreads, kVectors == 1 && kKinds < 4 ? 2 : 1)
    NormBackwardKernel(NormBackwardArguments a, int stages) {
  __shared__ float scratch[2][kThreads / 32][32];
  extern __shared__ uint4 dynamic[];
  constexpr bool kStaged = kWidth > 1;
  const Row<T, kWidth, kVectors> of{a.features};
  const float inverse = 1.0f / static_cast<float>(a.features);
  const int64_t groups = static_cast<int64_t>(gridDim.x) * blockDim.y;
  const int threads = static_cast<int>(blockDim.x * blockDim.y);
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  const auto slot = [&](int stage, int input, int v) {
    return dynamic + ((stage * 3 + input) * kVectors + v) * threads + thread;
  };
  const auto fetch = [&](int64_t row, int stage) {
    if (row < a.rows) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (!of.Has(v)) continue;
        const int64_t at = row * a.features + of.At(v);
        __pipeline_memcpy_async(slot(stage, 0, v), static_cast<const T*>(a.x) + at, 16);
        __pipeline_memcpy_async(slot(stage, 1, v), static_cast<const T*>(a.output_gradient) + at,
                                16);
        if (a.residual != nullptr)
          __pipeline_memcpy_async(slot(stage, 2, v), static_cast<const T*>(a.residual) + at, 16);
      }
    }
    __pipeline_commit();
  };
  const auto take = [&](const void* base, int64_t row, int stage, int input, int v) {
    if constexpr (kStaged) {
      Vector<T, kWidth> vector;
      vector.raw = *reinterpret_cast<const decltype(vector.raw)*>(slot(stage, input, v));
      return vector;
    } else {
      return Load<T, kWidth>(base, row * a.features + of.At(v));
    }
  };

  Vector<T, kWidth> weights[kVectors];
  of.Load(a.weight, 0, weights);
  float sums[kKinds][kVectors][kWidth] = {};
  int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if constexpr (kStaged) {
    for (int stage = 0; stage < stages; ++stage) fetch(row + stage * groups, stage);
  }
  int stage = 0;
  for (int turn = 0; row < a.rows; row += groups, turn ^= 1) {
    const float rstd = a.rstd[row];
    const float mean = kKinds == 1 ? 0.0f : a.mean[row];
    if constexpr (kStaged) __pipeline_wait_prior(stages - 1);
    // The sums of g * normed and, with a mean, of g; g is the gradient of `normed`.
    float means[kKinds == 1 ? 1 : 2] = {};
    Vector<T, kWidth> x[kVectors], dy[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!of.Has(v)) continue;
      x[v] = take(a.x, row, stage, 0, v);
      dy[v] = take(a.output_gradient, row, stage, 1, v);
      float w[kWidth], in[kWidth], upstream[kWidth];
      weights[v].To(w);
      x[v].To(in);
      dy[v].To(upstream);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float normed = (in[i] - mean) * rstd, g = upstream[i] * w[i];
        means[0] += g * normed;
        if constexpr (kKinds > 1) {
          means[1] += g;
          sums[1][v][i] += upstream[i];
        }
        sums[0][v][i] += upstream[i] * normed;
      }
    }
    GroupSum<false>(means, scratch[turn][threadIdx.y]);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!of.Has(v)) continue;
      float w[kWidth], in[kWidth], upstream[kWidth], addend[kWidth] = {}, dx[kWidth];
      weights[v].To(w);
      x[v].To(in);
      dy[v].To(upstream);
      if (a.residual != nullptr) take(a.residual, row, stage, 2, v).To(addend);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float normed = (in[i] - mean) * rstd;
        float g = upstream[i] * w[i] - normed * (means[0] * inverse);
        if constexpr (kKinds > 1) g -= means[1] * inverse;
        dx[i] = rstd * g + addend[i];
        if constexpr (kKinds == 4) {
          sums[2][v][i] += addend[i];
          sums[3][v][i] += dx[i];
        }
      }
      Store<T, kWidth>(a.input_gradient, row * a.features + of.At(v), dx);
    }
    if constexpr (kStaged) {
      fetch(row + stages * groups, stage);
      stage = stage + 1 == stages ? 0 : stage + 1;
    }
  }
  if constexpr (kStaged) __pipeline_wait_prior(0);
  // The groups of a block one after another, through shared memory, which is free by now.
  __syncthreads();
  float* const to = a.partials + static_cast<int64_t>(blockIdx.x) * kKinds * a.features;
  float* const shared = reinterpret_cast<float*>(dynamic);
  for (int group = 0; group < static_cast<int>(blockDim.y); ++group) {
    if (static_cast<int>(threadIdx.y) == group) {
      const bool last = group + 1 == static_cast<int>(blockDim.y);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (!of.Has(v)) continue;
#pragma unroll
        for (int kind = 0; kind < kKinds; ++kind) {
          const int64_t at = kind * a.features + of.At(v);
          if (group > 0) {
#pragma unroll
            for (int i = 0; i < kWidth; ++i) sums[kind][v][i] += shared[at + i];
          }
          StoreSums<kWidth>(last ? to + at : shared + at, sums[kind][v]);
        }
      }
    }
    if (blockDim.y > 1) __syncthreads();
  }
}

__global__ void SumPartialsKernel(const float* partials, int64_t count, int64_t width, bool add,
                                  float* sums) {
  __shared__ float of_rows[16][33];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
  float sum = 0;
  if (column < width) {
#pragma unroll 8
    for (int64_t row = threadIdx.y; row < count; row += 16) sum += partials[row * width + column];
  }
  of_rows[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= width) return;
  sum = 0;
#pragma unroll
  for (int row = 0; row < 16; ++row) sum += of_rows[row][threadIdx.x];
  sums[column] = add ? sums[column] + sum : sum;
}

// How rows of so many vectors are cut: the threads of a group, their vectors, groups in a block.
struct Cut {
  int group, vectors, groups;
};
// With as many vectors a thread as preferred, unless too many threads would have none. `alone`: one
// group in a block, unless they are of 32.
Cut CutOf(int64_t vectors, int preferred, bool alone) {
  const auto group_of = [&](int each) { return CeilDiv(CeilDiv(vectors, each), 32) * 32; };
  int each = preferred;
  while (each > 1 && 5 * vectors < 4 * each * group_of(each)) each /= 2;
  while (each < kVectorsMax && group_of(each) > kThreads) each *= 2;
  const int group = static_cast<int>(group_of(each));
  if (alone && group > 32) return {group, each, 1};
  // Named barriers are 16, of which 0 is __syncthreads.
  const int groups = kThreads / group;
  return {group, each, groups > 15 ? 15 : groups};
}

bool IsWide(Type type, const NormArguments& a) {
  return Whole(type, a.features) && Aligned(a.x, a.branch, a.branch_bias, a.weight, a.bias, a.y);
}
bool IsWide(Type type, const NormBackwardArguments& a) {
  return Whole(type, a.features) &&
         Aligned(a.output_gradient, a.x, a.weight, a.residual, a.input_gradient);
}

// Runs body(Width<vectors>()).
template <typename Body>
void ForCut(const Cut& cut, const Body& body) {
  switch (cut.vectors) {
    case 1:
      return body(Width<1>());
    case 2:
      return body(Width<2>());
    case 4:
      return body(Width<4>());
    default:
      return body(Width<8>());
  }
}

}  // namespace

int64_t NormFeaturesMax(Type type, int64_t features) {
  return kThreads * kVectorsMax * WidthOf(type, Whole(type, features));
}

void Norm(Type type, const NormArguments& a, Stream stream) {
  if (a.rows == 0) return;
  ForVectors(type, IsWide(type, a), [&](auto element, auto width) {
    using T = decltype(element);
    const Cut cut = CutOf(a.features / width.value, 4, /*alone=*/true);
    const dim3 threads(cut.group, cut.groups);
    const auto blocks = static_cast<unsigned>(CeilDiv(a.rows, cut.groups));
    ForCut(cut, [&](auto vectors) {
      constexpr int kWidth = decltype(width)::value, kVectors = decltype(vectors)::value;
      if (a.mean == nullptr) {
        NormKernel<T, kWidth, kVectors, false><<<blocks, threads, 0, stream>>>(a);
      } else {
        NormKernel<T, kWidth, kVectors, true><<<blocks, threads, 0, stream>>>(a);
      }
    });
  });
}

int64_t NormPartials(int64_t rows) { return rows < kBackwardBlocks ? rows : kBackwardBlocks; }

void NormBackward(Type type, const NormBackwardArguments& a, Stream stream) {
  if (a.rows == 0) {
    cudaMemsetAsync(a.sums, 0, static_cast<size_t>(a.kinds * a.features) * sizeof(float), stream);
    return;
  }
  const auto blocks = static_cast<unsigned>(NormPartials(a.rows));
  ForVectors(type, IsWide(type, a), [&](auto element, auto width) {
    using T = decltype(element);
    const Cut cut = CutOf(a.features / width.value, 1, /*alone=*/false);
    const dim3 threads(cut.group, cut.groups);
    const int64_t stage = width.value == 1 ? 0 : int64_t{48} * cut.group * cut.groups * cut.vectors;
    int64_t stages = stage == 0 ? 0 : kStageBytes / stage;
    stages = stages < 1 ? 1 : stages > kStagesMax ? kStagesMax : stages;
    const int64_t combined = cut.groups == 1 ? 0 : a.kinds * a.features * int64_t{sizeof(float)};
    const int64_t shared = combined > stages * stage ? combined : stages * stage;
    ForCut(cut, [&](auto vectors) {
      constexpr int kWidth = decltype(width)::value, kVectors = decltype(vectors)::value;
      const auto launch = [&](auto kernel) {
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared));
        kernel<<<blocks, threads, static_cast<size_t>(shared), stream>>>(a,
                                                                         static_cast<int>(stages));
      };
      if (a.kinds == 1) {
        launch(NormBackwardKernel<T, kWidth, kVectors, 1>);
      } else if (a.kinds == 2) {
        launch(NormBackwardKernel<T, kWidth, kVectors, 2>);
      } else {
        launch(NormBackwardKernel<T, kWidth, kVectors, 4>);
      }
    });
  });
  SumPartials(a.partials, blocks, a.kinds * a.features, /*add=*/false, a.sums, stream);
}

void SumPartials(const float* partials, int64_t count, int64_t width, bool add, float* sums,
                 Stream stream) {
  SumPartialsKernel<<<static_cast<unsigned>(CeilDiv(width, 32)), dim3(32, 16), 0, stream>>>(
      partials, count, width, add, sums);
}

}  // namespace phalanx::model::cuda
