#include "core/plan/bucket_order.h"

#include <algorithm>
#include <utility>

namespace phalanx::plan {
namespace {

// Whether its gradient is complete before that of any layer's weights (parameters.h: what is behind
// the layers is stored before them).
bool IsBehindLayers(MatrixRole role) {
  switch (role) {
    case MatrixRole::kHead:
    case MatrixRole::kPredict:
    case MatrixRole::kFinalNorm:
    case MatrixRole::kFinalNormBias:
    case MatrixRole::kProjectorUp:
    case MatrixRole::kProjectorUpBias:
    case MatrixRole::kProjectorDown:
    case MatrixRole::kProjectorDownBias:
      return true;
    default:
      return false;
  }
}

// The part's layers: [first, end).
std::pair<int32_t, int32_t> LayersOf(const StageParameters& parameters) {
  int32_t first = std::numeric_limits<int32_t>::max(), end = 0;
  for (const LocalMatrix& matrix : parameters.matrices) {
    if (matrix.layer >= 0) first = std::min(first, matrix.layer);
    end = std::max(end, matrix.layer + 1);
  }
  return {std::min(first, end), end};
}

}  // namespace

BucketOrder BucketOrderOf(const StageParameters& parameters) {
  const auto [first, end] = LayersOf(parameters);
  BucketOrder order;
  order.layers = end - first;
  int32_t needed = std::max(0, order.layers - 1);
  for (const Bucket& bucket : parameters.buckets) {
    if (bucket.offset >= parameters.trained_extent) break;
    int32_t behind = order.complete_behind.empty() ? 1 : order.complete_behind.back();
    for (int32_t m = bucket.first_matrix; m < bucket.first_matrix + bucket.matrices; ++m) {
      const LocalMatrix& matrix = parameters.matrices[static_cast<size_t>(m)];
      if (matrix.layer >= 0) {
        behind = std::max(behind, end - matrix.layer);
      } else if (!IsBehindLayers(matrix.role)) {
        behind = kBehindPass;
      }
    }
    order.complete_behind.push_back(behind);
    needed = std::clamp(order.layers - behind, 0, needed);
    order.needed_before.push_back(needed);
  }
  return order;
}

}  // namespace phalanx::plan
