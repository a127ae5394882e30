// tests/unit/core/schedule/plans.h: plans that schedules are tested on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/prng.h"
#include "core/plan/plan.h"
#include "core/schedule/program.h"
#include "core/schedule/simulator.h"
#include "tests/support/specs.h"

namespace phalanx::schedule {

// On as many devices as it needs. A job that cannot be planned ends the test.
plan::Plan PlanOf(const job::JobSpec& spec);

// One module without a shape, `stages` deep, with so many microbatches.
plan::Plan Chain(int32_t stages, int64_t microbatches);

// Programs of all ranks, or the test ends.
std::vector<Program> Programs(const plan::Plan& plan);

// The same cost for every part of the plan.
CostModel EqualCosts(const plan::Plan& plan, const PartCost& cost);

// The same under a schedule.
plan::Plan ChainUnder(job::ScheduleName schedule, int32_t stages, int64_t microbatches,
                      int32_t chunks = 1);

// Modules without a shape in a random graph with one sink, the language module; each module on its
// own ranks, or some on the same.
job::JobSpec RandomGraph(Prng& prng, bool shared_ranks);
// Any schedule that the graph can have, random chunks, and each module frozen one time in four.
void DrawSchedule(Prng& prng, job::JobSpec& spec);
// Forward passes between 0.5 and 2, each half of the backward 0.8 to 1.25 times as much.
CostModel RandomCosts(const plan::Plan& plan, Prng& prng);

struct NamedPlan {
  std::string name;
  plan::Plan plan;
};
// Chains, trees, unequal depths, several consumers, shared ranks, uneven lanes, frozen modules.
std::vector<NamedPlan> Graphs();
// Module graphs around a language model of so many stages: encoders of unequal depth, colocated,
// two on shared ranks beside it, a regressor behind it, frozen parts.
std::vector<NamedPlan> GraphsOf(int32_t stages, int64_t microbatches);

struct Size {
  int32_t stages;
  int64_t microbatches;
};
// Of 1 to 16 stages and 1 to 64 microbatches the corners, about as many microbatches as stages, and
// `drawn` more from the seed; all 1,024 where PHALANX_WHOLE_SWEEP is set.
std::vector<Size> SizesToSweep(uint64_t seed, int32_t drawn);

// Sanitizers make everything ten times slower, so what repeats itself is thinned.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Every schedule that the graph of a plan can have.
std::vector<NamedPlan> UnderEverySchedule(const NamedPlan& graph);

}  // namespace phalanx::schedule
