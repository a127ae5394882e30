// How long it takes to plan a large world, and to find a rank's place and parameters in it.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/job/schema.h"
#include "core/plan/loss.h"
#include "core/plan/memory_fit.h"
#include "core/plan/moves.h"
#include "core/plan/parameters.h"
#include "core/plan/plan.h"
#include "core/plan/samples.h"
#include "core/plan/segments.h"
#include "core/plan/shares.h"
#include "core/schedule/admission.h"
#include "core/schedule/search.h"
#include "tests/support/profiles.h"
#include "tests/support/specs.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::ClipVision;
using support::LargeClipVision;
using support::Llama;
using support::NoArchitecture;

// An encoder on an eighth of the world beside a decoder tp 8, pp 16 on the rest.
job::JobSpec LargeJob(int32_t world) {
  const int32_t vision = world / 8;
  return AJob()
      .Module("vision", LargeClipVision(), {.tp = 2, .dp = vision / 2})
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

// What a rank does: the plan of a document and its layout.
void BM_Expand(benchmark::State& state) {
  const auto world = static_cast<int32_t>(state.range(0));
  const job::JobSpec spec = LargeJob(world);
  const Layout layout = *DecideLayout(spec, MakeCluster(world / 8, 8), Epoch{1});
  for (auto _ : state) {
    auto plan = Expand(spec, layout);
    if (!plan.ok()) state.SkipWithError(plan.status().ToString().c_str());
    benchmark::DoNotOptimize(plan->digest);
  }
}
BENCHMARK(BM_Expand)->Arg(1024)->Arg(131072)->Unit(benchmark::kMillisecond);

// What the coordinator does: the plan, and whether its ranks fit into devices of 80 GiB.
void BM_MakePlanThatFits(benchmark::State& state) {
  const auto world = static_cast<int32_t>(state.range(0));
  const job::JobSpec spec = LargeJob(world);
  const Cluster cluster = MakeCluster(world / 8, 8);
  const std::vector<int64_t> memory(static_cast<size_t>(world), int64_t{80} << 30);
  for (auto _ : state) {
    const auto plan = MakePlan(spec, cluster, Epoch{1});
    const absl::Status fits = CheckMemory(*plan, {.devices = memory});
    if (!fits.ok()) state.SkipWithError(fits.ToString().c_str());
  }
}
BENCHMARK(BM_MakePlanThatFits)->Arg(1024)->Arg(16384)->Arg(131072)->Unit(benchmark::kMillisecond);

// The same with what losing one device of each kind leaves, on devices of one size or of many.
void BM_AdmitJob(benchmark::State& state) {
  const auto world = static_cast<int32_t>(state.range(0));
  const job::JobSpec spec = LargeJob(world);
  const Cluster cluster = MakeCluster(world / 8, 8);
  MemoryLimits limits = {
      .devices = std::vector<int64_t>(static_cast<size_t>(world), int64_t{80} << 30),
      .nodes = std::vector<int64_t>(static_cast<size_t>(world) / 8, int64_t{1} << 40)};
  if (state.range(1) != 0) {
    for (size_t i = 0; i < limits.devices.size(); ++i)
      limits.devices[i] += static_cast<int64_t>(i) << 20;
  }
  for (auto _ : state) {
    const auto plan = schedule::AdmitJob(spec, cluster, limits, Epoch{1});
    if (!plan.ok()) state.SkipWithError(plan.status().ToString().c_str());
  }
}
BENCHMARK(BM_AdmitJob)
    ->ArgsProduct({{1024, 16384, 131072}, {0, 1}})
    ->ArgNames({"ranks", "unequal"})
    ->Unit(benchmark::kMillisecond);

constexpr int32_t kWorld = 131072;

job::Architecture LargeDecoder(int32_t layers) {
  return Llama({.hidden_size = 8192, .layers = layers, .heads = 64, .kv_heads = 8});
}

struct Worst {
  const char* name;
  job::JobSpec spec;
};

// Specs of the whole world that ask most of the planner.
std::vector<Worst> WorstSpecs() {
  using job::ScheduleName;
  std::vector<Worst> worst;
  // Every encoder on all ranks of the language module, which is cut into many parts.
  for (int32_t encoders : {1, 16, 63}) {
    for (ScheduleName schedule :
         {ScheduleName::kInterleaved, ScheduleName::kZeroBubbleV, ScheduleName::kThreePhase}) {
      AJob job;
      for (int32_t i = 0; i < encoders; ++i) {
        job.Module(absl::StrCat("encoder", i), ClipVision({.layers = 24}),
                   {.tp = 2, .dp = kWorld / 2, .offset = 0});
      }
      job.Module("language", LargeDecoder(512),
                 {.tp = 8, .dp = kWorld / 512, .pp = 64, .offset = 0});
      for (int32_t i = 0; i < encoders; ++i) {
        job.Edge(absl::StrCat("encoder", i), "language", {.projector = 8192});
      }
      job.Batch(kWorld / 512 * 3, 1)
          .Schedule(schedule, schedule == ScheduleName::kInterleaved ? 8 : 1);
      worst.push_back({encoders == 1    ? "colocated"
                       : encoders == 16 ? "16 on all ranks"
                                        : "63 on all ranks",
                       job});
    }
  }
  // As many modules as ranks of a node in a chain, each a pipeline.
  AJob chain;
  for (int32_t i = 0; i < 63; ++i) {
    chain.Module(absl::StrCat("module", i), NoArchitecture(), {.tp = 2, .dp = 16, .pp = 64});
    if (i > 0) chain.Edge(absl::StrCat("module", i - 1), absl::StrCat("module", i));
  }
  chain.Module("language", NoArchitecture(), {.tp = 2, .dp = 16, .pp = 64})
      .Edge("module62", "language")
      .Batch(1024, 1)
      .Schedule(ScheduleName::kInterleaved, 8);
  worst.push_back({"a chain of 64 modules, 64 stages each", chain});
  // As deep as a job may be.
  for (int32_t chunks : {1, 16}) {
    const ScheduleName schedule = chunks > 1 ? ScheduleName::kInterleaved : ScheduleName::k1F1B;
    worst.push_back({"4,096 stages",
                     AJob()
                         .Module("language", NoArchitecture(), {.tp = kWorld / 4096, .pp = 4096})
                         .Batch(chunks == 1 ? 64 : 1, 1)
                         .Schedule(schedule, chunks)});
  }
  // Encoders on ranks of their own.
  constexpr int32_t kEncoders = 32;
  AJob star;
  for (int32_t i = 0; i < kEncoders; ++i) {
    star.Module(absl::StrCat("encoder", i), ClipVision(), {.tp = 2, .dp = kWorld / kEncoders / 4});
  }
  star.Module("language", LargeDecoder(128), {.tp = 8, .dp = kWorld / 128, .pp = 8});
  for (int32_t i = 0; i < kEncoders; ++i) {
    star.Edge(absl::StrCat("encoder", i), "language", {.projector = 8192});
  }
  star.Batch(kWorld, 1).Schedule(ScheduleName::kInterleaved, 8);
  worst.push_back({"32 encoders", star});
  return worst;
}

void BM_MakePlanOfTheWorst(benchmark::State& state) {
  const Worst worst = WorstSpecs()[static_cast<size_t>(state.range(0))];
  const Cluster cluster = MakeCluster(kWorld / 8, 8);
  for (auto _ : state) {
    auto plan = MakePlan(worst.spec, cluster, Epoch{1});
    if (!plan.ok()) {
      state.SkipWithError(plan.status().ToString().c_str());
      break;
    }
    benchmark::DoNotOptimize(plan->digest);
  }
  const job::Schedule& schedule = worst.spec.schedule;
  state.SetLabel(absl::StrCat(worst.name, ", ",
                              job::ScheduleNames()[static_cast<size_t>(schedule.name)], " ",
                              schedule.chunks));
}
BENCHMARK(BM_MakePlanOfTheWorst)
    ->DenseRange(0, static_cast<int64_t>(WorstSpecs().size()) - 1)
    ->Unit(benchmark::kMillisecond);

// The ten fastest layouts of a decoder with an encoder of images, and with one of sounds beside it,
// on nodes of 8 devices of 141 GiB; under a profile that says what work takes at one clock, and
// under one from which each device's clock is solved.
void BM_SearchLayouts(benchmark::State& state) {
  const auto devices = static_cast<int32_t>(state.range(0));
  const auto encoders = static_cast<int>(state.range(1));
  const bool large = state.range(2) != 0, power = state.range(3) != 0;
  const job::JobSpec spec = support::SearchedJob(encoders, large);
  const schedule::DeviceProfile h200 = *schedule::FindProfile("h200");
  const schedule::SearchOptions options{.devices = devices,
                                        .device_memory = int64_t{141} << 30,
                                        .profile = power ? support::Powered(h200, 650, 1980) : h200,
                                        .items = 4};
  for (auto _ : state) {
    const auto found = schedule::SearchLayouts(spec, options);
    if (!found.ok()) return state.SkipWithError(found.status().ToString().c_str());
    state.counters["layouts"] = static_cast<double>(found->layouts);
    state.counters["simulated"] = static_cast<double>(found->simulated);
  }
  state.SetLabel(absl::StrCat(encoders, encoders == 1 ? " encoder, " : " encoders, ",
                              large ? "70B" : "8B", power ? ", clocks solved" : ""));
}
BENCHMARK(BM_SearchLayouts)
    ->ArgsProduct({{64, 1024}, {1, 2}, {0, 1}, {0, 1}})
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

// What a printed plan says of where state lives.
void BM_SharesAndTheirRule(benchmark::State& state) {
  const auto world = static_cast<int32_t>(state.range(0));
  const auto plan = MakePlan(LargeJob(world), MakeCluster(world / 8, 8), Epoch{1});
  for (auto _ : state) {
    benchmark::DoNotOptimize(Shares(*plan).has_value());
    benchmark::DoNotOptimize(HomesOfState(*plan).size());
  }
}
BENCHMARK(BM_SharesAndTheirRule)->Arg(1024)->Arg(131072)->Unit(benchmark::kMillisecond);

// One part of a stage of which a few replicas have lost ranks.
void BM_CutShares(benchmark::State& state) {
  const auto world = static_cast<int32_t>(state.range(0));
  const job::JobSpec spec = LargeJob(world);
  const auto healthy = MakePlan(spec, MakeCluster(world / 8, 8), Epoch{1});
  Layout layout = healthy->layout;
  for (int32_t dp = 0; dp < 4; ++dp) {
    RankList ranks = healthy->TensorGroup(1, dp, 3);
    ranks.resize(static_cast<size_t>(7 - dp));
    layout.modules[1].changes.push_back({.dp = dp, .pp = 3, .ranks = ranks});
  }
  const auto plan = Expand(spec, layout);
  if (!plan.ok()) return state.SkipWithError(plan.status().ToString().c_str());
  for (auto _ : state) benchmark::DoNotOptimize(CutShares(*plan, {1, 3, 0}).size());
}
BENCHMARK(BM_CutShares)->Arg(1024)->Arg(131072)->Unit(benchmark::kMillisecond);

// One device of the fourth stage is lost: the layout that is left, and its plan. The stage is
// narrowed (0), or the replica left out (1); or one of the encoder's many replicas is (2).
void BM_PlanAfterALoss(benchmark::State& state) {
  const auto world = static_cast<int32_t>(state.range(0));
  job::JobSpec spec = LargeJob(world);
  if (state.range(1) != 0) spec.recovery.ladder = {job::Rung::kDropReplica};
  const auto healthy = MakePlan(spec, MakeCluster(world / 8, 8), Epoch{1});
  const RankList lost = {state.range(1) == 2 ? Rank{1} : healthy->replicas(1).At(0, 3, 0, 5)};
  for (auto _ : state) {
    auto next = LayoutAfter(*healthy, {.lost = lost});
    auto plan = Expand(healthy->spec, std::move(next->layout));
    if (!plan.ok()) state.SkipWithError(plan.status().ToString().c_str());
    benchmark::DoNotOptimize(plan->digest);
  }
}
BENCHMARK(BM_PlanAfterALoss)
    ->ArgsProduct({{1024, 131072}, {0, 1, 2}})
    ->Unit(benchmark::kMillisecond);

// What has to be moved then: of a stage that is narrowed, or of all stages of a replica that is
// left out.
void BM_MovesAfterALoss(benchmark::State& state) {
  const auto world = static_cast<int32_t>(state.range(0));
  job::JobSpec spec = LargeJob(world);
  if (state.range(1) != 0) spec.recovery.ladder = {job::Rung::kDropReplica};
  const auto healthy = MakePlan(spec, MakeCluster(world / 8, 8), Epoch{1});
  const auto after =
      Expand(spec, LayoutAfter(*healthy, {.lost = {healthy->replicas(1).At(0, 3, 0, 5)}})->layout);
  for (auto _ : state) {
    const Moves moves = MovesBetween(*healthy, *after);
    state.counters["moves"] = static_cast<double>(moves.moves.size());
    state.counters["gigabytes"] = static_cast<double>(moves.bytes) / 1e9;
  }
}
BENCHMARK(BM_MovesAfterALoss)->ArgsProduct({{1024, 131072}, {0, 1}})->Unit(benchmark::kMillisecond);

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
