// core/schedule/bound.h: the time that no schedule of a pipeline can beat.
//
// For a device and any run of consecutive parts that it holds,
//   T >= h + t + max(work, m * tau / limit of each part)
// with h the least forward time upstream of its first operation, t the least work that must follow
// its last one, tau the least life of an activation and limit how many a part may keep alive. T is
// the maximum over devices, runs, and the longest path of one microbatch. Messages take no time.
//
// Schedules that put kBackwardWeight right behind kBackwardInput (1F1B) have t = the backward chain
// upstream, of which the last weight pass is hidden. Those that may delay it are bounded twice:
// with weight passes in the work and t = 0, and without them and t = the chain upstream plus the
// last weight pass. Pure.
#pragma once

#include <vector>

#include "core/schedule/cost_model.h"
#include "core/schedule/pipeline.h"

namespace phalanx::schedule {

struct BoundOptions {
  bool weights_delayed = false;  // kBackwardWeight may stand anywhere behind its kBackwardInput
  // Of each part; empty: no limit.
  std::vector<int32_t> live_activations_max;
};

// Seconds. `seconds` of each part.
double StepLowerBound(const Pipeline& pipeline, const std::vector<PartCost>& seconds,
                      const BoundOptions& options);

}  // namespace phalanx::schedule
