#include <algorithm>

#include "core/schedule/simulator.h"

namespace phalanx::schedule {
namespace {

constexpr double kNominalFlops = 100e12;  // a second

using plan::PassCost;

void Add(const PassCost& cost, PassCost& sum) {
  sum.forward += cost.forward;
  sum.backward_input += cost.backward_input;
  sum.backward_weight += cost.backward_weight;
}

// Token rows of one sequence of a module.
double SequenceLength(const job::Architecture& architecture) {
  switch (architecture.family) {
    case job::Family::kClipVision: {
      const double side = static_cast<double>(architecture.image_size) /
                          static_cast<double>(std::max<int64_t>(architecture.patch_size, 1));
      return side * side;
    }
    case job::Family::kWhisper:
      return static_cast<double>(architecture.frames);
    default:
      return static_cast<double>(architecture.context);
  }
}

PassCost ProjectorCost(const plan::Plan& plan, const job::Edge& edge, double rows) {
  if (!edge.projector) return {};
  const auto hidden = [&plan](int32_t module) {
    return static_cast<double>(plan.module_spec(module).architecture.hidden_size);
  };
  const double flops = 2.0 * rows * static_cast<double>(edge.projector->hidden_size) *
                       (hidden(edge.from) + hidden(edge.to));
  return {flops, flops, edge.projector->frozen ? 0.0 : flops};
}

// Of one microbatch over all lanes.
PassCost PartFlops(const plan::Plan& plan, int32_t module, int32_t stage, int32_t chunk,
                   double rows, double length) {
  const plan::ModulePlan& layout = plan.modules[static_cast<size_t>(module)];
  const job::Module& spec = plan.module_spec(module);
  const PassCost layer = plan::LayerCost(spec, rows, length);
  const double layers = layout.layers(stage, chunk).count;
  PassCost cost = {layer.forward * layers, layer.backward_input * layers,
                   layer.backward_weight * layers};
  if (layout.IsFirst(stage, chunk)) Add(plan::EmbeddingCost(spec, rows), cost);
  if (layout.IsLast(stage, chunk)) {
    Add(plan::HeadCost(spec, rows), cost);
    for (const job::Edge& edge : plan.spec.edges) {
      if (edge.from == module) Add(ProjectorCost(plan, edge, rows), cost);
    }
  }
  return cost;
}

// Without shapes a part costs what its layers are, or 1 where their number is not known either; the
// backward is not divided and takes two forwards.
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
      parts.push_back({.forward = forward, .backward_input = 2 * forward, .backward_weight = 0});
    }
  }
  return model;
}

}  // namespace

CostModel CostFromShapes(const plan::Plan& plan) {
  for (const plan::ModulePlan& module : plan.modules) {
    if (plan.spec.modules[static_cast<size_t>(module.index)].architecture.family ==
        job::Family::kNone) {
      return CostFromLayers(plan);
    }
  }
  CostModel model;
  const double samples = static_cast<double>(plan.spec.batch.micro) *
                         static_cast<double>(plan.parallel(plan.spec.language).dp);
  for (size_t i = 0; i < plan.modules.size(); ++i) {
    const auto m = static_cast<int32_t>(i);
    const plan::ModulePlan& module = plan.modules[i];
    const double length = SequenceLength(plan.module_spec(m).architecture);
    const double ranks = static_cast<double>(module.grid.size()) / module.pp();
    std::vector<PartCost>& parts = model.parts.emplace_back();
    for (int32_t stage = 0; stage < module.pp(); ++stage) {
      for (int32_t chunk = 0; chunk < module.chunks; ++chunk) {
        const PassCost cost = PartFlops(plan, m, stage, chunk, samples * length, length);
        const double scale = 1.0 / (ranks * kNominalFlops);
        parts.push_back({.forward = cost.forward * scale,
                         .backward_input = cost.backward_input * scale,
                         .backward_weight = cost.backward_weight * scale});
      }
    }
  }
  return model;
}

}  // namespace phalanx::schedule
