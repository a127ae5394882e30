// How long it takes to plan a large world, and to find a rank's place and parameters in it.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "core/plan/memory_fit.h"
#include "core/plan/parameters.h"
#include "core/plan/plan.h"
#include "core/plan/samples.h"
#include "tests/support/specs.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;

// An encoder on an eighth of the world beside a decoder tp 8, pp 16 on the rest.
job::JobSpec LargeJob(int32_t world) {
  const int32_t vision = world / 8;
  return AJob()
      .Module("vision",
              ClipVision({.hidden_size = 1024,
                          .layers = 24,
                          .heads = 16,
                          .mlp_size = 4096,
                          .block = 128,
                          .image_size = 336,
                          .patch_size = 14}),
              {.tp = 2, .dp = vision / 2})
      .Module("language",
              Llama({.hidden_size = 8192,
                     .layers = 80,
                     .heads = 64,
                     .kv_heads = 8,
                     .mlp_size = 28672,
                     .block = 128,
                     .vocabulary = 128256,
                     .context = 4096}),
              {.tp = 8, .dp = (world - vision) / 128, .pp = 16})
      .Edge("vision", "language", {.projector = 8192})
      .Batch(world, 1);
}

// Plan and digest; the cluster is given.
void BM_MakePlan(benchmark::State& state) {
  const auto world = static_cast<int32_t>(state.range(0));
  const job::JobSpec spec = LargeJob(world);
  const Cluster cluster = MakeCluster(world / 8, 8);
  for (auto _ : state) {
    auto plan = MakePlan(spec, cluster, Epoch{1});
    if (!plan.ok()) state.SkipWithError(plan.status().ToString().c_str());
    benchmark::DoNotOptimize(plan->digest);
  }
}
BENCHMARK(BM_MakePlan)->Arg(1024)->Arg(16384)->Arg(131072)->Unit(benchmark::kMillisecond);

// What the coordinator does: the plan, and whether its ranks fit into devices of 80 GiB.
void BM_MakePlanThatFits(benchmark::State& state) {
  const auto world = static_cast<int32_t>(state.range(0));
  const job::JobSpec spec = LargeJob(world);
  const Cluster cluster = MakeCluster(world / 8, 8);
  const std::vector<int64_t> memory(static_cast<size_t>(world), int64_t{80} << 30);
  for (auto _ : state) {
    const auto plan = MakePlan(spec, cluster, Epoch{1});
    const absl::Status fits = CheckMemory(*plan, memory);
    if (!fits.ok()) state.SkipWithError(fits.ToString().c_str());
  }
}
BENCHMARK(BM_MakePlanThatFits)->Arg(1024)->Arg(16384)->Arg(131072)->Unit(benchmark::kMillisecond);

// What one rank works out for itself.
void BM_PlaceAndParameters(benchmark::State& state) {
  const auto world = static_cast<int32_t>(state.range(0));
  const auto plan = MakePlan(LargeJob(world), MakeCluster(world / 8, 8), Epoch{1});
  for (auto _ : state) {
    const Place place = plan->PlacesOf(Rank{world - 1}).front();
    benchmark::DoNotOptimize(ParametersOf(*plan, place).elements);
  }
}
BENCHMARK(BM_PlaceAndParameters)->Arg(131072)->Unit(benchmark::kMicrosecond);

void BM_Communicators(benchmark::State& state) {
  const auto world = static_cast<int32_t>(state.range(0));
  const auto plan = MakePlan(LargeJob(world), MakeCluster(world / 8, 8), Epoch{1});
  for (auto _ : state) benchmark::DoNotOptimize(Communicators(*plan).size());
}
BENCHMARK(BM_Communicators)->Arg(1024)->Arg(131072)->Unit(benchmark::kMillisecond);

void BM_SampleAt(benchmark::State& state) {
  int64_t position = 0;
  for (auto _ : state) benchmark::DoNotOptimize(SampleAt(17, 1'000'003, position++));
}
BENCHMARK(BM_SampleAt);

}  // namespace
}  // namespace phalanx::plan
