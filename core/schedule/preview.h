// core/schedule/preview.h: what the plan of a job comes to, before anything runs. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/plan/memory_fit.h"
#include "core/plan/moves.h"
#include "core/plan/plan.h"
#include "core/schedule/simulator.h"

namespace phalanx::schedule {

struct Preview {
  plan::Plan plan;
  Simulation simulation;  // of the plan, under the costs from shapes
  // Of a plan without some places, against the healthy one.
  struct Loss {
    plan::Moves moves;
    double step_ratio = 1;  // of the simulated steps
  };
  std::optional<Loss> loss;
};

// Plans a job as AdmitJob does, or what is left of it without the places `lost`
// (AdmitWithout). Errors: those of both; InvalidArgument where what is left does not fit.
absl::StatusOr<Preview> PreviewJob(const job::JobSpec& spec, const plan::Cluster& cluster,
                                   const plan::MemoryLimits& limits, absl::Span<const Rank> lost);

}  // namespace phalanx::schedule
