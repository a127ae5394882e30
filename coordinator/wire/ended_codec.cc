#include "coordinator/wire/ended_codec.h"

#include <zlib.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/job_state.h"
#include "coordinator/wire/common_codec.h"
#include "coordinator/wire/incident_codec.h"
#include "coordinator/wire/job_codec.h"
#include "coordinator/wire/record_codec.h"
#include "coordinator/wire/seal.h"
#include "core/base/digest.h"
#include "core/base/status.h"
#include "phalanx/v1/journal.pb.h"

namespace phalanx::coordinator {
namespace {

// Documents and events of one job are far below; more is damage that the checksum did not see.
constexpr uint64_t kDetailsBytesMax = 1 << 30;
// What zlib makes of a byte at most, rounded up: more is not there, whatever is said of it.
constexpr uint64_t kRatioMax = 1040;

std::string Compress(const std::string& bytes) {
  uLongf size = compressBound(bytes.size());
  std::string out(size, '\0');
  compress2(reinterpret_cast<Bytef*>(out.data()), &size,
            reinterpret_cast<const Bytef*>(bytes.data()), bytes.size(), Z_BEST_SPEED);
  out.resize(size);
  return out;
}

absl::StatusOr<std::string> Uncompress(const std::string& bytes, uint64_t size) {
  std::string out;
  if (size > kDetailsBytesMax || size > kRatioMax * bytes.size())
    return absl::DataLossError("is larger than any job: it is damaged");
  out.resize(size);
  uLongf written = size;
  const int code =
      uncompress(reinterpret_cast<Bytef*>(out.data()), &written,
                 reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uLong>(bytes.size()));
  if (code != Z_OK || written != size) {
    return absl::DataLossError("does not decompress: it is damaged");
  }
  return out;
}

absl::Status NotParsed() { return absl::DataLossError("does not parse: it is damaged"); }

}  // namespace

std::string DigestOf(const JobRequest& request) {
  const std::string zero(1, '\0');
  std::string text = request.given_digest;
  if (text.empty()) text = absl::StrCat(request.document.directory, zero, request.document.text);
  for (Rank rank : request.lost) absl::StrAppend(&text, zero, rank.value);
  return Digest(text);
}

std::optional<EndedState> ReplayEnded(JobId job, absl::Span<const JournalRecord> records) {
  JobState state{.id = job};
  EndedState ended;
  for (const JournalRecord& record : records) {
    for (JobEvent& event : state.Apply(record)) ended.events.push_back(std::move(event));
    if (const auto* reached = std::get_if<StepReached>(&record.body)) ended.curve = reached->curve;
  }
  if (state.request == nullptr || !state.IsTerminal()) return std::nullopt;
  ended.view = state.View(std::nullopt);
  ended.request_id = state.request_id;
  if (state.evaluation.has_value()) {
    ended.evaluation = std::make_shared<const EvaluationReport>(*std::move(state.evaluation));
  }
  ended.incidents = std::move(state.incidents);
  return ended;
}

std::string EncodeSummary(const EndedState& ended) {
  v1::JobStatus status;
  ToProto(ended.view, false, &status);
  return Seal(status.SerializeAsString(), static_cast<uint64_t>(ended.view.id.value));
}

std::string EncodeDetails(const EndedState& ended) {
  v1::EndedDetails details;
  ToProto(ended.view.request->document, details.mutable_document());
  for (const JobEvent& event : ended.events) ToProto(event, details.add_events());
  if (ended.evaluation != nullptr) ToProto(*ended.evaluation, details.mutable_evaluation());
  for (const IncidentPtr& incident : ended.incidents) ToProto(*incident, details.add_incidents());
  if (!ended.curve.empty()) ToProto(ended.curve, details.mutable_curve());
  const std::string bytes = details.SerializeAsString();
  v1::Compressed compressed;
  compressed.set_size(bytes.size());
  compressed.set_deflated(Compress(bytes));
  return Seal(compressed.SerializeAsString(), static_cast<uint64_t>(ended.view.id.value));
}

absl::StatusOr<JobViewPtr> DecodeSummary(absl::string_view sealed, JobId job) {
  ASSIGN_OR_RETURN(const absl::string_view bytes, Unseal(sealed, static_cast<uint64_t>(job.value)));
  v1::JobStatus status;
  if (!status.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return NotParsed();
  return std::make_shared<const JobView>(FromProto(status));
}

absl::StatusOr<EndedDetails> DecodeDetails(absl::string_view sealed, JobId job) {
  ASSIGN_OR_RETURN(const absl::string_view bytes, Unseal(sealed, static_cast<uint64_t>(job.value)));
  v1::Compressed compressed;
  if (!compressed.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return NotParsed();
  ASSIGN_OR_RETURN(const std::string plain, Uncompress(compressed.deflated(), compressed.size()));
  v1::EndedDetails from;
  if (!from.ParseFromString(plain)) return NotParsed();
  EndedDetails details{.document = FromProto(from.document())};
  for (const v1::JobEvent& event : from.events()) details.events.push_back(FromProto(event));
  if (from.has_evaluation()) {
    details.evaluation = std::make_shared<const EvaluationReport>(FromProto(from.evaluation()));
  }
  for (const v1::Incident& incident : from.incidents())
    details.incidents.push_back(FromProto(incident));
  details.curve = FromProto(from.curve());
  return details;
}

}  // namespace phalanx::coordinator
