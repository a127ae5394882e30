// core/plan/reduction.h: what a rank sums over the replicas of a pipeline part each step, with
// whom, and who keeps which result.
//
// The data that kReduce and kGather of a program (core/schedule/program.h) act on. Every bucket is
// cut into shares; a share has one *home*, which alone holds the complete sum, keeps optimizer
// state for what it leads (copies.h) and gives the updated parameters to the others. Copies inside
// the replica are folded before and spread after, so that each element has one place where it is
// summed.
//
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/copies.h"
#include "core/plan/parameters.h"
#include "core/plan/plan.h"
#include "core/plan/units.h"

namespace phalanx::plan {

// Elements of the part's flat buffers.
struct BucketShare {
  int32_t home = 0;  // position in Reduction::group
  UnitRange elements;
  friend bool operator==(const BucketShare&, const BucketShare&) = default;
};

struct ReducedBucket {
  UnitRange elements;
  std::vector<BucketShare> shares;  // in order, without gaps; equally long, home r has the r-th
  friend bool operator==(const ReducedBucket&, const ReducedBucket&) = default;
};

struct Reduction {
  PartId part;
  RankList group;                      // Plan::DataGroupOf, in the order of its communicator
  int32_t self = 0;                    // the place's position in it
  std::vector<ReducedBucket> buckets;  // those that train, in storage order
  std::vector<Copy> copies;  // of its tensor group (CopiesInSlot), with an end at the place
};

// Of the part's buckets that train. Replicas of one width only: where widths differ shares are not
// parts of equal length.
std::vector<ReducedBucket> ReducedBuckets(const StageParameters& parameters);

// `parameters`: ParametersOf the same place and chunk.
Reduction ReductionOf(const Plan& plan, const Place& place, int32_t chunk,
                      const StageParameters& parameters);

}  // namespace phalanx::plan
