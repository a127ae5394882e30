// Throughput against lost devices: replicas left out, widths of parity, own widths.
//
// The job is that of the paper's simulation (arXiv 2504.06095, 5.2): 32,768 devices, some 480 B
// parameters, hidden 20,480, 128 heads, 100 layers, sequences of 16,384, tensor groups of 32, eight
// of them a replica (here eight stages), 128 replicas. Its MLP has two matrices of 4 x hidden; ours
// has three, of as many elements in all. Lost devices are drawn evenly. What is told is samples a
// second of the simulated step, relative to the healthy job: the mean, and the least, over draws.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/prng.h"
#include "core/plan/loss.h"
#include "core/plan/plan.h"
#include "core/schedule/cost_model.h"
#include "core/schedule/simulator.h"
#include "tests/support/specs.h"

namespace phalanx::schedule {
namespace {

constexpr int32_t kDraws = 10;

job::JobSpec PaperJob(int64_t batch) {
  return support::AJob()
      .Module("language",
              support::Llama({.hidden_size = 20480,
                              .layers = 100,
                              .heads = 128,
                              .kv_heads = 128,
                              .mlp_size = 54656,
                              .block = 128,
                              .vocabulary = 128256,
                              .context = 16384}),
              {.tp = 32, .dp = 128, .pp = 8})
      .Batch(batch, 1)
      .Schedule(job::ScheduleName::k1F1B);
}

double StepOf(const plan::Plan& plan) {
  const auto simulation = SimulatePlan(plan, CostFromShapes(plan));
  return simulation.ok() ? simulation->step : 0;
}

void BM_ThroughputAfterLosses(benchmark::State& state) {
  using enum job::Rung;
  static constexpr const char* kPolicies[] = {"drop", "parity", "own"};
  const int64_t policy = state.range(0), lost_count = state.range(1), batch = state.range(2);
  job::JobSpec spec = PaperJob(batch);
  spec.recovery.widths = policy == 1 ? job::Widths::kParity : job::Widths::kOwn;
  if (policy == 0) spec.recovery.ladder = {kDropReplica};
  const auto healthy = plan::MakePlan(spec, plan::MakeCluster(4096, 8), Epoch{1});
  if (!healthy.ok()) return state.SkipWithError(healthy.status().ToString().c_str());
  const double step = StepOf(*healthy);
  double mean = 0, least = 1, idle = 0;
  for (auto _ : state) {
    mean = idle = 0;
    for (uint64_t draw = 1; draw <= kDraws; ++draw) {
      Prng prng(draw);
      std::set<Rank> lost;
      while (static_cast<int64_t>(lost.size()) < lost_count) {
        lost.insert(Rank{static_cast<int32_t>(prng.Below(static_cast<uint64_t>(healthy->world)))});
      }
      const auto plan = plan::PlanWithout(*healthy, plan::RankList(lost.begin(), lost.end()));
      if (!plan.ok()) return state.SkipWithError(plan.status().ToString().c_str());
      const double throughput = step / StepOf(*plan);
      mean += throughput / kDraws;
      least = std::min(least, throughput);
      idle += static_cast<double>(plan->layout.idle.size()) / kDraws;
    }
  }
  state.counters["percent"] = 100 * mean;
  state.counters["least"] = 100 * least;
  state.counters["idle"] = idle;
  state.SetLabel(absl::StrCat(kPolicies[policy], ", ", lost_count, " lost, batch ", batch));
}
// 0.5, 1, 2, 3 and 4 of a thousand devices; 8 and 64 samples a replica.
BENCHMARK(BM_ThroughputAfterLosses)
    ->ArgsProduct({{0, 1, 2}, {16, 33, 66, 98, 131}, {1024, 8192}})
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace phalanx::schedule
