#include "coordinator/store/archive.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/wire/ended_codec.h"
#include "coordinator/wire/record_codec.h"
#include "core/base/digest.h"
#include "core/base/status.h"

namespace phalanx::coordinator {

absl::StatusOr<std::optional<EndedJob>> MakeEndedJob(JobId job,
                                                     absl::Span<const StoredRecord> records) {
  std::vector<JournalRecord> decoded;
  decoded.reserve(records.size());
  for (const StoredRecord& record : records) {
    absl::StatusOr<JournalRecord> one = DecodeRecord(record.bytes, record.number);
    if (!one.ok()) {
      return Annotate(one.status(), absl::StrCat("record ", record.number, " of ", ToString(job)));
    }
    decoded.push_back(*std::move(one));
  }
  const std::optional<EndedState> state = ReplayEnded(job, decoded);
  if (!state.has_value()) return std::nullopt;
  EndedJob ended{.job = job,
                 .name = state->view.request->name,
                 .phase = state->view.phase,
                 .ended = state->view.ended.value_or(state->view.submitted),
                 .summary = EncodeSummary(*state),
                 .details = EncodeDetails(*state)};
  if (!state->request_id.empty()) {
    ended.request = StoredRequest{.id = state->request_id,
                                  .job = job,
                                  .document_digest = DigestOf(*state->view.request),
                                  .expires = state->view.submitted + kRequestIdWindow};
  }
  return ended;
}

}  // namespace phalanx::coordinator
