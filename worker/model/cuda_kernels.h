// worker/model/cuda_kernels.h: the kernels behind kernels.h for bf16 and fp32 on CUDA.
//
// Pointers are to device memory, tensors row-major and contiguous unless a stride is given, all
// "void" ones of `type`. Everything is enqueued on `stream`; errors show up at the next CUDA call.
// Arithmetic is fp32, rounded once to `type`. Sums run in an order that follows from the shape
// alone, so equal inputs give equal bits. Accesses are of 16 bytes where sizes and pointers allow,
// else of an element. Zero rows are none. What is written last may have its largest magnitude found
// on the way: `largest`, where it is not null, becomes max(largest, the magnitudes as rounded to
// `type`), as the bits of an fp32; a NaN is larger than infinity.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace phalanx::model::cuda {

using Stream = CUstream_st*;
enum class Type : uint8_t { kBf16, kFp32 };

// y = (x - mean) * rstd * weight + bias; without `mean` (RMSNorm), y = x * rstd * weight. With
// `branch`, it becomes x + branch + branch_bias first, whose norm is taken. Null: `branch`,
// `branch_bias`; `mean` and `bias` (RMSNorm).
// At most NormFeaturesMax of `features`.
int64_t NormFeaturesMax(Type type, int64_t features);
struct NormArguments {
  int64_t rows, features;
  const void* x;
  void* branch;
  const void* branch_bias;
  const void* weight;
  const void* bias;
  float epsilon;
  void* y;
  float* mean;
  float* rstd;
  uint32_t* largest;  // of y
};
void Norm(Type type, const NormArguments& arguments, Stream stream);

// `residual` may be null. `sums` [kinds, features] becomes the gradients of weight (one kind) and
// bias (two: LayerNorm) and, of four kinds, the column sums of `residual` (null: 0) and of
// input_gradient, of NormSumsMax `features` at most. `partials`: NormPartials(rows) * kinds *
// features.
struct NormBackwardArguments {
  int64_t rows, features;
  const void* output_gradient;
  const void* x;
  const float* mean;
  const float* rstd;
  const void* weight;
  const void* residual;
  void* input_gradient;
  int kinds;
  float* partials;
  float* sums;
  uint32_t* largest;  // of input_gradient
};
int64_t NormSumsMax(Type type, int64_t features);
int64_t NormPartials(int64_t rows);
void NormBackward(Type type, const NormBackwardArguments& arguments, Stream stream);

// Turns `heads` heads of 2 * half elements, of `rows` rows each; row r is at position r % length.
// `from` and `to` may be the same; strides are in elements.
struct RotateArguments {
  int64_t rows, length, heads, half;
  const void* from;
  int64_t from_row, from_head;
  void* to;
  int64_t to_row, to_head;
  const float* cos;
  const float* sin;
  bool inverse;
};
void Rotate(Type type, const RotateArguments& arguments, Stream stream);

// to [rows, heads of all parts, 2 * half]: the heads of the parts one after another, row r of which
// is row r % length of r / length. The first two parts turn back, unless `cos` is null. Strides are
// in elements; a head's elements stand side by side.
struct HeadsPart {
  const void* from;
  int64_t heads, of_batch, of_row, of_head;
};
struct PackHeadsArguments {
  int64_t rows, length, half;
  HeadsPart parts[3];
  void* to;
  const float* cos;
  const float* sin;
  uint32_t* largest;  // of `to`
};
void PackHeads(Type type, const PackHeadsArguments& arguments, Stream stream);

// `count` pairs of blocks: those of gate, then those of up.
void SwiGlu(Type type, int64_t count, int64_t block, const void* gate_up, void* y,
            uint32_t* largest, Stream stream);
// What SwiGlu gives, from a pass of its backward; without `y` nobody asks.
struct Activated {
  void* y;
  uint32_t* largest;
};
void SwiGluBackward(Type type, int64_t count, int64_t block, const void* output_gradient,
                    const void* gate_up, void* gradient, uint32_t* largest,
                    const Activated& activated, Stream stream);

enum class Gelu : uint8_t { kQuick, kErf, kTanh };
void GeluForward(Type type, Gelu gelu, int64_t count, const void* x, void* y, Stream stream);
// `sums` [features]: the column sums of the gradient; null with `partials` where nobody asks.
// `partials`: ColumnPartials(rows) * features.
int64_t ColumnPartials(int64_t rows);
void GeluBackward(Type type, Gelu gelu, int64_t rows, int64_t features, const void* output_gradient,
                  const void* x, void* gradient, float* partials, float* sums, Stream stream);
// sums[column] += the sum of values [rows, features] over the rows, which stand `stride` apart.
void AddColumnSums(Type type, int64_t rows, int64_t features, int64_t stride, const void* values,
                   float* partials, float* sums, Stream stream);
// branch += bias + residual.
void AddBiasAndResidual(Type type, int64_t rows, int64_t features, const void* bias,
                        const void* residual, void* branch, Stream stream);

// `keep` may be null.
void TakeRows(Type type, int64_t rows, int64_t features, const void* table, const int64_t* index,
              const bool* keep, void* y, Stream stream);
// keys[i]: index[i], or kNoRow where it is not kept. AddSortedRows wants them in ascending order,
// equal ones in the order of their rows: order[i] is the row that keys[i] was of.
inline constexpr int32_t kNoRow = 0x7fffffff;
void MakeKeys(int64_t rows, const int64_t* index, const bool* keep, int32_t* keys, Stream stream);
// sum[keys[i] - first] += values[order[i]] for keys in [first, end), `end` kNoRow at most.
// `partials`: 2 * AddRowsChunks(rows) * features.
int64_t AddRowsChunks(int64_t rows);
struct SortedRowsArguments {
  int64_t rows, features;
  const int32_t* keys;
  const int64_t* order;
  int32_t first, end;
  const void* values = nullptr;
  float* partials = nullptr;
  void* sum = nullptr;  // of the sum's type
};
void AddSortedRows(Type sum_type, Type type, const SortedRowsArguments& arguments, Stream stream);
// y[r]: table[source[r] - first], where that is one of its `count` rows; for source[r] = -1 - i
// items[i] + items[next[i]] + ..., as long as next is not below 0; else zeros. Null: `items`, then
// zeros; `next`, then each stands alone.
struct EmbedRowsArguments {
  int64_t rows, features;
  const void* table;
  int64_t first, count;
  const void* items;
  const int64_t* source;
  const int64_t* next;
  void* y;
};
void EmbedRows(Type type, const EmbedRowsArguments& arguments, Stream stream);

// Cross-entropy as in kernels.h; `losses` [rows] is scratch, `loss_sum` a scalar.
struct CrossEntropyArguments {
  int64_t rows, columns;
  void* logits;
  const int64_t* labels;
  const float* weights;
  int64_t first;
  float* losses;
  float* loss_sum;
  bool gradient;
};
void SoftmaxStatistics(Type type, const CrossEntropyArguments& arguments, float* statistics,
                       Stream stream);
// `scales`: 2 * rows, scratch.
void CrossEntropy(Type type, const CrossEntropyArguments& arguments, int64_t width,
                  const float* gathered, float* scales, Stream stream);
// Both where all columns are here; `scratch`: 5 * rows. Logits of at most 65,536 accesses are read
// once.
void WholeCrossEntropy(Type type, const CrossEntropyArguments& arguments, float* scratch,
                       Stream stream);

}  // namespace phalanx::model::cuda
