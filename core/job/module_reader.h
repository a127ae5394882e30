// core/job/module_reader.h: the modules, the language module and the edges of a job file.
//
// Pure.
#pragma once

#include "core/job/job_reader.h"
#include "core/job/job_spec.h"
#include "core/job/record.h"
#include "core/job/report.h"

namespace phalanx::job {

// The offset of a module whose place is not known, because something about it is wrong.
inline constexpr int32_t kUnplaced = -1;

// Fills modules, language and edges from the record of `spec`, and checks each module by itself.
// What could not be read keeps its default, with a violation in `report`.
void ReadModuleGraph(const Record& record, Purpose purpose, Report& report, JobSpec& spec);

}  // namespace phalanx::job
