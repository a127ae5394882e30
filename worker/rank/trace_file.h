// worker/rank/trace_file.h: OUTPUT/trace.json, the measured timeline of one step, for jobs with
// `trace: true`. The form is that of `phalanx plan --trace` (core/wire/timeline_json.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/job/job_spec.h"
#include "core/plan/plan.h"
#include "core/schedule/simulator.h"

namespace phalanx::rank {

// The step to measure, 0 if none is asked for: the last but one, which is warm and has a step
// before and behind it; the last of two, and the one of one.
int64_t TraceStep(const job::JobSpec& spec);

// Returns the file's path; it appears there whole, by rename, in place of an older one. `folders`:
// below one of which `output` must lie when it is opened; none: it may lie anywhere. Errors: what
// the file system says, naming the path.
absl::StatusOr<std::string> WriteTrace(const std::string& output, const plan::Plan& plan,
                                       const std::vector<schedule::TimedInstruction>& timeline,
                                       const std::vector<schedule::TimedOperation>& operations = {},
                                       const std::vector<std::string>& folders = {});

}  // namespace phalanx::rank
