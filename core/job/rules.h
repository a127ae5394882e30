// core/job/rules.h: what relates the fields of a job file to one another.
//
// Each rule looks only at fields that are sound by themselves (Report::Sound), so one mistake gives
// one violation. Ranges and types of single fields are in core/job/schema.h, what this release does
// not train yet in core/job/not_yet.h. Pure.
#pragma once

#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "core/job/job_reader.h"
#include "core/job/job_spec.h"
#include "core/job/report.h"

namespace phalanx::job {

// "spec.modules[1]", "spec.edges[0]".
std::string ModulePath(size_t index);
std::string EdgePath(size_t index);

// Modules that get rows of `from`, directly or over others.
std::set<int32_t> ReachedFrom(const JobSpec& spec, int32_t from);

// One module by itself: heads, patches, mesh, tensor width against units, layers of stages.
void CheckModule(const Module& module, size_t index, Report& report);
// The modules together: names, families, the language module, spans of ranks.
void CheckModules(const JobSpec& spec, Report& report);
// Edges and the graph that they make: ends, projectors, cycles, losses at the sinks, what
// regressors get.
void CheckGraph(const JobSpec& spec, Report& report);
// The schedule against layouts, layers and microbatches of the modules.
void CheckSchedule(const JobSpec& spec, Report& report);
// Everything else of the spec: optimizer, precision, and that something trains.
void CheckRun(const JobSpec& spec, Report& report);

}  // namespace phalanx::job
