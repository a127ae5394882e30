// core/job/not_yet.h: what a job file may say and this release does not do yet.
//
// One table. What stands in it is validated like everything else and may be planned; a submit of it
// is refused by name, and sections that only add safety are accepted with a warning. Defaults are
// never refused. Pure.
#pragma once

#include <string>
#include <vector>

#include "core/job/job_spec.h"
#include "core/job/report.h"

namespace phalanx::job {

// Adds a violation for everything in `spec` that is refused.
void RefuseNotYet(const JobSpec& spec, Report& report);

// "spec.recovery.ladder: not in force yet" for each such section that is written.
std::vector<std::string> WarnNotYet(const JobSpec& spec, const Report& report);

}  // namespace phalanx::job
