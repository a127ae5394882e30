// How fast programs are built, checked and simulated.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/job/schema.h"
#include "core/schedule/checker.h"
#include "core/schedule/choice.h"
#include "core/schedule/program.h"
#include "core/schedule/simulator.h"
#include "tests/support/specs.h"

namespace phalanx::schedule {
namespace {

// A vision encoder of two stages feeding a language model of fourteen, on `ranks` ranks: a quarter
// of them for the encoder.
plan::Plan BigPlan(int32_t ranks, int64_t microbatches) {
  using support::NoArchitecture;
  const int32_t language_ranks = ranks * 7 / 8;
  const job::JobSpec spec =
      support::AJob()
          .Module("vision", NoArchitecture(),
                  {.tp = 2, .dp = (ranks - language_ranks) / 4, .pp = 2})
          .Module("language", NoArchitecture(), {.tp = 4, .dp = language_ranks / 56, .pp = 14})
          .Edge("vision", "language")
          .Batch(language_ranks / 56 * microbatches, 1);
  auto plan = plan::MakePlan(spec, plan::MakeCluster(1, ranks), Epoch{1});
  if (!plan.ok()) std::abort();
  return *std::move(plan);
}

size_t Count(const std::vector<Program>& programs) {
  size_t count = 0;
  for (const Program& program : programs) count += program.size();
  return count;
}

void CountInstructions(benchmark::State& state, size_t count) {
  state.counters["instructions"] = static_cast<double>(count);
  state.counters["instructions/s"] =
      benchmark::Counter(static_cast<double>(count), benchmark::Counter::kIsIterationInvariantRate);
}

void BM_BuildAndCheck(benchmark::State& state) {
  const plan::Plan plan = BigPlan(static_cast<int32_t>(state.range(0)), state.range(1));
  size_t count = 0;
  for (auto _ : state) {
    const auto programs = BuildStep(plan);
    const auto report = CheckStep(plan, *programs);
    if (!report.ok()) state.SkipWithError(report.status().ToString().c_str());
    count = Count(*programs);
  }
  CountInstructions(state, count);
}
BENCHMARK(BM_BuildAndCheck)->Args({64, 16})->Args({512, 64})->Unit(benchmark::kMillisecond);

void BM_BuildStep(benchmark::State& state) {
  const plan::Plan plan = BigPlan(512, 64);
  for (auto _ : state) benchmark::DoNotOptimize(BuildStep(plan));
  CountInstructions(state, Count(*BuildStep(plan)));
}
BENCHMARK(BM_BuildStep)->Unit(benchmark::kMillisecond);

// What one rank process does.
void BM_BuildStepOf(benchmark::State& state) {
  const plan::Plan plan = BigPlan(static_cast<int32_t>(state.range(0)), 64);
  for (auto _ : state) benchmark::DoNotOptimize(BuildStepOf(plan, Rank{plan.world / 2}));
}
BENCHMARK(BM_BuildStepOf)->Arg(512)->Arg(131072 / 64 * 56)->Unit(benchmark::kMillisecond);

void BM_Simulate(benchmark::State& state) {
  const plan::Plan plan = BigPlan(512, 64);
  const std::vector<Program> programs = *BuildStep(plan);
  const CostModel costs = CostFromShapes(plan);
  for (auto _ : state) benchmark::DoNotOptimize(Simulate(plan, programs, costs));
  CountInstructions(state, Count(programs));
}
BENCHMARK(BM_Simulate)->Unit(benchmark::kMillisecond);

// The preview that `phalanx plan` shows.
void BM_SimulatePlan(benchmark::State& state) {
  const plan::Plan plan = BigPlan(static_cast<int32_t>(state.range(0)), 64);
  const CostModel costs = CostFromShapes(plan);
  for (auto _ : state) benchmark::DoNotOptimize(SimulatePlan(plan, costs));
}
BENCHMARK(BM_SimulatePlan)->Arg(512)->Arg(131072 / 64 * 56)->Unit(benchmark::kMillisecond);

// The largest graphs that the rules let pass, as `phalanx plan` shows them: so many stages, chunks
// and microbatches.
void BM_SimulatePlanWorst(benchmark::State& state) {
  const auto chunks = static_cast<int32_t>(state.range(1));
  const job::JobSpec spec =
      support::AJob()
          .Module("language", support::NoArchitecture(),
                  {.pp = static_cast<int32_t>(state.range(0))})
          .Batch(state.range(2), 1)
          .Schedule(chunks > 1 ? job::ScheduleName::kInterleaved : job::ScheduleName::k1F1B,
                    chunks);
  const auto plan = plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1});
  if (!plan.ok()) return state.SkipWithError(plan.status().ToString().c_str());
  const CostModel costs = CostFromShapes(*plan);
  for (auto _ : state) benchmark::DoNotOptimize(SimulatePlan(*plan, costs));
}
BENCHMARK(BM_SimulatePlanWorst)
    ->Args({4096, 1, 64})
    ->Args({4096, 1, 256})
    ->Args({64, 1, 16384})
    ->Args({64, 64, 4})
    ->Args({1024, 32, 1})
    ->Unit(benchmark::kMillisecond);

// Most parts on a rank: so many encoders beside the language module on the same ranks, in so many
// stages, chunks and microbatches.
void BM_SimulatePlanColocated(benchmark::State& state) {
  const auto encoders = static_cast<int32_t>(state.range(0));
  const auto stages = static_cast<int32_t>(state.range(1));
  support::AJob job;
  for (int32_t i = 0; i < encoders; ++i) {
    job.Module(absl::StrCat("encoder", i), support::ClipVision(), {.dp = stages, .offset = 0});
  }
  job.Module("language", support::NoArchitecture(), {.pp = stages, .offset = 0});
  for (int32_t i = 0; i < encoders; ++i) job.Edge(absl::StrCat("encoder", i), "language");
  job.Batch(state.range(3), 1)
      .Schedule(job::ScheduleName::kThreePhase, static_cast<int32_t>(state.range(2)));
  job.spec().schedule.encoder_chunks = 8;
  const auto plan = plan::MakePlan(job, plan::MakeCluster(1, stages), Epoch{1});
  if (!plan.ok()) return state.SkipWithError(plan.status().ToString().c_str());
  const CostModel costs = CostFromShapes(*plan);
  for (auto _ : state) benchmark::DoNotOptimize(SimulatePlan(*plan, costs));
}
BENCHMARK(BM_SimulatePlanColocated)
    ->Args({63, 1, 1, 256})
    ->Args({63, 16, 1, 16})
    ->Args({63, 4, 64, 16})
    ->Args({2, 64, 1, 1820})
    ->Unit(benchmark::kMillisecond);

// Every schedule: what one rank process does, and `auto` for a whole world.
void BM_BuildStepOfSchedule(benchmark::State& state) {
  const auto name = static_cast<job::ScheduleName>(state.range(0));
  const plan::Plan plan =
      *plan::MakePlan(support::AJob()
                          .Module("language", support::NoArchitecture(), {.pp = 16})
                          .Batch(64, 1)
                          .Schedule(name, name == job::ScheduleName::kInterleaved ? 2 : 1),
                      plan::MakeCluster(1, 16), Epoch{1});
  for (auto _ : state) benchmark::DoNotOptimize(BuildStepOf(plan, Rank{8}));
  state.SetLabel(std::string(job::ScheduleNames()[static_cast<size_t>(name)]));
}
BENCHMARK(BM_BuildStepOfSchedule)->DenseRange(1, 4)->Unit(benchmark::kMillisecond);

// `auto`, with one encoder on an eighth of the ranks or so many on those of the language model.
void BM_PlanJobAuto(benchmark::State& state) {
  const auto world = static_cast<int32_t>(state.range(0));
  const auto stages = static_cast<int32_t>(state.range(1));
  const auto colocated = static_cast<int32_t>(state.range(2));
  const int32_t encoder_ranks = colocated > 0 ? world : world / 8;
  const int32_t ranks = colocated > 0 ? world : world - encoder_ranks;
  support::AJob job;
  for (int32_t i = 0; i < std::max(1, colocated); ++i) {
    job.Module(absl::StrCat("encoder", i),
               support::ClipVision({.hidden_size = 1024, .layers = 24, .heads = 16}),
               {.tp = 2, .dp = encoder_ranks / 2, .offset = 0});
  }
  job.Module(
      "language",
      support::Llama({.hidden_size = 8192, .layers = 5 * stages, .heads = 64, .kv_heads = 8}),
      {.tp = 8, .dp = ranks / 8 / stages, .pp = stages, .offset = world - ranks});
  for (int32_t i = 0; i < std::max(1, colocated); ++i) {
    job.Edge(absl::StrCat("encoder", i), "language", {.projector = 8192});
  }
  job.Batch(colocated > 1 ? world / 16
            : stages > 64 ? world / 4
                          : world,
            1)
      .Schedule(job::ScheduleName::kAuto);
  const plan::Cluster cluster = plan::MakeCluster(world / 8, 8);
  for (auto _ : state) {
    const auto plan = PlanJob(job, cluster, Epoch{1});
    if (!plan.ok()) state.SkipWithError(plan.status().ToString().c_str());
  }
}
BENCHMARK(BM_PlanJobAuto)
    ->Args({1024, 16, 0})
    ->Args({131072, 16, 0})
    ->Args({131072, 16, 1})
    ->Args({131072, 64, 0})
    ->Args({131072, 64, 1})
    ->Args({131072, 64, 16})
    ->Args({131072, 512, 0})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace phalanx::schedule
