#include "core/schedule/cost_model.h"

#include <algorithm>

#include "core/plan/cost.h"

namespace phalanx::schedule {
namespace {

constexpr double kNominalFlops = 100e12;  // a second

// Token rows of one sample: one item, or a full context.
double RowsOfSample(const job::Architecture& architecture) {
  const int64_t per_item = job::RowsOfItem(architecture);
  return static_cast<double>(per_item > 0 ? per_item : architecture.context);
}

// Schedules that move weight passes need to know how long they are.
bool DividesBackward(const job::JobSpec& spec) {
  return spec.schedule.name == job::ScheduleName::kZeroBubbleH1 ||
         spec.schedule.name == job::ScheduleName::kZeroBubbleV;
}

// Without shapes a part costs what its layers are, or 1 where their number is not known either; the
// backward takes two forwards.
CostModel CostFromLayers(const plan::Plan& plan) {
  CostModel model;
  bool counted = true;
  for (size_t m = 0; m < plan.modules.size(); ++m) {
    counted &= plan.module_spec(static_cast<int32_t>(m)).architecture.layers > 0;
  }
  for (const plan::ModulePlan& module : plan.modules) {
    std::vector<PartCost>& parts = model.parts.emplace_back();
    for (const plan::LayerRange& layers : module.stage_layers) {
      const double forward = counted ? std::max(layers.count, 1) : 1;
      const double weight = DividesBackward(plan.spec) ? forward : 0;
      parts.push_back(
          {.forward = forward, .backward_input = 2 * forward - weight, .backward_weight = weight});
    }
  }
  return model;
}

CostModel CostFromFlops(const plan::Plan& plan) {
  CostModel model;
  const double samples = static_cast<double>(plan.spec.batch.micro) *
                         static_cast<double>(plan.parallel(plan.spec.language).dp);
  for (const plan::ModulePlan& module : plan.modules) {
    const job::Parallel& parallel = plan.parallel(module.index);
    const double length = RowsOfSample(plan.module_spec(module.index).architecture);
    const double rows = samples * length / (parallel.dp * parallel.cp);
    std::vector<PartCost>& parts = model.parts.emplace_back();
    for (int32_t stage = 0; stage < module.pp(); ++stage) {
      for (int32_t chunk = 0; chunk < module.chunks; ++chunk) {
        const plan::PassCost cost = plan::PartCost(plan, module.index, stage, chunk, rows, length);
        parts.push_back({.forward = cost.forward / kNominalFlops,
                         .backward_input = cost.backward_input / kNominalFlops,
                         .backward_weight = cost.backward_weight / kNominalFlops});
      }
    }
  }
  return model;
}

}  // namespace

CostModel CostFromShapes(const plan::Plan& plan) {
  const bool known =
      std::all_of(plan.spec.modules.begin(), plan.spec.modules.end(),
                  [](const auto& module) { return job::TraitsOf(module.architecture).known(); });
  return known ? CostFromFlops(plan) : CostFromLayers(plan);
}

}  // namespace phalanx::schedule
