#include "worker/model/cpu_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

// The loops are templates that must be inlined into the functions compiled for each instruction
// set.
#define PHALANX_INLINE inline __attribute__((always_inline))
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define PHALANX_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define PHALANX_CLONES
#endif

namespace phalanx::model::cpu {
namespace {

// Sums run in this many lanes: strict floating point keeps the compiler from splitting one.
constexpr int64_t kLanes = 16;

// e^x to 2 ulp: 2^k * p(r), r in [-ln2/2, ln2/2]. Branch-free, so that loops of it vectorise.
PHALANX_INLINE float Exp(float x) {
  x = x < -87.3f ? -87.3f : x;
  x = x > 88.3f ? 88.3f : x;
  const float shifted = x * 1.44269504088896341f + 12582912.0f;  // 1.5 * 2^23: rounds to an integer
  const float k = shifted - 12582912.0f;
  const float r = (x - k * 0.693359375f) - k * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(k) + 127) << 23;
  return p * std::bit_cast<float>(bits);
}
PHALANX_INLINE double Exp(double x) { return std::exp(x); }

// sum of term(i) for i in [0, count).
template <typename T, typename Term>
PHALANX_INLINE T Sum(int64_t count, const Term& term) {
  T lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] += term(i + j);
  }
  T sum = 0;
  for (; i < count; ++i) sum += term(i);
  for (int64_t j = 0; j < kLanes; ++j) sum += lanes[j];
  return sum;
}

template <typename T>
PHALANX_INLINE T Largest(int64_t count, const T* values) {
  T lanes[kLanes];
  std::fill_n(lanes, kLanes, std::numeric_limits<T>::lowest());
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      lanes[j] = values[i + j] > lanes[j] ? values[i + j] : lanes[j];
    }
  }
  T largest = *std::max_element(lanes, lanes + kLanes);
  for (; i < count; ++i) largest = std::max(largest, values[i]);
  return largest;
}

}  // namespace

template <typename T>
PHALANX_CLONES void RmsNorm(int64_t rows, int64_t features, const T* x, T* branch, const T* weight,
                            T epsilon, T* y, T* rstd) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* in = x + r * features;
    if (branch != nullptr) {
      T* sum = branch + r * features;
      for (int64_t i = 0; i < features; ++i) sum[i] = in[i] + sum[i];
      in = sum;
    }
    const T square = Sum<T>(features, [in](int64_t i) { return in[i] * in[i]; });
    const T scale = T(1) / std::sqrt(square / static_cast<T>(features) + epsilon);
    rstd[r] = scale;
    T* out = y + r * features;
    for (int64_t i = 0; i < features; ++i) out[i] = in[i] * scale * weight[i];
  }
}

template <typename T>
PHALANX_CLONES void RmsNormBackward(int64_t rows, int64_t features, const T* output_gradient,
                                    const T* x, const T* rstd, const T* weight, const T* residual,
                                    T* input_gradient, T* weight_gradient) {
  std::fill_n(weight_gradient, features, T(0));
  for (int64_t r = 0; r < rows; ++r) {
    const T* dy = output_gradient + r * features;
    const T* in = x + r * features;
    const T scale = rstd[r];
    const T dot = Sum<T>(features, [=](int64_t i) { return dy[i] * weight[i] * in[i]; });
    const T shift = dot * scale * scale / static_cast<T>(features);
    T* dx = input_gradient + r * features;
    if (residual != nullptr) {
      const T* add = residual + r * features;
      for (int64_t i = 0; i < features; ++i)
        dx[i] = add[i] + scale * (dy[i] * weight[i] - in[i] * shift);
    } else {
      for (int64_t i = 0; i < features; ++i) dx[i] = scale * (dy[i] * weight[i] - in[i] * shift);
    }
    for (int64_t i = 0; i < features; ++i) weight_gradient[i] += dy[i] * in[i] * scale;
  }
}

template <typename T>
PHALANX_CLONES void Rotate(int64_t rows, int64_t length, int64_t stride, int64_t heads,
                           int64_t half, const T* cos, const T* sin, T sign, T* x) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* c = cos + (r % length) * half;
    const T* s = sin + (r % length) * half;
    for (int64_t h = 0; h < heads; ++h) {
      T* a = x + r * stride + h * 2 * half;
      T* b = a + half;
      for (int64_t i = 0; i < half; ++i) {
        const T first = a[i], second = b[i], turn = sign * s[i];
        a[i] = first * c[i] - second * turn;
        b[i] = second * c[i] + first * turn;
      }
    }
  }
}

template <typename T>
PHALANX_CLONES void SwiGlu(int64_t rows, int64_t blocks, int64_t block, const T* gate_up, T* y) {
  for (int64_t n = 0; n < rows * blocks; ++n) {
    const T* gate = gate_up + n * 2 * block;
    const T* up = gate + block;
    T* out = y + n * block;
    for (int64_t i = 0; i < block; ++i) out[i] = gate[i] / (T(1) + Exp(-gate[i])) * up[i];
  }
}

template <typename T>
PHALANX_CLONES void SwiGluBackward(int64_t rows, int64_t blocks, int64_t block,
                                   const T* output_gradient, const T* gate_up, T* gradient) {
  for (int64_t n = 0; n < rows * blocks; ++n) {
    const T* gate = gate_up + n * 2 * block;
    const T* up = gate + block;
    const T* dy = output_gradient + n * block;
    T* dgate = gradient + n * 2 * block;
    T* dup = dgate + block;
    for (int64_t i = 0; i < block; ++i) {
      const T sigmoid = T(1) / (T(1) + Exp(-gate[i]));
      const T silu = gate[i] * sigmoid;
      dup[i] = dy[i] * silu;
      dgate[i] = dy[i] * up[i] * (sigmoid + silu * (T(1) - sigmoid));
    }
  }
}

template <typename T>
PHALANX_CLONES void QuickGelu(int64_t count, const T* x, T* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] / (T(1) + Exp(T(-1.702) * x[i]));
}

template <typename T>
PHALANX_CLONES void QuickGeluBackward(int64_t count, const T* output_gradient, const T* x,
                                      T* gradient) {
  for (int64_t i = 0; i < count; ++i) {
    const T sigmoid = T(1) / (T(1) + Exp(T(-1.702) * x[i]));
    gradient[i] = output_gradient[i] * sigmoid * (T(1) + T(1.702) * x[i] * (T(1) - sigmoid));
  }
}

template <typename T>
PHALANX_CLONES void TakeRows(int64_t rows, int64_t features, const T* table, const int64_t* index,
                             const bool* keep, T* y) {
  const size_t bytes = static_cast<size_t>(features) * sizeof(T);
  for (int64_t r = 0; r < rows; ++r) {
    if (keep == nullptr || keep[r]) {
      std::memcpy(y + r * features, table + index[r] * features, bytes);
    } else {
      std::memset(y + r * features, 0, bytes);
    }
  }
}

template <typename T>
PHALANX_CLONES void AddRows(int64_t rows, int64_t features, const int64_t* index, const bool* keep,
                            const T* values, T* sum) {
  for (int64_t r = 0; r < rows; ++r) {
    if (keep != nullptr && !keep[r]) continue;
    T* to = sum + index[r] * features;
    const T* from = values + r * features;
    for (int64_t i = 0; i < features; ++i) to[i] += from[i];
  }
}

template <typename T>
PHALANX_CLONES void EmbedRows(int64_t rows, int64_t features, const T* table, int64_t first,
                              int64_t count, const T* items, const int64_t* source,
                              const int64_t* next, T* y) {
  const size_t bytes = static_cast<size_t>(features) * sizeof(T);
  for (int64_t r = 0; r < rows; ++r) {
    T* to = y + r * features;
    const bool text = source[r] >= 0;
    const int64_t place = text ? source[r] - first : -1 - source[r];
    const T* from = text ? (place >= 0 && place < count ? table : nullptr) : items;
    if (from == nullptr) {
      std::memset(to, 0, bytes);
      continue;
    }
    std::memcpy(to, from + place * features, bytes);
    if (text || next == nullptr) continue;
    for (int64_t item = next[place]; item >= 0; item = next[item]) {
      const T* addend = items + item * features;
      for (int64_t i = 0; i < features; ++i) to[i] += addend[i];
    }
  }
}

template <typename T>
PHALANX_CLONES void AddTokenRows(int64_t rows, int64_t features, const int32_t* tokens,
                                 const int64_t* order, int64_t first, int64_t count,
                                 const T* values, T* sum) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = tokens[r] - first;
    if (row < 0 || row >= count) continue;
    T* to = sum + row * features;
    const T* from = values + order[r] * features;
    for (int64_t i = 0; i < features; ++i) to[i] += from[i];
  }
}

template <typename T>
PHALANX_CLONES void SoftmaxStatistics(int64_t rows, int64_t columns, const T* logits,
                                      const int64_t* labels, const T* weights, int64_t first,
                                      T* statistics) {
  for (int64_t r = 0; r < rows; ++r) {
    T* to = statistics + r * 3;
    if (weights[r] == T(0)) {
      to[0] = T(0), to[1] = T(1), to[2] = T(0);
      continue;
    }
    const T* row = logits + r * columns;
    const T largest = Largest(columns, row);
    const int64_t label = labels[r] - first;
    to[0] = largest;
    to[1] = Sum<T>(columns, [row, largest](int64_t i) { return Exp(row[i] - largest); });
    to[2] = label >= 0 && label < columns ? row[label] : T(0);
  }
}

template <typename T>
PHALANX_CLONES T CrossEntropy(int64_t rows, int64_t columns, int64_t width, const T* gathered,
                              const int64_t* labels, const T* weights, int64_t first, T* logits) {
  double total = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const T weight = weights[r];
    T* row = logits == nullptr ? nullptr : logits + r * columns;
    if (weight == T(0)) {
      if (row != nullptr) std::fill_n(row, columns, T(0));
      continue;
    }
    T largest = gathered[r * 3];
    for (int64_t w = 1; w < width; ++w) largest = std::max(largest, gathered[(w * rows + r) * 3]);
    T sum = 0, label_logit = 0;
    for (int64_t w = 0; w < width; ++w) {
      const T* statistics = gathered + (w * rows + r) * 3;
      sum += statistics[1] * std::exp(statistics[0] - largest);
      label_logit += statistics[2];
    }
    total += static_cast<double>(weight * (largest + std::log(sum) - label_logit));
    if (row == nullptr) continue;
    const T scale = weight / sum;
    for (int64_t i = 0; i < columns; ++i) row[i] = Exp(row[i] - largest) * scale;
    const int64_t label = labels[r] - first;
    if (label >= 0 && label < columns) row[label] -= weight;
  }
  return static_cast<T>(total);
}

#define PHALANX_INSTANTIATE(T)                                                                    \
  template void RmsNorm(int64_t, int64_t, const T*, T*, const T*, T, T*, T*);                     \
  template void RmsNormBackward(int64_t, int64_t, const T*, const T*, const T*, const T*,         \
                                const T*, T*, T*);                                                \
  template void Rotate(int64_t, int64_t, int64_t, int64_t, int64_t, const T*, const T*, T, T*);   \
  template void SwiGlu(int64_t, int64_t, int64_t, const T*, T*);                                  \
  template void SwiGluBackward(int64_t, int64_t, int64_t, const T*, const T*, T*);                \
  template void QuickGelu(int64_t, const T*, T*);                                                 \
  template void QuickGeluBackward(int64_t, const T*, const T*, T*);                               \
  template void TakeRows(int64_t, int64_t, const T*, const int64_t*, const bool*, T*);            \
  template void AddRows(int64_t, int64_t, const int64_t*, const bool*, const T*, T*);             \
  template void EmbedRows(int64_t, int64_t, const T*, int64_t, int64_t, const T*, const int64_t*, \
                          const int64_t*, T*);                                                    \
  template void AddTokenRows(int64_t, int64_t, const int32_t*, const int64_t*, int64_t, int64_t,  \
                             const T*, T*);                                                       \
  template void SoftmaxStatistics(int64_t, int64_t, const T*, const int64_t*, const T*, int64_t,  \
                                  T*);                                                            \
  template T CrossEntropy(int64_t, int64_t, int64_t, const T*, const int64_t*, const T*, int64_t, \
                          T*);

PHALANX_INSTANTIATE(float)
PHALANX_INSTANTIATE(double)
#undef PHALANX_INSTANTIATE

}  // namespace phalanx::model::cpu
