// core/plan/units.h: the smallest pieces of a tensor-parallel parameter, and who holds them.
//
// The unit of attention is a query head; a KV head is a shared unit, held by every tensor rank that
// has one of its query heads. The unit of an MLP is a block of `block` columns (gate, up and the
// matching rows of down), the unit of a vocabulary a block of rows. Only the last block of an MLP
// or a vocabulary may be short; it is padded in memory and the padding is never read as a value.
// Rules: a replica of width R gives each of its R ranks a contiguous run of units; the first
// `units mod R` ranks hold one more. Pure.
#pragma once

#include <cstdint>

#include "core/job/job_spec.h"

namespace phalanx::plan {

// [first, first + count).
struct UnitRange {
  int64_t first = 0, count = 0;
  constexpr int64_t end() const { return first + count; }
  friend bool operator==(const UnitRange&, const UnitRange&) = default;
};

// Part `index` of `count` things over `parts`.
constexpr UnitRange EvenSplit(int64_t count, int64_t parts, int64_t index) {
  const int64_t base = count / parts, extra = count % parts;
  return {index * base + (index < extra ? index : extra), base + (index < extra ? 1 : 0)};
}

// The part that has thing `item`: the inverse of EvenSplit.
constexpr int64_t SplitIndexOf(int64_t count, int64_t parts, int64_t item) {
  const int64_t base = count / parts, extra = count % parts;
  if (item < extra * (base + 1)) return item / (base + 1);
  return extra + (item - extra * (base + 1)) / base;
}

// Units of `block` that cover `size`, the last one perhaps in part.
constexpr int64_t BlockCount(int64_t size, int64_t block) {
  return block <= 0 ? 0 : (size + block - 1) / block;
}

// KV heads, which families without grouped queries leave out: one a query head.
constexpr int64_t KvHeads(const job::Architecture& architecture) {
  return architecture.kv_heads > 0 ? architecture.kv_heads : architecture.heads;
}
constexpr int64_t HeadSize(const job::Architecture& architecture) {
  if (architecture.head_size > 0) return architecture.head_size;
  return architecture.heads > 0 ? architecture.hidden_size / architecture.heads : 0;
}

struct UnitCounts {
  int64_t query_heads = 0, kv_heads = 0, mlp_blocks = 0, vocabulary_blocks = 0;
};
UnitCounts CountUnits(const job::Architecture& architecture);

// What one tensor rank of `width` holds.
struct TensorUnits {
  UnitRange query_heads, kv_heads, mlp_blocks, vocabulary_blocks;
};
TensorUnits TensorUnitsOf(const job::Architecture& architecture, int32_t width, int32_t index);

// Tensor ranks [first, end) of `width` that hold KV head `head`; the first is its primary.
UnitRange HoldersOfKvHead(const job::Architecture& architecture, int32_t width, int64_t head);

}  // namespace phalanx::plan
