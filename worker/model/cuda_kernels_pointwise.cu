#include "worker/model/cuda_vectors.cuh"

namespace phalanx::model::cuda {
namespace {

constexpr int kThreads = 256;

// bf16 keeps 8 bits: the fast forms of exp and division are 2 ulp of fp32 off.
template <typename T>
__device__ float Sigmoid(float x) {
  if constexpr (sizeof(T) == 2) return __fdividef(1.0f, 1.0f + __expf(-x));
  return 1.0f / (1.0f + expf(-x));
}

__device__ int64_t Global() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + static_cast<int64_t>(threadIdx.x);
}
unsigned Blocks(int64_t threads) { return static_cast<unsigned>(CeilDiv(threads, kThreads)); }

// Where vector i of the result stands: that of its gate; its up is `block` further.
__device__ int64_t GateOf(int64_t i, int width, uint32_t vectors_of_block, int64_t block) {
  // 32 bits divide several times faster; 2^32 vectors of bf16 are 64 GB.
  const uint32_t pair = static_cast<uint32_t>(i) / vectors_of_block;
  const uint32_t in_block = static_cast<uint32_t>(i) - pair * vectors_of_block;
  return static_cast<int64_t>(pair) * 2 * block + static_cast<int64_t>(in_block) * width;
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    SwiGluKernel(int64_t vectors, uint32_t vectors_of_block, int64_t block, const void* gate_up,
                 void* y, uint32_t* largest) {
  __shared__ uint32_t of_warps[kThreads / 32];
  const int64_t i = Global();
  uint32_t mine = 0;
  if (i < vectors) {
    const int64_t at = GateOf(i, kWidth, vectors_of_block, block);
    float gate[kWidth], up[kWidth];
    const Vector<T, kWidth> gates = Load<T, kWidth>(gate_up, at);
    const Vector<T, kWidth> ups = Load<T, kWidth>(gate_up, at + block);
    gates.To(gate);
    ups.To(up);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) up[j] *= gate[j] * Sigmoid<T>(gate[j]);
    mine = Magnitude(Store<T, kWidth>(y, i * kWidth, up));
  }
  if (largest != nullptr)
    KeepLargest(mine, static_cast<int>(threadIdx.x), kThreads, of_warps, largest);
}

template <typename T, int kWidth, bool kAgain>
__global__ void __launch_bounds__(kThreads)
    SwiGluBackwardKernel(int64_t vectors, uint32_t vectors_of_block, int64_t block,
                         const void* output_gradient, const void* gate_up, void* gradient,
                         uint32_t* largest, Activated activated) {
  __shared__ uint32_t of_warps[2][kThreads / 32];
  const int64_t i = Global();
  uint32_t mine = 0, of_active = 0;
  if (i < vectors) {
    const int64_t at = GateOf(i, kWidth, vectors_of_block, block);
    float gate[kWidth], up[kWidth], dy[kWidth];
    const Vector<T, kWidth> gates = Load<T, kWidth>(gate_up, at);
    const Vector<T, kWidth> ups = Load<T, kWidth>(gate_up, at + block);
    const Vector<T, kWidth> gradients = Load<T, kWidth>(output_gradient, i * kWidth);
    gates.To(gate);
    ups.To(up);
    gradients.To(dy);
    float active[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float sigmoid = Sigmoid<T>(gate[j]), silu = gate[j] * sigmoid;
      active[j] = up[j] * silu;
      gate[j] = dy[j] * up[j] * (sigmoid + silu * (1.0f - sigmoid));
      up[j] = dy[j] * silu;
    }
    mine = Magnitude(Store<T, kWidth>(gradient, at, gate));
    mine = max(mine, Magnitude(Store<T, kWidth>(gradient, at + block, up)));
    if constexpr (kAgain) of_active = Magnitude(Store<T, kWidth>(activated.y, i * kWidth, active));
  }
  const int thread = static_cast<int>(threadIdx.x);
  if (largest != nullptr) KeepLargest(mine, thread, kThreads, of_warps[0], largest);
  if (kAgain && activated.largest != nullptr)
    KeepLargest(of_active, thread, kThreads, of_warps[1], activated.largest);
}

constexpr float kQuickFactor = 1.702f;
constexpr float kTanhFactor =
    1.5957691216057308f;  // 2 sqrt(2 / pi): x sigmoid(2 u) is the tanh form
constexpr float kTanhCube = 0.044715f;

template <typename T, Gelu kGelu>
__device__ float GeluOf(float x) {
  if constexpr (kGelu == Gelu::kQuick) {
    return x * Sigmoid<T>(kQuickFactor * x);
  } else if constexpr (kGelu == Gelu::kTanh) {
    return x * Sigmoid<T>(kTanhFactor * x * (1.0f + kTanhCube * x * x));
  } else {
    return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
  }
}
template <typename T, Gelu kGelu>
__device__ float GeluSlope(float x) {
  if constexpr (kGelu == Gelu::kQuick) {
    const float sigmoid = Sigmoid<T>(kQuickFactor * x);
    return sigmoid * (1.0f + kQuickFactor * x * (1.0f - sigmoid));
  } else if constexpr (kGelu == Gelu::kTanh) {
    const float sigmoid = Sigmoid<T>(kTanhFactor * x * (1.0f + kTanhCube * x * x));
    const float inner = kTanhFactor * x * (1.0f + 3.0f * kTanhCube * x * x);
    return sigmoid * (1.0f + inner * (1.0f - sigmoid));
  } else {
    const float density =
        0.3989422804014327f * (sizeof(T) == 2 ? __expf(-0.5f * x * x) : expf(-0.5f * x * x));
    return 0.5f * (1.0f + erff(x * 0.70710678118654752f)) + x * density;
  }
}

template <typename T, int kWidth, Gelu kGelu>
__global__ void __launch_bounds__(kThreads) GeluKernel(int64_t vectors, const void* x, void* y) {
  const int64_t i = Global();
  if (i >= vectors) return;
  float values[kWidth];
  Load<T, kWidth>(x, i * kWidth).To(values);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) values[j] = GeluOf<T, kGelu>(values[j]);
  Store<T, kWidth>(y, i * kWidth, values);
}

// Column sums: a block takes 32 vectors of columns and a chunk of the rows, each of its warps every
// 8th row, in order.
constexpr int kRowsAtOnce = kThreads / 32;
constexpr int64_t kChunk = 8 * kRowsAtOnce;

// The rows of this warp: begin, begin + kRowsAtOnce, ...
struct Chunk {
  int64_t begin, end;
  __device__ explicit Chunk(int64_t rows)
      : begin(blockIdx.y * kChunk + threadIdx.y), end(min(rows, (blockIdx.y + 1) * kChunk)) {}
};

template <int kWidth>
__device__ void SumOfWarps(float (&sums)[kWidth], float* to) {
  __shared__ float of_warps[kRowsAtOnce][32 * kWidth + 1];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) of_warps[threadIdx.y][i * 32 + threadIdx.x] = sums[i];
  __syncthreads();
  if (threadIdx.y > 0) return;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    for (int warp = 1; warp < kRowsAtOnce; ++warp) sums[i] += of_warps[warp][i * 32 + threadIdx.x];
  }
  if (to != nullptr) StoreSums<kWidth>(to, sums);
}

// dy, times the slope at x.
template <typename T, Gelu kGelu, int kWidth>
__device__ void Slopes(const Vector<T, kWidth>& x, const Vector<T, kWidth>& dy,
                       float (&gradient)[kWidth]) {
  float in[kWidth];
  x.To(in);
  dy.To(gradient);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) gradient[i] *= GeluSlope<T, kGelu>(in[i]);
}

template <typename T, int kWidth, Gelu kGelu>
__global__ void __launch_bounds__(kThreads)
    GeluBackwardKernel(int64_t vectors, const void* output_gradient, const void* x,
                       void* gradient) {
  const int64_t i = Global();
  if (i >= vectors) return;
  float values[kWidth];
  const Vector<T, kWidth> inputs = Load<T, kWidth>(x, i * kWidth);
  Slopes<T, kGelu>(inputs, Load<T, kWidth>(output_gradient, i * kWidth), values);
  Store<T, kWidth>(gradient, i * kWidth, values);
}

// The same, and column sums.
template <typename T, int kWidth, Gelu kGelu>
__global__ void __launch_bounds__(kThreads)
    GeluBackwardSumsKernel(int64_t rows, int64_t features, const void* output_gradient,
                           const void* x, void* gradient, float* partials) {
  constexpr int kAtOnce = 4;
  cudaTriggerProgrammaticLaunchCompletion();
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x) * kWidth;
  const Chunk chunk(rows);
  float sums[kWidth] = {};
  for (int64_t row = chunk.begin; row < chunk.end && at < features; row += kAtOnce * kRowsAtOnce) {
    Vector<T, kWidth> in[kAtOnce], dy[kAtOnce];
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      if (row + r * kRowsAtOnce >= chunk.end) continue;
      in[r] = Load<T, kWidth>(x, (row + r * kRowsAtOnce) * features + at);
      dy[r] = Load<T, kWidth>(output_gradient, (row + r * kRowsAtOnce) * features + at);
    }
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      if (row + r * kRowsAtOnce >= chunk.end) continue;
      float values[kWidth];
      Slopes<T, kGelu>(in[r], dy[r], values);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sums[i] += values[i];
      Store<T, kWidth>(gradient, (row + r * kRowsAtOnce) * features + at, values);
    }
  }
  SumOfWarps<kWidth>(sums, at < features ? partials + blockIdx.y * features + at : nullptr);
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    ColumnSumsKernel(int64_t rows, int64_t features, int64_t stride, const void* values,
                     float* partials) {
  constexpr int kAtOnce = 8;
  cudaTriggerProgrammaticLaunchCompletion();
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x) * kWidth;
  const Chunk chunk(rows);
  float sums[kWidth] = {};
  for (int64_t row = chunk.begin; row < chunk.end && at < features; row += kAtOnce * kRowsAtOnce) {
    Vector<T, kWidth> vectors[kAtOnce];
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      if (row + r * kRowsAtOnce < chunk.end)
        vectors[r] = LoadOnce<T, kWidth>(values, (row + r * kRowsAtOnce) * stride + at);
    }
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      if (row + r * kRowsAtOnce >= chunk.end) continue;
      float in[kWidth];
      vectors[r].To(in);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sums[i] += in[i];
    }
  }
  SumOfWarps<kWidth>(sums, at < features ? partials + blockIdx.y * features + at : nullptr);
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    AddBiasAndResidualKernel(int64_t vectors, uint32_t vectors_of_row, const void* bias,
                             const void* residual, void* branch) {
  const int64_t i = Global();
  if (i >= vectors) return;
  const int64_t at = static_cast<int64_t>(static_cast<uint32_t>(i) % vectors_of_row) * kWidth;
  float sum[kWidth], addend[kWidth], column[kWidth];
  const Vector<T, kWidth> branches = Load<T, kWidth>(branch, i * kWidth);
  const Vector<T, kWidth> residuals = Load<T, kWidth>(residual, i * kWidth);
  Load<T, kWidth>(bias, at).To(column);
  branches.To(sum);
  residuals.To(addend);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) sum[j] = addend[j] + (sum[j] + column[j]);  // as a norm does
  Store<T, kWidth>(branch, i * kWidth, sum);
}

// The angles by which a pair of vectors turns.
template <int kWidth>
struct Angles {
  float cos[kWidth], sin[kWidth];
  // Those at `at`, inverted or not.
  __device__ void Load(const float* cos_from, const float* sin_from, int64_t at, float sign) {
    if constexpr (kWidth == 1) {
      cos[0] = cos_from[at];
      sin[0] = sign * sin_from[at];
    } else {
#pragma unroll
      for (int i = 0; i < kWidth; i += 4) {
        const float4 c = __ldg(reinterpret_cast<const float4*>(cos_from + at + i));
        const float4 s = __ldg(reinterpret_cast<const float4*>(sin_from + at + i));
        cos[i] = c.x, cos[i + 1] = c.y, cos[i + 2] = c.z, cos[i + 3] = c.w;
        sin[i] = sign * s.x, sin[i + 1] = sign * s.y;
        sin[i + 2] = sign * s.z, sin[i + 3] = sign * s.w;
      }
    }
  }
  __device__ void Turn(float (&first)[kWidth], float (&second)[kWidth]) const {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float a = first[i], b = second[i];
      first[i] = a * cos[i] - b * sin[i];
      second[i] = b * cos[i] + a * sin[i];
    }
  }
};

// A block takes the heads of one row; a thread, vectors of both halves of a head.
template <typename T, int kWidth>
__global__ void __launch_bounds__(512) RotateKernel(RotateArguments a, uint32_t vectors_of_half) {
  const int64_t row = blockIdx.x;
  const int64_t position = blockIdx.x % static_cast<uint32_t>(a.length);
  const auto items = static_cast<uint32_t>(a.heads) * vectors_of_half;
  for (uint32_t item = threadIdx.x; item < items; item += blockDim.x) {
    const uint32_t head = item / vectors_of_half;
    const int64_t at = static_cast<int64_t>(item - head * vectors_of_half) * kWidth;
    const int64_t from = row * a.from_row + head * a.from_head + at;
    const int64_t to = row * a.to_row + head * a.to_head + at;
    float first[kWidth], second[kWidth];
    Angles<kWidth> angles;
    const Vector<T, kWidth> firsts = Load<T, kWidth>(a.from, from);
    const Vector<T, kWidth> seconds = Load<T, kWidth>(a.from, from + a.half);
    angles.Load(a.cos, a.sin, position * a.half + at, a.inverse ? -1.0f : 1.0f);
    firsts.To(first);
    seconds.To(second);
    angles.Turn(first, second);
    Store<T, kWidth>(a.to, to, first);
    Store<T, kWidth>(a.to, to + a.half, second);
  }
}

constexpr int kPackThreads = 128;
// A block takes the heads of one row; threadIdx.x, a vector of both halves, threadIdx.y, some of
// the heads, which turn alike.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kPackThreads)
    PackHeadsKernel(PackHeadsArguments a, int heads, int vectors_of_half) {
  __shared__ uint32_t of_warps[kPackThreads / 32];
  uint32_t mine = 0;
  const int64_t batch = blockIdx.x / static_cast<uint32_t>(a.length);
  const int64_t row = blockIdx.x % static_cast<uint32_t>(a.length);
  for (int vector = threadIdx.x; vector < vectors_of_half; vector += blockDim.x) {
    const int64_t at = static_cast<int64_t>(vector) * kWidth;
    Angles<kWidth> angles;
    if (a.cos != nullptr) angles.Load(a.cos, a.sin, row * a.half + at, -1.0f);
    for (int head = threadIdx.y; head < heads; head += blockDim.y) {
      int64_t of_part = head;
      int part = 0;
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        if (part == p && of_part >= a.parts[p].heads) of_part -= a.parts[p].heads, part = p + 1;
      }
      const HeadsPart& in = part == 0 ? a.parts[0] : part == 1 ? a.parts[1] : a.parts[2];
      const int64_t from = batch * in.of_batch + row * in.of_row + of_part * in.of_head + at;
      const int64_t to = (static_cast<int64_t>(blockIdx.x) * heads + head) * 2 * a.half + at;
      float first[kWidth], second[kWidth];
      const Vector<T, kWidth> firsts = Load<T, kWidth>(in.from, from);
      const Vector<T, kWidth> seconds = Load<T, kWidth>(in.from, from + a.half);
      firsts.To(first);
      seconds.To(second);
      if (part < 2 && a.cos != nullptr) angles.Turn(first, second);
      mine = max(mine, Magnitude(Store<T, kWidth>(a.to, to, first)));
      mine = max(mine, Magnitude(Store<T, kWidth>(a.to, to + a.half, second)));
    }
  }
  if (a.largest != nullptr) {
    KeepLargest(mine, static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x),
                static_cast<int>(blockDim.x * blockDim.y), of_warps, a.largest);
  }
}

// Runs body(Choice<gelu>()).
template <Gelu kGelu>
struct Choice {
  static constexpr Gelu value = kGelu;
};
template <typename Body>
void ForGelu(Gelu gelu, const Body& body) {
  switch (gelu) {
    case Gelu::kQuick:
      return body(Choice<Gelu::kQuick>());
    case Gelu::kErf:
      return body(Choice<Gelu::kErf>());
    case Gelu::kTanh:
      return body(Choice<Gelu::kTanh>());
  }
}

}  // namespace

void SwiGlu(Type type, int64_t count, int64_t block, const void* gate_up, void* y,
            uint32_t* largest, Stream stream) {
  if (count == 0) return;
  ForVectors(type, Whole(type, block) && Aligned(gate_up, y), [&](auto element, auto width) {
    constexpr int kWidth = decltype(width)::value;
    const int64_t vectors = count * block / kWidth;
    SwiGluKernel<decltype(element), kWidth><<<Blocks(vectors), kThreads, 0, stream>>>(
        vectors, static_cast<uint32_t>(block / kWidth), block, gate_up, y, largest);
  });
}

void SwiGluBackward(Type type, int64_t count, int64_t block, const void* output_gradient,
                    const void* gate_up, void* gradient, uint32_t* largest,
                    const Activated& activated, Stream stream) {
  if (count == 0) return;
  const bool wide = Whole(type, block) && Aligned(output_gradient, gate_up, gradient, activated.y);
  ForVectors(type, wide, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int kWidth = decltype(width)::value;
    const int64_t vectors = count * block / kWidth;
    const auto kernel = activated.y != nullptr ? SwiGluBackwardKernel<T, kWidth, true>
                                               : SwiGluBackwardKernel<T, kWidth, false>;
    kernel<<<Blocks(vectors), kThreads, 0, stream>>>(vectors, static_cast<uint32_t>(block / kWidth),
                                                     block, output_gradient, gate_up, gradient,
                                                     largest, activated);
  });
}

void GeluForward(Type type, Gelu gelu, int64_t count, const void* x, void* y, Stream stream) {
  if (count == 0) return;
  ForVectors(type, Whole(type, count) && Aligned(x, y), [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int kWidth = decltype(width)::value;
    ForGelu(gelu, [&](auto choice) {
      GeluKernel<T, kWidth, decltype(choice)::value>
          <<<Blocks(count / kWidth), kThreads, 0, stream>>>(count / kWidth, x, y);
    });
  });
}

int64_t ColumnPartials(int64_t rows) { return CeilDiv(rows, kChunk); }

void GeluBackward(Type type, Gelu gelu, int64_t rows, int64_t features, const void* output_gradient,
                  const void* x, void* gradient, float* partials, float* sums, Stream stream) {
  if (rows == 0) {
    if (sums != nullptr)
      cudaMemsetAsync(sums, 0, static_cast<size_t>(features) * sizeof(float), stream);
    return;
  }
  const int64_t chunks = ColumnPartials(rows);
  const bool wide = Whole(type, features) && Aligned(output_gradient, x, gradient);
  ForVectors(type, wide, [&](auto element, auto width) {
    using T = decltype(element);
    constexpr int kWidth = decltype(width)::value;
    ForGelu(gelu, [&](auto choice) {
      constexpr Gelu kGelu = decltype(choice)::value;
      if (sums == nullptr) {
        const int64_t vectors = rows * features / kWidth;
        GeluBackwardKernel<T, kWidth, kGelu>
            <<<Blocks(vectors), kThreads, 0, stream>>>(vectors, output_gradient, x, gradient);
      } else {
        const dim3 blocks(static_cast<unsigned>(CeilDiv(features, 32 * kWidth)),
                          static_cast<unsigned>(chunks));
        GeluBackwardSumsKernel<T, kWidth, kGelu><<<blocks, dim3(32, kRowsAtOnce), 0, stream>>>(
            rows, features, output_gradient, x, gradient, partials);
      }
    });
  });
  if (sums != nullptr) SumPartials(partials, chunks, features, /*add=*/false, sums, stream);
}

void AddColumnSums(Type type, int64_t rows, int64_t features, int64_t stride, const void* values,
                   float* partials, float* sums, Stream stream) {
  if (rows == 0) return;
  const int64_t chunks = ColumnPartials(rows);
  ForVectors(type, Whole(type, features, stride) && Aligned(values), [&](auto element, auto width) {
    constexpr int kWidth = decltype(width)::value;
    const dim3 blocks(static_cast<unsigned>(CeilDiv(features, 32 * kWidth)),
                      static_cast<unsigned>(chunks));
    ColumnSumsKernel<decltype(element), kWidth>
        <<<blocks, dim3(32, kRowsAtOnce), 0, stream>>>(rows, features, stride, values, partials);
  });
  SumPartials(partials, chunks, features, /*add=*/true, sums, stream);
}

void AddBiasAndResidual(Type type, int64_t rows, int64_t features, const void* bias,
                        const void* residual, void* branch, Stream stream) {
  if (rows == 0) return;
  const bool wide = Whole(type, features) && Aligned(bias, residual, branch);
  ForVectors(type, wide, [&](auto element, auto width) {
    constexpr int kWidth = decltype(width)::value;
    const int64_t vectors = rows * features / kWidth;
    AddBiasAndResidualKernel<decltype(element), kWidth><<<Blocks(vectors), kThreads, 0, stream>>>(
        vectors, static_cast<uint32_t>(features / kWidth), bias, residual, branch);
  });
}

void Rotate(Type type, const RotateArguments& a, Stream stream) {
  if (a.rows == 0 || a.heads == 0) return;
  const bool wide = Whole(type, a.half, a.from_row, a.from_head, a.to_row, a.to_head) &&
                    Aligned(a.from, a.to, a.cos, a.sin);
  ForVectors(type, wide, [&](auto element, auto width) {
    constexpr int kWidth = decltype(width)::value;
    const int64_t items = a.heads * a.half / kWidth;
    const auto threads = static_cast<unsigned>(items < 512 ? CeilDiv(items, 32) * 32 : 512);
    RotateKernel<decltype(element), kWidth><<<static_cast<unsigned>(a.rows), threads, 0, stream>>>(
        a, static_cast<uint32_t>(a.half / kWidth));
  });
}

void PackHeads(Type type, const PackHeadsArguments& a, Stream stream) {
  if (a.rows == 0) return;
  bool wide = Whole(type, a.half) && Aligned(a.to, a.cos, a.sin);
  int64_t heads = 0;
  for (const HeadsPart& part : a.parts) {
    wide = wide && Whole(type, part.of_batch, part.of_row, part.of_head) && Aligned(part.from);
    heads += part.heads;
  }
  ForVectors(type, wide, [&](auto element, auto width) {
    constexpr int kWidth = decltype(width)::value;
    const auto vectors = static_cast<int>(a.half / kWidth);
    const int across = vectors < kPackThreads ? vectors : kPackThreads;
    PackHeadsKernel<decltype(element), kWidth>
        <<<static_cast<unsigned>(a.rows), dim3(across, kPackThreads / across), 0, stream>>>(
            a, static_cast<int>(heads), vectors);
  });
}

}  // namespace phalanx::model::cuda
