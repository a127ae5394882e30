// core/job/labels.h: what the labels of a job that is submitted may be.
#pragma once

#include <vector>

#include "core/base/violation.h"
#include "core/job/job_spec.h"

namespace phalanx::job {

// Those with control characters, of metadata.labels and of spec.resources.node_selector: labels are
// shown to everybody. Not asked of jobs that were accepted before.
std::vector<Violation> LabelViolations(const JobSpec& spec);

}  // namespace phalanx::job
