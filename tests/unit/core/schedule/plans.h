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
// Every schedule that the graph of a plan can have.
std::vector<NamedPlan> UnderEverySchedule(const NamedPlan& graph);

}  // namespace phalanx::schedule
