// core/job/not_yet.h: what a job file may say and this release does not do yet, and what it does
// and is warned of.
//
// One table. What stands in it is validated like everything else and may be planned; a submit of it
// is refused by name. Defaults are never refused. Pure.
#pragma once

#include <string>
#include <vector>

#include "core/job/job_spec.h"
#include "core/job/report.h"

namespace phalanx::job {

// Adds a violation for everything in `spec` that is refused.
void RefuseNotYet(const JobSpec& spec, Report& report);

// What is written and valid, and may not be meant: "spec.recovery.ladder: the job tolerates no
// loss: ..." for a ladder without rungs.
std::vector<std::string> WarningsOf(const JobSpec& spec, const Report& report);

}  // namespace phalanx::job
