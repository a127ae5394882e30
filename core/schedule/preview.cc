#include "core/schedule/preview.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/violation.h"
#include "core/schedule/admission.h"
#include "core/schedule/cost_model.h"
#include "core/schedule/search_setting.h"

namespace phalanx::schedule {

absl::StatusOr<Preview> PreviewJob(const job::JobSpec& spec, const plan::Cluster& cluster,
                                   const plan::MemoryLimits& limits, absl::Span<const Rank> lost,
                                   const BytesBeside& beside) {
  Preview preview;
  ASSIGN_OR_RETURN(preview.plan, AdmitJob(spec, cluster, limits, Epoch{1}, beside));
  ASSIGN_OR_RETURN(preview.simulation, SimulatePlan(preview.plan, CostFromShapes(preview.plan)));
  if (lost.empty()) return preview;
  ASSIGN_OR_RETURN(plan::Plan plan, AdmitWithout(preview.plan, lost, limits, beside));
  ASSIGN_OR_RETURN(Simulation simulation, SimulatePlan(plan, CostFromShapes(plan)));
  preview.loss = {.moves = plan::MovesBetween(preview.plan, plan),
                  .step_ratio = simulation.step / preview.simulation.step};
  preview.plan = std::move(plan);
  preview.simulation = std::move(simulation);
  return preview;
}

absl::StatusOr<Preview> PreviewLayout(const job::JobSpec& spec, plan::Layout layout) {
  Preview preview;
  ASSIGN_OR_RETURN(preview.plan, plan::Expand(spec, std::move(layout)));
  ASSIGN_OR_RETURN(preview.simulation, SimulatePlan(preview.plan, CostFromShapes(preview.plan)));
  return preview;
}

absl::StatusOr<Prediction> PredictStep(const plan::Plan& plan, const DeviceProfile& profile,
                                       int32_t items, int64_t device_memory) {
  std::vector<Violation> unknown;
  for (size_t i = 0; i < plan.spec.modules.size(); ++i) {
    if (job::TraitsOf(plan.spec.modules[i].architecture).known()) continue;
    unknown.push_back({.field = absl::StrCat("spec.modules[", i, "].architecture"),
                       .rule = "is required to predict a step: what it costs follows from it"});
  }
  RETURN_IF_ERROR(ViolationsStatus(unknown));
  ASSIGN_OR_RETURN(const Proposal measured, Measure(plan, profile, items));
  const plan::SampleShape samples = {.items = items,
                                     .labelled_share = plan.spec.batch.labelled_share};
  return Prediction{.device_kind = profile.name,
                    .items = items,
                    .step = measured.step,
                    .bubble = measured.bubble,
                    .clock_mhz = measured.clock_mhz,
                    .memory = MostMemory(plan, profile, samples, device_memory),
                    .parts = measured.parts};
}

}  // namespace phalanx::schedule
