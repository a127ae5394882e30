// coordinator/machine/ended_job.h: what is said of a job that has ended, in the same words whether
// the machine still knows it or the store answers for it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/machine/actions.h"

namespace phalanx::coordinator {

// The answer to a cancel: the job itself if it is Cancelled. Errors: FailedPrecondition otherwise.
absl::StatusOr<JobViewPtr> CancelEnded(JobViewPtr job);

// Why it ended, the decisive reason first.
std::vector<std::string> ExplainEnded(const JobView& job);

// Whether both are for the same document, as it was given, without the same ranks.
bool AskForTheSame(const JobRequest& a, const JobRequest& b);
// InvalidArgument: the request id was given before with another document, for `job`.
absl::Status RequestIdReused(absl::string_view request_id, JobId job);

// Bytes that the request of a job holds in memory, near enough for a limit.
int64_t RequestBytes(const JobRequest& request);

// Of a job that does not train: it takes no fault.
absl::Status NoFaultsFor(JobId job, job::JobPhase phase);

}  // namespace phalanx::coordinator
