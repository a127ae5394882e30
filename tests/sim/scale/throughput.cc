#include "tests/sim/scale/throughput.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "core/plan/cost.h"
#include "core/schedule/cost_model.h"
#include "core/schedule/simulator.h"

namespace phalanx::scale {
namespace {

[[noreturn]] void GiveUp(const absl::Status& status) {
  std::fprintf(stderr, "a layout cannot be measured: %s\n", status.ToString().c_str());
  std::abort();
}

double StepOf(const plan::Plan& plan) {
  const absl::StatusOr<schedule::Simulation> simulation =
      schedule::SimulatePlan(plan, schedule::CostFromShapes(plan));
  if (!simulation.ok()) GiveUp(simulation.status());
  return simulation->step;
}

}  // namespace

Yardstick::Yardstick(const job::JobSpec& spec) {
  absl::StatusOr<plan::Plan> plan =
      plan::MakePlan(spec, plan::MakeCluster(spec.World() / 8, 8), Epoch{1});
  if (!plan.ok()) GiveUp(plan.status());
  healthy_ = *std::move(plan);
  for (int32_t stage = 0; stage < healthy_.modules[0].pp(); ++stage)
    healthy_time_ = std::max(healthy_time_, StageTime(stage, healthy_.parallel(0).tp));
  healthy_step_ = StepOf(healthy_);
}

double Yardstick::StageTime(int32_t stage, int32_t width) {
  const auto [known, is_new] = stage_times_.try_emplace({stage, width}, 0);
  if (!is_new) return known->second;
  const auto rows = static_cast<double>(healthy_.module_spec(0).architecture.context);
  for (int32_t chunk = 0; chunk < healthy_.modules[0].chunks(); ++chunk)
    known->second += plan::PartCost(healthy_, {0, stage, chunk}, width, rows, rows).total();
  return known->second;
}

Throughput Yardstick::Measure(const plan::Layout& layout) {
  const absl::StatusOr<plan::Plan> plan = plan::Expand(healthy_.spec, layout);
  if (!plan.ok()) GiveUp(plan.status());
  const plan::ReplicaTable& replicas = plan->replicas(0);
  Throughput left{.replicas = replicas.present_replicas(), .narrowest = plan->parallel(0).tp};
  for (int32_t dp = 0; dp < replicas.replicas(); ++dp) {
    if (!replicas.Present(dp)) continue;
    double slowest = 0;
    int32_t narrowest = plan->parallel(0).tp;
    for (int32_t stage = 0; stage < replicas.stages(); ++stage) {
      const int32_t width = replicas.Width(dp, stage);
      narrowest = std::min(narrowest, width);
      slowest = std::max(slowest, StageTime(stage, width));
    }
    left.narrowed += narrowest < plan->parallel(0).tp ? 1 : 0;
    left.narrowest = std::min(left.narrowest, narrowest);
    left.work += healthy_time_ / slowest / replicas.replicas();
  }
  left.step = StepOf(*plan);
  return left;
}

}  // namespace phalanx::scale
