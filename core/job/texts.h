// core/job/texts.h: what texts of a job that is submitted may be.
#pragma once

#include <vector>

#include "core/base/violation.h"
#include "core/job/job_spec.h"

namespace phalanx::job {

// Labels, selectors and paths with control characters: labels are shown to everybody, and no folder
// of a node that anybody means has such a name. Not asked of jobs that were accepted before.
std::vector<Violation> TextViolations(const JobSpec& spec);

}  // namespace phalanx::job
