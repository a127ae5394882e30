// tests/unit/worker/train/plan_of.h: plans of specs that have one.
#pragma once

#include "core/plan/plan.h"

namespace phalanx::train {

// Epoch 1 on one node of as many devices as it needs.
inline plan::Plan PlanOf(const job::JobSpec& spec) {
  return *plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1});
}

}  // namespace phalanx::train
