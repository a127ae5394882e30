// Any bytes found in a store: as they are, and as payloads whose checksum fits.
#include "absl/strings/str_cat.h"
#include "coordinator/wire/ended_codec.h"
#include "coordinator/wire/record_codec.h"
#include "coordinator/wire/seal.h"
#include "phalanx/v1/journal.pb.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/messages.h"

namespace phalanx::fuzz {
namespace {

constexpr uint64_t kNumber = 7;
constexpr JobId kJob{3};

// What a record that was read gives when it is written is a record again, and the same.
std::string CheckWritten(const coordinator::JournalRecord& record) {
  const std::string written = coordinator::EncodeRecord(record, kNumber);
  const auto again = coordinator::DecodeRecord(written, kNumber);
  if (!again.ok()) return absl::StrCat("does not read what it writes: ", again.status().ToString());
  if (coordinator::EncodeRecord(*again, kNumber) != written) return "writes another record";
  return coordinator::DecodeRecord(written, kNumber + 1).ok() ? "a number of its own is not seen"
                                                              : "";
}

}  // namespace

std::string Check(absl::string_view bytes) {
  for (const auto& record :
       {coordinator::DecodeRecord(bytes, kNumber), coordinator::DecodeUnsealedRecord(bytes),
        coordinator::DecodeRecord(coordinator::Seal(bytes, kNumber), kNumber)}) {
    if (!record.ok() && record.status().message().empty()) return "refused without a word";
    if (!record.ok()) continue;
    if (std::string wrong = CheckWritten(*record); !wrong.empty()) return wrong;
  }
  const std::string entry = coordinator::Seal(bytes, static_cast<uint64_t>(kJob.value));
  const auto summary = coordinator::DecodeSummary(entry, kJob);
  const auto details = coordinator::DecodeDetails(entry, kJob);
  for (const absl::Status& status : {summary.status(), details.status()}) {
    if (!status.ok() && status.message().empty()) return "refused without a word";
  }
  return "";
}

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus = Serialized<v1::JournalRecord>(60);
  for (const std::string& payload : Serialized<v1::JournalRecord>(5, 2))
    corpus.push_back(coordinator::Seal(payload, kNumber));
  coordinator::EndedState ended;
  ended.view.id = kJob;
  ended.view.request = std::make_shared<const coordinator::JobRequest>();
  ended.events = {{.number = 1, .type = "Submitted", .message = "a"}};
  for (const std::string& sealed : {EncodeSummary(ended), EncodeDetails(ended)})
    corpus.push_back(sealed.substr(8));  // without its seal
  return corpus;
}

}  // namespace phalanx::fuzz
