#include "worker/model/cuda_vectors.cuh"

namespace phalanx::model::cuda {
namespace {

// A row is the work of a group: the threads of one threadIdx.y. Each keeps kVectors vectors of it
// in registers, the ones at threadIdx.x, threadIdx.x + blockDim.x, ...
constexpr int kThreads = 512;       // of a block, at most
constexpr int kForwardGroup = 256;  // from where on a thread takes more than one vector
constexpr int kBackwardBlocks = 264;
constexpr int kVectorsMax = 8;

template <typename T, int kWidth, int kVectors>
__device__ void LoadRow(const void* base, int64_t row, int64_t features,
                        Vector<T, kWidth> (&vectors)[kVectors]) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int64_t at = static_cast<int64_t>(threadIdx.x + v * blockDim.x) * kWidth;
    if (at < features) vectors[v] = Load<T, kWidth>(base, row * features + at);
  }
}

template <typename T, int kWidth, int kVectors, bool kLayer>
__global__ void __launch_bounds__(kThreads) NormKernel(NormArguments a) {
  __shared__ float scratch[2][kThreads / 32][16];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  Vector<T, kWidth> in[kVectors];
  LoadRow(a.x, row, a.features, in);
  float x[kVectors][kWidth];
  if (a.branch != nullptr) {
    Vector<T, kWidth> branch[kVectors];
    LoadRow(a.branch, row, a.features, branch);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = static_cast<int64_t>(threadIdx.x + v * blockDim.x) * kWidth;
      if (at >= a.features) continue;
      float addend[kWidth], bias[kWidth];
      in[v].To(x[v]);
      branch[v].To(addend);
      if (a.branch_bias != nullptr) {
        Load<T, kWidth>(a.branch_bias, at).To(bias);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) addend[i] += bias[i];
      }
#pragma unroll
      for (int i = 0; i < kWidth; ++i) x[v][i] += addend[i];
      in[v].From(x[v]);  // the norm is of what is kept
      Store<T, kWidth>(a.branch, row * a.features + at, x[v]);
    }
  }
  float sum[1] = {0};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const bool here = static_cast<int64_t>(threadIdx.x + v * blockDim.x) * kWidth < a.features;
    if (here) in[v].To(x[v]);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if (!here) x[v][i] = 0;
      sum[0] += kLayer ? x[v][i] : x[v][i] * x[v][i];
    }
  }
  GroupSum(sum, scratch[0][threadIdx.y]);
  const float count = static_cast<float>(a.features);
  float mean = 0;
  if constexpr (kLayer) {
    mean = sum[0] / count;
    sum[0] = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (static_cast<int64_t>(threadIdx.x + v * blockDim.x) * kWidth >= a.features) continue;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float centred = x[v][i] - mean;
        sum[0] += centred * centred;
      }
    }
    GroupSum(sum, scratch[1][threadIdx.y]);
  }
  const float rstd = rsqrtf(sum[0] / count + a.epsilon);
  if (threadIdx.x == 0) {
    a.rstd[row] = rstd;
    if constexpr (kLayer) a.mean[row] = mean;
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int64_t at = static_cast<int64_t>(threadIdx.x + v * blockDim.x) * kWidth;
    if (at >= a.features) continue;
    float weight[kWidth], bias[kWidth], y[kWidth];
    Load<T, kWidth>(a.weight, at).To(weight);
    if constexpr (kLayer) Load<T, kWidth>(a.bias, at).To(bias);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      y[i] = (x[v][i] - mean) * rstd * weight[i];
      if constexpr (kLayer) y[i] += bias[i];
    }
    Store<T, kWidth>(a.y, row * a.features + at, y);
  }
}

// Groups take every so many rows and load the next one ahead; columns stay with their threads, so
// that the sums over rows are the threads' own. kKinds as in cuda_kernels.h.
template <typename T, int kWidth, int kVectors, int kKinds>
__global__ void __launch_bounds__(kThreads, kVectors == 1 && kKinds == 1 ? 2 : 1)
    NormBackwardKernel(NormBackwardArguments a) {
  __shared__ float scratch[2][kThreads / 32][32];
  extern __shared__ float4 dynamic[];
  const float inverse = 1.0f / static_cast<float>(a.features);
  const int64_t groups = static_cast<int64_t>(gridDim.x) * blockDim.y;
  int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  Vector<T, kWidth> weights[kVectors], x[kVectors], dy[kVectors], next_x[kVectors],
      next_dy[kVectors], residual[kVectors];
  LoadRow(a.weight, 0, a.features, weights);
  float sums[kKinds][kVectors][kWidth] = {};
  if (row < a.rows) {
    LoadRow(a.x, row, a.features, x);
    LoadRow(a.output_gradient, row, a.features, dy);
  }
  for (int turn = 0; row < a.rows; row += groups, turn ^= 1) {
    if (a.residual != nullptr) LoadRow(a.residual, row, a.features, residual);
    const float rstd = a.rstd[row];
    const float mean = kKinds == 1 ? 0.0f : a.mean[row];
    if (row + groups < a.rows) {
      LoadRow(a.x, row + groups, a.features, next_x);
      LoadRow(a.output_gradient, row + groups, a.features, next_dy);
    }
    // The sums of g * normed and, with a mean, of g; g is the gradient of `normed`.
    float means[kKinds == 1 ? 1 : 2] = {};
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (static_cast<int64_t>(threadIdx.x + v * blockDim.x) * kWidth >= a.features) continue;
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
    GroupSum(means, scratch[turn][threadIdx.y]);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = static_cast<int64_t>(threadIdx.x + v * blockDim.x) * kWidth;
      if (at >= a.features) continue;
      float w[kWidth], in[kWidth], upstream[kWidth], addend[kWidth], dx[kWidth];
      weights[v].To(w);
      x[v].To(in);
      dy[v].To(upstream);
      if (a.residual != nullptr) residual[v].To(addend);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float normed = (in[i] - mean) * rstd;
        float g = upstream[i] * w[i] - normed * (means[0] * inverse);
        if constexpr (kKinds > 1) g -= means[1] * inverse;
        dx[i] = rstd * g;
        if (a.residual != nullptr) dx[i] += addend[i];
        if constexpr (kKinds == 4) {
          if (a.residual != nullptr) sums[2][v][i] += addend[i];
          sums[3][v][i] += dx[i];
        }
      }
      Store<T, kWidth>(a.input_gradient, row * a.features + at, dx);
      x[v] = next_x[v];
      dy[v] = next_dy[v];
    }
  }
  // The groups of a block one after another.
  float* const to = a.partials + static_cast<int64_t>(blockIdx.x) * kKinds * a.features;
  float* const shared = reinterpret_cast<float*>(dynamic);
  for (int group = 0; group < static_cast<int>(blockDim.y); ++group) {
    if (threadIdx.y == group) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int64_t at = static_cast<int64_t>(threadIdx.x + v * blockDim.x) * kWidth;
        if (at >= a.features) continue;
#pragma unroll
        for (int kind = 0; kind < kKinds; ++kind) {
          float* const sum = shared + kind * a.features + at;
          if (group > 0) {
#pragma unroll
            for (int i = 0; i < kWidth; ++i) sums[kind][v][i] += sum[i];
          }
          const bool last = group + 1 == static_cast<int>(blockDim.y);
          StoreSums<kWidth>(last ? to + kind * a.features + at : sum, sums[kind][v]);
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
#pragma unroll 4
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
Cut CutOf(int64_t vectors, int group_max) {
  Cut cut{0, 1, 1};
  while (CeilDiv(vectors, cut.vectors) > group_max && cut.vectors < kVectorsMax) cut.vectors *= 2;
  cut.group = static_cast<int>(CeilDiv(CeilDiv(vectors, cut.vectors), 32) * 32);
  // Named barriers are 16, of which 0 is __syncthreads.
  const int groups = kThreads / cut.group;
  cut.groups = groups < 1 ? 1 : groups > 15 ? 15 : groups;
  return cut;
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
    const Cut cut = CutOf(a.features / width.value, kForwardGroup);
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
    const Cut cut = CutOf(a.features / width.value, kThreads);
    const dim3 threads(cut.group, cut.groups);
    const size_t shared =
        cut.groups == 1 ? 0 : static_cast<size_t>(a.kinds * a.features) * sizeof(float);
    ForCut(cut, [&](auto vectors) {
      constexpr int kWidth = decltype(width)::value, kVectors = decltype(vectors)::value;
      if (a.kinds == 1) {
        NormBackwardKernel<T, kWidth, kVectors, 1><<<blocks, threads, shared, stream>>>(a);
      } else if (a.kinds == 2) {
        NormBackwardKernel<T, kWidth, kVectors, 2><<<blocks, threads, shared, stream>>>(a);
      } else {
        NormBackwardKernel<T, kWidth, kVectors, 4><<<blocks, threads, shared, stream>>>(a);
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
