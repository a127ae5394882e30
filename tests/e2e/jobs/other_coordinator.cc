// phalanx-coordinator as another version of it would be: it reads the same store and keeps what was
// decided, but whatever it decides itself it decides differently.
#include <cstdint>
#include <numeric>

#include "coordinator/program/program.h"
#include "coordinator/runtime/planning.h"
#include "core/base/status.h"

namespace phalanx::coordinator {
namespace {

absl::StatusOr<PlanSummary> PlanOtherwise(const ComputePlan& order) {
  if (order.layout.has_value()) return PlanJobOf(order);
  ASSIGN_OR_RETURN(PlanSummary plan, PlanJobOf(order));
  const auto chunks = static_cast<size_t>(plan.layout.schedule.chunks);
  plan.layout.schedule.name = job::ScheduleName::kZeroBubbleH1;
  plan.layout.schedule.chunks = 1;
  for (plan::ModuleLayout& module : plan.layout.modules) {
    // The first stage gets all layers but one for each of the others.
    if (module.layers.size() < 2) continue;
    const int32_t layers = std::accumulate(module.layers.begin(), module.layers.end(), 0);
    const size_t stages = module.layers.size() / chunks;
    module.layers.assign(stages, 1);
    module.layers.front() = layers - static_cast<int32_t>(stages) + 1;
  }
  return PlanJobOf({.request = order.request,
                    .placement = order.placement,
                    .limits = order.limits,
                    .epoch = order.epoch,
                    .layout = std::move(plan.layout)});
}

}  // namespace
}  // namespace phalanx::coordinator

int main(int argc, char** argv) {
  return phalanx::coordinator::RunCoordinator(argc, argv, phalanx::coordinator::PlanOtherwise);
}
