// core/plan/bucket_order.h: when passes of a part are through with a bucket.
//
// Buckets are stored as a backward pass comes to them, so the sum of one may begin inside of it,
// behind the layer that its last matrix belongs to, and a forward pass comes to them the other way
// round. Ranks go by this (worker/train/part_reduction.h), and so do predictions of steps
// (core/schedule/cost_model.h).
//
// Pure.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "core/plan/parameters.h"

namespace phalanx::plan {

// Of gradients that are not known to be complete behind any layer.
inline constexpr int32_t kBehindPass = std::numeric_limits<int32_t>::max();

// Of the buckets that train, in storage order.
struct BucketOrder {
  // Behind how many of the part's layers, from the last one back, at least 1, the gradients of the
  // bucket and of those before it are complete; kBehindPass: behind the whole backward pass.
  std::vector<int32_t> complete_behind;
  // Before which of the part's layers, counted from its first one, a forward pass needs the weights
  // of the bucket, or those of a bucket in front of it, which it comes to later.
  std::vector<int32_t> needed_before;
  int32_t layers = 0;  // of the part
};
BucketOrder BucketOrderOf(const StageParameters& parameters);

}  // namespace phalanx::plan
