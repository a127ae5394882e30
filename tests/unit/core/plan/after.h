// tests/unit/core/plan/after.h: plans of the epoch after a change of one that runs.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/plan/loss.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {

// Where there is none the test fails and the plan is empty.
inline Plan MustPlanAfter(const Plan& running, const Change& change,
                          const MemoryLimits& limits = {}) {
  const absl::StatusOr<NextLayout> next = LayoutAfter(running, change, limits);
  EXPECT_TRUE(next.ok()) << next.status();
  if (!next.ok()) return {};
  absl::StatusOr<Plan> plan = Expand(running.spec, next->layout);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : Plan();
}

// After the loss of ranks in whose place nothing spare comes.
inline Plan AfterLoss(const Plan& plan, const RankList& lost) {
  return MustPlanAfter(plan, {.lost = lost, .spares = false});
}
inline Plan Without(const Plan& plan, const std::vector<int32_t>& lost) {
  return AfterLoss(plan, Ranks(lost));
}

}  // namespace phalanx::plan
