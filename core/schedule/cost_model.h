// core/schedule/cost_model.h: how long the passes of a plan take. Pure.
#pragma once

#include <vector>

#include "core/plan/plan.h"
#include "core/schedule/program.h"

namespace phalanx::schedule {

// Seconds on one rank of the part.
struct PartCost {
  double forward = 1, backward_input = 1, backward_weight = 1;  // of one microbatch
  double reduce = 0, update = 0, gather = 0;                    // of the step
};
// Of one instruction; 0 for those that are neither a pass nor an update of the parameters.
double SecondsOf(const PartCost& cost, Op op);

struct CostModel {
  std::vector<std::vector<PartCost>> parts;  // [module][pp * chunks + chunk]
  double message = 0;                        // seconds a message
};
// From shapes: FLOPs over a nominal rate, bytes over nominal rates of links and memory; what
// matters is the ratio between parts. Every sample is taken to be a full context and to have one
// item. If the shape of a module is not known, a part costs as much as it has layers (1 if those
// are not known either), and its backward twice its forward: divided in halves under the
// zero-bubble schedules, undivided under the others.
CostModel CostFromShapes(const plan::Plan& plan);

}  // namespace phalanx::schedule
