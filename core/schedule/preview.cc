#include "core/schedule/preview.h"

#include <utility>

#include "core/base/status.h"
#include "core/plan/loss.h"
#include "core/plan/memory_fit.h"
#include "core/schedule/admission.h"
#include "core/schedule/cost_model.h"

namespace phalanx::schedule {

absl::StatusOr<Preview> PreviewJob(const job::JobSpec& spec, const plan::Cluster& cluster,
                                   absl::Span<const int64_t> device_memory,
                                   absl::Span<const Rank> lost) {
  Preview preview;
  ASSIGN_OR_RETURN(preview.plan, AdmitJob(spec, cluster, device_memory, Epoch{1}));
  ASSIGN_OR_RETURN(preview.simulation, SimulatePlan(preview.plan, CostFromShapes(preview.plan)));
  if (lost.empty()) return preview;
  ASSIGN_OR_RETURN(plan::Plan plan, plan::PlanWithout(preview.plan, lost));
  RETURN_IF_ERROR(plan::CheckMemory(plan, device_memory));
  ASSIGN_OR_RETURN(Simulation simulation, SimulatePlan(plan, CostFromShapes(plan)));
  preview.loss = {.moves = plan::MovesBetween(preview.plan, plan),
                  .step_ratio = simulation.step / preview.simulation.step};
  preview.plan = std::move(plan);
  preview.simulation = std::move(simulation);
  return preview;
}

}  // namespace phalanx::schedule
