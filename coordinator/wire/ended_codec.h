// coordinator/wire/ended_codec.h: a job that has ended, between its records, its entry in the store
// and what people ask about it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "coordinator/machine/actions.h"
#include "coordinator/machine/records.h"

namespace phalanx::coordinator {

// How long a request id answers for its job, counted from the submission.
inline constexpr absl::Duration kRequestIdWindow = absl::Hours(24);

// Equal where the same document was submitted, without the same ranks.
std::string DigestOf(const Document& document, const plan::RankList& lost);
std::string DigestOf(const JobRequest& request);

// All that is kept of a job that has ended.
struct EndedState {
  JobView view;
  std::string request_id;
  std::vector<JobEvent> events;
  std::shared_ptr<const EvaluationReport> evaluation;  // null: none
  std::vector<IncidentPtr> incidents;
  std::vector<CurvePoint> curve;  // as the last StepReached has it
};

// Replays the records of one job, in order. Nothing: they do not end it.
std::optional<EndedState> ReplayEnded(JobId job, absl::Span<const JournalRecord> records);

// Sealed. The summary is the view without its document; the details are document, events,
// evaluation, incidents and curve, compressed.
std::string EncodeSummary(const EndedState& ended);
std::string EncodeDetails(const EndedState& ended);

// The request of the view has an empty document. Errors: as Unseal.
absl::StatusOr<JobViewPtr> DecodeSummary(absl::string_view sealed, JobId job);

struct EndedDetails {
  Document document;
  std::vector<JobEvent> events;
  std::shared_ptr<const EvaluationReport> evaluation;
  std::vector<IncidentPtr> incidents;
  std::vector<CurvePoint> curve;
};
absl::StatusOr<EndedDetails> DecodeDetails(absl::string_view sealed, JobId job);

}  // namespace phalanx::coordinator
