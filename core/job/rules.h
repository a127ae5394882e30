// core/job/rules.h: what relates the fields of a job file to one another.
//
// Each rule looks only at fields that are sound by themselves (Report::Sound), so one mistake gives
// one violation. Ranges and types of single fields are in core/job/schema.h, what this release does
// not train yet in core/job/not_yet.h. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/base/violation.h"
#include "core/job/job_spec.h"
#include "core/job/report.h"

namespace phalanx::job {

// "spec.modules[1]", "spec.edges[0]".
std::string ModulePath(size_t index);
std::string EdgePath(size_t index);

// What a plan rests on: shapes and meshes of the modules, their spans of ranks, edges and the graph
// that they make, the schedule.
void CheckLayout(const JobSpec& spec, Report& report);
// The same of a spec that was made by hand or changed, types and ranges of its fields included: in
// the order of its document.
std::vector<Violation> CheckLayout(const JobSpec& spec);
// Whether that finds nothing, but for types and ranges of fields: for specs whose fields are known
// to be sound, in a twentieth of the time.
bool KeepsLayoutRules(const JobSpec& spec);
// What training rests on beside that: roles of the modules, sequences, losses, optimizer,
// precision, and that something trains.
void CheckRun(const JobSpec& spec, Report& report);

// No control characters in labels, selectors and paths, and no addresses where paths are meant. Not
// asked of jobs that were accepted before.
void CheckTexts(const JobSpec& spec, Report& report);

// Parts of CheckLayout: one module by itself (heads, patches, mesh, tensor width against units,
// layers of stages), the spans of all, and the schedule against layouts, layers and microbatches.
void CheckModule(const Module& module, size_t index, Report& report);
void CheckSpans(const JobSpec& spec, Report& report);
void CheckSchedule(const JobSpec& spec, Report& report);
// Parts of CheckRun: names, families and the language module; edges, losses at the sinks, what
// regressors get.
void CheckModules(const JobSpec& spec, Report& report);
void CheckGraph(const JobSpec& spec, Report& report);
// Variables and secrets. Of a job that was accepted it is not asked again.
void CheckEnvironment(const JobSpec& spec, Report& report);

}  // namespace phalanx::job
