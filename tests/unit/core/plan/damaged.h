// tests/unit/core/plan/damaged.h: plans whose replica tables have holes and unequal widths.
#pragma once

#include <cstdint>
#include <utility>

#include "core/base/prng.h"
#include "tests/support/layouts.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {

// Calls `see` with 200 plans of `spec`, each of whose modules has lost other ranks.
template <typename See>
void ForEachDamaged(const job::JobSpec& spec, See see) {
  const Plan healthy = MustPlan(spec);
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    Prng prng(seed);
    Layout layout = healthy.layout;
    for (const ModulePlan& module : healthy.modules) {
      support::Damage(prng, healthy, module.index, layout);
    }
    const absl::StatusOr<Plan> plan = Expand(spec, std::move(layout));
    ASSERT_TRUE(plan.ok()) << plan.status();
    see(*plan);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Calls `see` with the place of every rank that has work, module by module.
template <typename See>
void ForEachPlace(const Plan& plan, See see) {
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    for (const Place& place : plan.PlacesOf(Rank{rank})) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << " in module " << place.module);
      see(Rank{rank}, place);
    }
  }
}

}  // namespace phalanx::plan
