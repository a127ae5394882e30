#include "core/plan/reduction.h"

#include <algorithm>
#include <utility>

namespace phalanx::plan {

std::vector<ReducedBucket> ReducedBuckets(const StageParameters& parameters) {
  std::vector<ReducedBucket> buckets;
  for (const Bucket& bucket : parameters.buckets) {
    if (bucket.offset >= parameters.trained_extent) break;
    ReducedBucket reduced{.elements = {bucket.offset, bucket.elements}};
    const int64_t part = bucket.elements / parameters.replicas;
    for (int32_t home = 0; home < parameters.replicas; ++home) {
      reduced.shares.push_back({.home = home, .elements = {bucket.offset + home * part, part}});
    }
    buckets.push_back(std::move(reduced));
  }
  return buckets;
}

Reduction ReductionOf(const Plan& plan, const Place& place, int32_t chunk,
                      const StageParameters& parameters) {
  Reduction reduction{.part = {place.module, place.pp, chunk},
                      .group = plan.DataGroupOf(place),
                      .buckets = ReducedBuckets(parameters)};
  const auto self = std::find(reduction.group.begin(), reduction.group.end(), plan.RankOf(place));
  reduction.self = static_cast<int32_t>(self - reduction.group.begin());
  if (reduction.buckets.empty()) return reduction;
  for (Copy& copy : CopiesInSlot(plan, place, chunk)) {
    if (copy.lead.tp != place.tp && copy.follower.tp != place.tp) continue;
    reduction.copies.push_back(std::move(copy));
  }
  return reduction;
}

}  // namespace phalanx::plan
