#include "core/schedule/preview.h"

#include <utility>

#include "core/base/status.h"
#include "core/schedule/admission.h"
#include "core/schedule/cost_model.h"

namespace phalanx::schedule {

absl::StatusOr<Preview> PreviewJob(const job::JobSpec& spec, const plan::Cluster& cluster,
                                   const plan::MemoryLimits& limits, absl::Span<const Rank> lost) {
  Preview preview;
  ASSIGN_OR_RETURN(preview.plan, AdmitJob(spec, cluster, limits, Epoch{1}));
  ASSIGN_OR_RETURN(preview.simulation, SimulatePlan(preview.plan, CostFromShapes(preview.plan)));
  if (lost.empty()) return preview;
  ASSIGN_OR_RETURN(plan::Plan plan, AdmitWithout(preview.plan, lost, limits));
  ASSIGN_OR_RETURN(Simulation simulation, SimulatePlan(plan, CostFromShapes(plan)));
  preview.loss = {.moves = plan::MovesBetween(preview.plan, plan),
                  .step_ratio = simulation.step / preview.simulation.step};
  preview.plan = std::move(plan);
  preview.simulation = std::move(simulation);
  return preview;
}

}  // namespace phalanx::schedule
