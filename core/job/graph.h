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
// Pieces that each stage of a module is cut into under a schedule, else under the spec's own: of
// the language module those of the schedule, of all others one.
int32_t ChunksOf(const JobSpec& spec, const Schedule& schedule, int32_t module);
inline int32_t ChunksOf(const JobSpec& spec, int32_t module) {
  return ChunksOf(spec, spec.schedule, module);
}

// Microbatches of a step while the language module is healthy and its replicas alike: as many as
// the largest of them needs. No plan of the document has fewer (Plan::microbatches).
int64_t MicrobatchesOf(const JobSpec& spec);
// How much planning has to do for each microbatch of a step: n x n for each kind of rank that holds
// n pipeline parts, since before each pass it looks at all parts of the rank. Modules of one span
// of ranks share them; of those that cut it into stages in different ways, kinds of rank may be
// counted that do not occur.
int64_t PlanningLoad(const JobSpec& spec);
// Microbatches x load of a step at most: planning it takes seconds and about 1 GiB then.
inline constexpr int64_t kPlanningLoadMax = 1 << 20;

// Whether the document puts the module on the ranks of the language module, which it feeds, at
// first or second hand: what three_phase asks for. What is left of that is the plan's to say
// (plan::ModulePlan::has_phases).
bool HasPhases(const JobSpec& spec, int32_t module);

}  // namespace phalanx::job
