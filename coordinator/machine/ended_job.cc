#include "coordinator/machine/ended_job.h"

#include <map>

#include "absl/strings/str_cat.h"

namespace phalanx::coordinator {

absl::StatusOr<JobViewPtr> CancelEnded(JobViewPtr job) {
  if (job->phase == job::JobPhase::kCancelled) return job;
  return absl::FailedPreconditionError(
      absl::StrCat(ToString(job->id), " has already ended: ", job::ToString(job->phase)));
}

std::vector<std::string> ExplainEnded(const JobView& job) {
  if (!job.failure.has_value()) return {job.reason};
  const FailureCause& failure = *job.failure;
  const job::FailureTraits& traits = job::TraitsOf(failure.kind);
  std::vector<std::string> reasons = {absl::StrCat(traits.name, ": ", failure.message)};
  if (failure.rank >= 0) {
    reasons.push_back(
        absl::StrCat("the first rank to fail was ", failure.rank, " on node ", failure.node));
  }
  reasons.push_back(absl::StrCat("what to do: ", job::NextAfter(failure.kind, failure.signal)));
  return reasons;
}

bool AskForTheSame(const JobRequest& a, const JobRequest& b) {
  if (a.lost != b.lost) return false;
  // Requests of the release before have none.
  if (a.given_digest.empty() || b.given_digest.empty()) return a.document == b.document;
  return a.given_digest == b.given_digest;
}

absl::Status RequestIdReused(absl::string_view request_id, JobId job) {
  return absl::InvalidArgumentError(absl::StrCat(
      "request_id: \"", request_id, "\" was given with another document, which became ",
      ToString(job), "; choose a new id for a new job"));
}

int64_t RequestBytes(const JobRequest& request) {
  const auto of_map = [](const std::map<std::string, std::string>& map) {
    size_t bytes = 0;
    for (const auto& [key, value] : map) bytes += key.size() + value.size() + 128;
    return bytes;
  };
  size_t bytes = sizeof(JobRequest) + request.document.text.size() +
                 request.document.directory.size() + request.name.size() + request.output.size() +
                 request.layout_note.size() + request.data_key.size() +
                 request.given_digest.size() + of_map(request.labels) +
                 of_map(request.node_selector) + request.lost.size() * sizeof(Rank);
  for (const std::string& warning : request.warnings) bytes += warning.size();
  return static_cast<int64_t>(bytes);
}

absl::Status NoFaultsFor(JobId job, job::JobPhase phase) {
  return absl::FailedPreconditionError(absl::StrCat(ToString(job), " is ", job::ToString(phase),
                                                    "; faults are for a job that is Running"));
}

}  // namespace phalanx::coordinator
