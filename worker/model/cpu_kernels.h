// worker/model/cpu_kernels.h: the loops behind kernels.h for fp32 and fp64 on CPU.
//
// Plain pointers, row-major and contiguous unless a stride is given; outputs do not overlap inputs
// unless a comment says so. Each loop is compiled for several instruction sets, of which one is
// picked at start-up. Single-threaded, as a CPU rank is. T is float or double.
#pragma once

#include <cstdint>

namespace phalanx::model::cpu {

// `branch` may be nullptr; else it becomes x + branch and its norm is taken.
template <typename T>
void RmsNorm(int64_t rows, int64_t features, const T* x, T* branch, const T* weight, T epsilon,
             T* y, T* rstd);
// `residual` may be nullptr; weight_gradient is overwritten.
template <typename T>
void RmsNormBackward(int64_t rows, int64_t features, const T* output_gradient, const T* x,
                     const T* rstd, const T* weight, const T* residual, T* input_gradient,
                     T* weight_gradient);
// In place on x [rows, stride]; row r stands at position r % length; sign -1 turns back.
template <typename T>
void Rotate(int64_t rows, int64_t length, int64_t stride, int64_t heads, int64_t half, const T* cos,
            const T* sin, T sign, T* x);
template <typename T>
void SwiGlu(int64_t rows, int64_t blocks, int64_t block, const T* gate_up, T* y);
template <typename T>
void SwiGluBackward(int64_t rows, int64_t blocks, int64_t block, const T* output_gradient,
                    const T* gate_up, T* gradient);
template <typename T>
void QuickGelu(int64_t count, const T* x, T* y);
template <typename T>
void QuickGeluBackward(int64_t count, const T* output_gradient, const T* x, T* gradient);
// `keep` may be nullptr.
template <typename T>
void TakeRows(int64_t rows, int64_t features, const T* table, const int64_t* index,
              const bool* keep, T* y);
template <typename T>
void AddRows(int64_t rows, int64_t features, const int64_t* index, const bool* keep,
             const T* values, T* sum);
// y[r]: table[source[r] - first], where that is one of its `count` rows; for source[r] = -1 - i
// items[i] + items[next[i]] + ..., as long as next is not below 0; else zeros. nullptr: `items`,
// then zeros; `next`, then each stands alone.
template <typename T>
void EmbedRows(int64_t rows, int64_t features, const T* table, int64_t first, int64_t count,
               const T* items, const int64_t* source, const int64_t* next, T* y);
// sum[tokens[i] - first] += values[order[i]], where that is one of sum's `count` rows.
template <typename T>
void AddTokenRows(int64_t rows, int64_t features, const int32_t* tokens, const int64_t* order,
                  int64_t first, int64_t count, const T* values, T* sum);
// Statistics [rows, 3] as in kernels.h; rows of weight 0 get harmless ones.
template <typename T>
void SoftmaxStatistics(int64_t rows, int64_t columns, const T* logits, const int64_t* labels,
                       const T* weights, int64_t first, T* statistics);
// `gathered` [width, rows, 3]. `logits` become the gradient, in place, unless nullptr. Returns the
// weighted sum of losses.
template <typename T>
T CrossEntropy(int64_t rows, int64_t columns, int64_t width, const T* gathered,
               const int64_t* labels, const T* weights, int64_t first, T* logits);

}  // namespace phalanx::model::cpu
