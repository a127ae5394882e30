// core/job/graph.h: what follows from a job's module graph and schedule, before any plan.
//
// Pure.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "core/job/job_spec.h"

namespace phalanx::job {

// Modules that get rows of `from`, directly or over others.
std::set<int32_t> ReachedFrom(const JobSpec& spec, int32_t from);

// `modules` indices so that each comes after all that feed it along `edges`, ties in ascending
// order; fewer than all of them when the graph has a cycle.
std::vector<int32_t> DataFlowOrder(size_t modules, const std::vector<Edge>& edges);
inline std::vector<int32_t> DataFlowOrder(const JobSpec& spec) {
  return DataFlowOrder(spec.modules.size(), spec.edges);
}

// Chunks of a stage under zero_bubble_v, written or not.
inline constexpr int32_t kChunksOfVee = 2;
// Pieces that each stage of a module is cut into: of the language module those of the schedule, of
// all others one.
int32_t ChunksOf(const JobSpec& spec, int32_t module);

// Whether the module is on the ranks of the language module and feeds it, at first or second hand:
// what three_phase is about.
bool HasPhases(const JobSpec& spec, int32_t module);
// Whether three_phase runs the module's forwards before the language model's and its backwards
// after them.
bool RunsInPhases(const JobSpec& spec, int32_t module);
// Such a module, or one that feeds it: it forwards all microbatches before it may get a gradient.
bool RunsAhead(const JobSpec& spec, int32_t module);

}  // namespace phalanx::job
