#include "core/plan/units.h"

#include <algorithm>

namespace phalanx::plan {
namespace {

// Query heads that share one KV head.
int64_t QueryHeadsPerKvHead(const job::Architecture& architecture) {
  const int64_t kv_heads = KvHeads(architecture);
  return kv_heads == 0 ? 1 : std::max<int64_t>(1, architecture.heads / kv_heads);
}

}  // namespace

UnitCounts CountUnits(const job::Architecture& architecture) {
  return {.query_heads = architecture.heads,
          .kv_heads = KvHeads(architecture),
          .mlp_blocks = BlockCount(architecture.mlp_size, architecture.block),
          .vocabulary_blocks = BlockCount(architecture.vocabulary, architecture.block)};
}

TensorUnits TensorUnitsOf(const job::Architecture& architecture, int32_t width, int32_t index) {
  const UnitCounts units = CountUnits(architecture);
  TensorUnits held{.query_heads = EvenSplit(units.query_heads, width, index),
                   .mlp_blocks = EvenSplit(units.mlp_blocks, width, index),
                   .vocabulary_blocks = EvenSplit(units.vocabulary_blocks, width, index)};
  if (held.query_heads.count > 0) {
    const int64_t sharing = QueryHeadsPerKvHead(architecture);
    const int64_t first = held.query_heads.first / sharing;
    const int64_t end = (held.query_heads.end() - 1) / sharing + 1;
    held.kv_heads = {first, end - first};
  }
  return held;
}

UnitRange HoldersOfKvHead(const job::Architecture& architecture, int32_t width, int64_t head) {
  const int64_t sharing = QueryHeadsPerKvHead(architecture);
  const int64_t heads = architecture.heads;
  const int64_t first = SplitIndexOf(heads, width, head * sharing);
  const int64_t last = SplitIndexOf(heads, width, std::min(heads, (head + 1) * sharing) - 1);
  return {first, last - first + 1};
}

}  // namespace phalanx::plan
