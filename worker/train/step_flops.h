// worker/train/step_flops.h: how much a rank has to compute in a step, as the shapes of its samples
// say: floating-point operations of its passes, after core/plan/cost.h.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "core/plan/plan.h"
#include "worker/train/batches.h"

namespace phalanx::train {

// Of a rank that stands at `places`: of all its parts and microbatches, forward and executed
// backward, padding included, no recomputation. Less than a microsecond a part and microbatch.
double FlopsOfStep(const plan::Plan& plan, const std::vector<plan::Place>& places,
                   const Batches& batches, absl::Span<const Microbatch> microbatches);

}  // namespace phalanx::train
