#include "tests/unit/core/schedule/plans.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/job/rules.h"
#include "core/job/schema.h"

namespace phalanx::schedule {
namespace {

using support::AJob;
using support::Layout;
using support::NoArchitecture;

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
    std::abort();
  }
  return *std::move(value);
}

Layout At(int32_t offset, Layout layout) {
  layout.offset = offset;
  return layout;
}

void AddGraphsOnRanksOfTheirOwn(std::vector<NamedPlan>& graphs) {
  const job::Architecture none = NoArchitecture();
  const auto add = [&graphs](const std::string& name, const job::JobSpec& spec) {
    graphs.push_back({name, PlanOf(spec)});
  };
  add("one rank", AJob().Module("language", none).Batch(3, 1));
  add("chain", AJob().Module("language", none, {.tp = 2, .dp = 2, .pp = 3}).Batch(12, 1));
  add("encoder before", AJob()
                            .Module("vision", none, {.dp = 2})
                            .Module("language", none, {.tp = 2, .pp = 2})
                            .Edge("vision", "language")
                            .Batch(8, 2));
  add("3:2 lanes, uneven samples", AJob()
                                       .Module("vision", none, {.tp = 2, .dp = 3})
                                       .Module("language", none, {.dp = 2, .pp = 2})
                                       .Edge("vision", "language")
                                       .Batch(7, 1));
  add("replica without samples", AJob()
                                     .Module("vision", none, {.dp = 4})
                                     .Module("language", none, {.dp = 3, .pp = 2})
                                     .Edge("vision", "language")
                                     .Batch(4, 1));
  add("two encoders, unequal depth", AJob()
                                         .Module("vision", none, {.pp = 3})
                                         .Module("audio", none, {.dp = 2})
                                         .Module("language", none, {.pp = 3})
                                         .Edge("vision", "language")
                                         .Edge("audio", "language")
                                         .Batch(9, 1));
  add("diamond with a short cut", AJob()
                                      .Module("vision", none)
                                      .Module("first", none, {.pp = 2})
                                      .Module("language", none, {.pp = 2})
                                      .Edge("vision", "first")
                                      .Edge("vision", "language")
                                      .Edge("first", "language")
                                      .Batch(10, 1));
  add("regressor after language", AJob()
                                      .Module("vision", none)
                                      .Module("audio", none)
                                      .Module("language", none, {.pp = 2})
                                      .Module("generator", none)
                                      .Edge("vision", "language")
                                      .Edge("audio", "language")
                                      .Edge("language", "generator")
                                      .Batch(6, 1));
}

void AddGraphsThatShareRanks(std::vector<NamedPlan>& graphs) {
  const job::Architecture none = NoArchitecture();
  const auto add = [&graphs](const std::string& name, const job::JobSpec& spec) {
    graphs.push_back({name, PlanOf(spec)});
  };
  add("colocated", AJob()
                       .Module("vision", none, {.dp = 4})
                       .Module("language", none, {.tp = 2, .pp = 2, .offset = 0})
                       .Edge("vision", "language")
                       .Batch(6, 1));
  add("encoders share ranks", AJob()
                                  .Module("vision", none, {.pp = 2})
                                  .Module("audio", none, {.dp = 2, .offset = 0})
                                  .Module("language", none, {.tp = 2, .pp = 2})
                                  .Edge("vision", "language")
                                  .Edge("audio", "language")
                                  .Batch(6, 1));
  add("a gap of idle ranks", AJob()
                                 .Module("vision", none)
                                 .Module("language", none, {.pp = 2, .offset = 3})
                                 .Edge("vision", "language")
                                 .Batch(4, 1));
  add("language on the ranks of both encoders",
      AJob()
          .Module("vision", none, {.tp = 2, .dp = 4})
          .Module("audio", none, {.dp = 8, .offset = 0})
          .Module("language", none, {.tp = 2, .dp = 2, .pp = 2, .offset = 0})
          .Edge("vision", "language")
          .Edge("audio", "language")
          .Batch(12, 2));
  add("tensor groups over all stages", AJob()
                                           .Module("vision", none, {.tp = 4})
                                           .Module("language", none, {.pp = 4, .offset = 0})
                                           .Edge("vision", "language")
                                           .Batch(5, 1));
  add("encoder pipeline on the language ranks, one more beside",
      AJob()
          .Module("vision", none, {.dp = 2, .pp = 2})
          .Module("language", none, {.pp = 4, .offset = 0})
          .Module("audio", none, {.pp = 2, .offset = 4})
          .Edge("vision", "language")
          .Edge("audio", "vision")
          .Edge("audio", "language")
          .Batch(8, 1));
}

void AddFrozenGraphs(std::vector<NamedPlan>& graphs) {
  const job::Architecture none = NoArchitecture();
  const auto add = [&graphs](const std::string& name, const job::JobSpec& spec) {
    graphs.push_back({name, PlanOf(spec)});
  };
  add("frozen encoder", AJob()
                            .Module("vision", none, {.pp = 2, .frozen = true})
                            .Module("audio", none)
                            .Module("language", none, {.pp = 2})
                            .Edge("vision", "language")
                            .Edge("audio", "language")
                            .Batch(7, 1));
  add("frozen language behind an encoder that trains",
      AJob()
          .Module("vision", none, {.dp = 2})
          .Module("language", none, {.pp = 2, .frozen = true})
          .Edge("vision", "language")
          .Batch(6, 1));
  add("all frozen", AJob()
                        .Module("vision", none, {.dp = 2, .frozen = true})
                        .Module("language", none, {.pp = 2, .offset = 0, .frozen = true})
                        .Edge("vision", "language")
                        .Batch(5, 1));
  add("frozen colocated encoder", AJob()
                                      .Module("vision", none, {.dp = 3, .frozen = true})
                                      .Module("language", none, {.pp = 3, .offset = 0})
                                      .Edge("vision", "language")
                                      .Batch(5, 1));
}

}  // namespace

plan::Plan PlanOf(const job::JobSpec& spec) {
  return OrDie(plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1}));
}

plan::Plan Chain(int32_t stages, int64_t microbatches) {
  return PlanOf(AJob().Module("language", NoArchitecture(), {.pp = stages}).Batch(microbatches, 1));
}

plan::Plan ChainUnder(job::ScheduleName schedule, int32_t stages, int64_t microbatches,
                      int32_t chunks) {
  return PlanOf(AJob()
                    .Module("language", NoArchitecture(), {.pp = stages})
                    .Batch(microbatches, 1)
                    .Schedule(schedule, chunks));
}

std::vector<Program> Programs(const plan::Plan& plan) { return OrDie(BuildStep(plan)); }

CostModel EqualCosts(const plan::Plan& plan, const PartCost& cost) {
  CostModel costs;
  for (const plan::ModulePlan& module : plan.modules) {
    costs.parts.emplace_back(module.stage_layers.size(), cost);
  }
  return costs;
}

job::JobSpec RandomGraph(Prng& prng, bool shared_ranks) {
  AJob job;
  const auto sources = static_cast<int32_t>(1 + prng.Below(4));
  std::vector<std::string> names;
  int32_t next_rank = 0, last_first = 0, last_ranks = 0;
  for (int32_t i = 0; i < sources; ++i) {
    Layout layout = {.tp = static_cast<int32_t>(1 + prng.Below(2)),
                     .dp = static_cast<int32_t>(1 + prng.Below(3)),
                     .pp = static_cast<int32_t>(1 + prng.Below(3))};
    int32_t ranks = layout.tp * layout.dp * layout.pp;
    int32_t first = next_rank;
    if (shared_ranks && i > 0 && prng.Below(2) == 0) {
      first = last_first;
      ranks = last_ranks;
      layout = {.dp = ranks};
    }
    names.push_back(absl::StrCat("encoder", i));
    job.Module(names.back(), NoArchitecture(), At(first, layout));
    next_rank = std::max(next_rank, first + ranks);
    last_first = first;
    last_ranks = ranks;
  }
  Layout layout = {.tp = static_cast<int32_t>(1 + prng.Below(2)),
                   .dp = static_cast<int32_t>(1 + prng.Below(3)),
                   .pp = static_cast<int32_t>(1 + prng.Below(4))};
  job.Module("language", NoArchitecture(), At(next_rank, layout));
  // An encoder feeds the language model, a later encoder, or both.
  for (int32_t i = 0; i < sources; ++i) {
    const auto index = static_cast<size_t>(i);
    const bool to_other = i + 1 < sources && prng.Below(3) == 0;
    if (to_other) {
      const auto other = index + 1 + prng.Below(static_cast<uint64_t>(sources - i - 1));
      job.Edge(names[index], names[other]);
    }
    if (!to_other || prng.Below(2) == 0) job.Edge(names[index], "language");
  }
  const auto lanes = static_cast<int64_t>(layout.dp);
  return job.Batch(lanes * static_cast<int64_t>(1 + prng.Below(32)) +
                       static_cast<int64_t>(prng.Below(static_cast<uint64_t>(lanes))),
                   static_cast<int64_t>(1 + prng.Below(2)));
}

void DrawSchedule(Prng& prng, job::JobSpec& spec) {
  for (job::Module& module : spec.modules) module.frozen = prng.Below(4) == 0;
  const job::Module& first = spec.modules.front();
  job::Module& language = spec.modules[static_cast<size_t>(spec.language)];
  if (prng.Below(3) == 0) {  // the language model on the ranks of the first encoder
    language.offset = first.offset;
    language.parallel.ranks = first.parallel.ranks;
    language.parallel.tp = language.parallel.dp = 1;
    language.parallel.pp = first.parallel.ranks;
    language.parallel.expt_dp = 1;
  }
  const auto drawn = static_cast<job::ScheduleName>(1 + prng.Below(5));
  spec.schedule = {.name = drawn};
  if (drawn == job::ScheduleName::kInterleaved || drawn == job::ScheduleName::kThreePhase) {
    spec.schedule.chunks = static_cast<int32_t>(1 + prng.Below(4));
  }
  if (drawn == job::ScheduleName::kThreePhase) {
    spec.schedule.encoder_chunks = static_cast<int32_t>(1 + prng.Below(5));
    if (!job::CheckLayout(spec).empty()) spec.schedule = {.name = job::ScheduleName::k1F1B};
  }
}

CostModel RandomCosts(const plan::Plan& plan, Prng& prng) {
  CostModel costs;
  for (const plan::ModulePlan& module : plan.modules) {
    std::vector<PartCost>& parts = costs.parts.emplace_back();
    for (size_t i = 0; i < module.stage_layers.size(); ++i) {
      const double forward = 0.5 + 1.5 * prng.Uniform();
      parts.push_back({.forward = forward,
                       .backward_input = forward * (0.8 + 0.45 * prng.Uniform()),
                       .backward_weight = forward * (0.8 + 0.45 * prng.Uniform())});
    }
  }
  return costs;
}

std::vector<NamedPlan> Graphs() {
  std::vector<NamedPlan> graphs;
  AddGraphsOnRanksOfTheirOwn(graphs);
  AddGraphsThatShareRanks(graphs);
  AddFrozenGraphs(graphs);
  return graphs;
}

std::vector<NamedPlan> GraphsOf(int32_t stages, int64_t microbatches) {
  const job::Architecture none = NoArchitecture();
  std::vector<NamedPlan> graphs;
  const auto add = [&](const std::string& name, AJob& job) {
    graphs.push_back({absl::StrCat(name, ", ", stages, " stages, ", microbatches, " microbatches"),
                      PlanOf(job.Batch(microbatches, 1))});
  };
  add("chain of replicas", AJob().Module("language", none, {.tp = 2, .pp = stages}));
  add("unequal encoders", AJob()
                              .Module("vision", none, {.pp = 1 + stages / 2})
                              .Module("audio", none, {.dp = 2})
                              .Module("language", none, {.pp = stages})
                              .Edge("vision", "language")
                              .Edge("audio", "language"));
  add("colocated", AJob()
                       .Module("vision", none, {.dp = stages})
                       .Module("language", none, {.pp = stages, .offset = 0})
                       .Edge("vision", "language"));
  add("mixed spans", AJob()
                         .Module("vision", none, {.pp = 2})
                         .Module("audio", none, {.dp = 2, .offset = 0})
                         .Module("language", none, {.pp = stages})
                         .Edge("vision", "language")
                         .Edge("audio", "language"));
  add("regressor behind", AJob()
                              .Module("vision", none)
                              .Module("language", none, {.pp = stages})
                              .Module("generator", none, {.pp = 2})
                              .Edge("vision", "language")
                              .Edge("language", "generator"));
  add("frozen encoder", AJob()
                            .Module("vision", none, {.pp = 2, .frozen = true})
                            .Module("audio", none)
                            .Module("language", none, {.pp = stages})
                            .Edge("vision", "language")
                            .Edge("audio", "language"));
  add("frozen language", AJob()
                             .Module("vision", none, {.dp = 2})
                             .Module("language", none, {.pp = stages, .frozen = true})
                             .Edge("vision", "language"));
  return graphs;
}

std::vector<Size> SizesToSweep(uint64_t seed, int32_t drawn) {
  constexpr int32_t kStages = 16, kMicrobatches = 64;
  std::vector<Size> sizes;
  if (std::getenv("PHALANX_WHOLE_SWEEP") != nullptr) {
    for (int32_t stages = 1; stages <= kStages; ++stages) {
      for (int32_t m = 1; m <= kMicrobatches; ++m) sizes.push_back({stages, m});
    }
    return sizes;
  }
  sizes = {{1, 1}, {1, kMicrobatches}, {kStages, 1}, {kStages, kMicrobatches}};
  for (int32_t stages : {2, 5, 9, kStages}) {
    for (int32_t m = stages; m <= stages + 1; ++m) sizes.push_back({stages, m});
  }
  Prng prng(seed);
  for (int32_t i = 0; i < (kSanitized ? drawn / 4 : drawn); ++i) {
    const auto stages = static_cast<int32_t>(1 + prng.Below(kStages));
    sizes.push_back({stages, static_cast<int64_t>(1 + prng.Below(kMicrobatches))});
  }
  return sizes;
}

std::vector<NamedPlan> UnderEverySchedule(const NamedPlan& graph) {
  using job::ScheduleName;
  std::vector<NamedPlan> plans;
  const job::Schedule schedules[] = {
      {.name = ScheduleName::kAuto},
      {.name = ScheduleName::k1F1B},
      {.name = ScheduleName::kInterleaved, .chunks = 2},
      {.name = ScheduleName::kInterleaved, .chunks = 3},
      {.name = ScheduleName::kZeroBubbleH1},
      {.name = ScheduleName::kZeroBubbleV},
      {.name = ScheduleName::kThreePhase},
      {.name = ScheduleName::kThreePhase, .encoder_chunks = 2},
      {.name = ScheduleName::kThreePhase, .chunks = 2, .encoder_chunks = 3},
  };
  for (const job::Schedule& schedule : schedules) {
    job::JobSpec spec = graph.plan.spec;
    spec.schedule = schedule;
    if (!job::CheckLayout(spec).empty()) continue;  // three phases need a colocated encoder
    plans.push_back(
        {absl::StrCat(graph.name, ", ", job::ScheduleNames()[static_cast<size_t>(schedule.name)],
                      " ", schedule.chunks, "/", schedule.encoder_chunks),
         PlanOf(spec)});
  }
  return plans;
}

}  // namespace phalanx::schedule
