#include "coordinator/store/store_copy.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/digest.h"
#include "core/base/status.h"

namespace phalanx::coordinator {
namespace {

// What is put at once.
constexpr size_t kBytesMax = 4 << 20, kEntriesMax = 1000, kEndedPage = 100;

// Passes all of a store to `visit`, in an order that every store keeps: at each call one record,
// one ended job or one request id.
absl::StatusOr<CopyReport> Read(const WholeStore& store,
                                absl::FunctionRef<absl::Status(StoreContents)> visit) {
  CopyReport report;
  ASSIGN_OR_RETURN(report.marks, store.backend.Load([&](StoredRecord record) {
    ++report.records;
    StoreContents contents;
    contents.records.push_back(std::move(record));
    return visit(std::move(contents));
  }));
  const std::shared_ptr<EndedJobs> ended_jobs = store.backend.ended_jobs();
  for (JobId before{std::numeric_limits<int64_t>::max()};;) {
    ASSIGN_OR_RETURN(std::vector<EndedJob> page, ended_jobs->List(before, kEndedPage));
    if (page.empty()) break;
    before = page.back().job;
    for (EndedJob& ended : page) {
      ++report.ended_jobs;
      ASSIGN_OR_RETURN(ended.details, ended_jobs->Details(ended.job));
      StoreContents contents;
      contents.ended.push_back(std::move(ended));
      RETURN_IF_ERROR(visit(std::move(contents)));
    }
  }
  RETURN_IF_ERROR(store.backend.ForEachRequest([&](StoredRequest request) {
    ++report.requests;
    StoreContents contents;
    contents.requests.push_back(std::move(request));
    return visit(std::move(contents));
  }));
  return report;
}

template <typename Entry>
void Append(std::vector<Entry>& to, std::vector<Entry>& from) {
  for (Entry& entry : from) to.push_back(std::move(entry));
}

size_t BytesOf(const StoreContents& contents) {
  size_t bytes = 0;
  for (const StoredRecord& record : contents.records) bytes += record.bytes.size();
  for (const EndedJob& job : contents.ended) bytes += job.summary.size() + job.details.size();
  return bytes;
}

// Of all that it is shown, in that order.
class Fingerprint {
 public:
  void Add(const StoreContents& contents) {
    for (const StoredRecord& record : contents.records) {
      Take("record", record.job.value, record.number, record.bytes);
    }
    for (const EndedJob& ended : contents.ended) {
      Take("ended", ended.job.value, ended.name, job::ToString(ended.phase),
           absl::ToUnixMicros(ended.ended), Digest(ended.summary), Digest(ended.details));
    }
    for (const StoredRequest& request : contents.requests) {
      Take("request", request.job.value, request.id, request.document_digest,
           absl::ToUnixMicros(request.expires));
    }
  }
  void Add(const TokenRecords& tokens) {
    for (const auto& [id, record] : tokens) Take("token", id, record.SerializeAsString());
  }
  const std::string& value() const { return value_; }

 private:
  template <typename... Fields>
  void Take(const Fields&... fields) {
    value_ = Digest(absl::StrCat(value_, "\n", absl::StrCat(fields, "\n")...));
  }

  std::string value_;
};

absl::StatusOr<std::string> FingerprintOf(const WholeStore& store, const TokenRecords& tokens) {
  Fingerprint fingerprint;
  RETURN_IF_ERROR(Read(store, [&fingerprint](const StoreContents& contents) {
                    fingerprint.Add(contents);
                    return absl::OkStatus();
                  }).status());
  fingerprint.Add(tokens);
  return fingerprint.value();
}

}  // namespace

absl::StatusOr<CopyReport> CopyStore(WholeStore from, WholeStore to) {
  StoreContents gathered;
  Fingerprint fingerprint;
  size_t entries = 0, bytes = 0;
  const auto put = [&]() -> absl::Status {
    if (entries == 0) return absl::OkStatus();
    entries = bytes = 0;
    return to.backend.Import(std::exchange(gathered, {}));
  };
  ASSIGN_OR_RETURN(CopyReport report, Read(from, [&](StoreContents contents) -> absl::Status {
                     fingerprint.Add(contents);
                     bytes += BytesOf(contents);
                     ++entries;
                     Append(gathered.records, contents.records);
                     Append(gathered.ended, contents.ended);
                     Append(gathered.requests, contents.requests);
                     return entries < kEntriesMax && bytes < kBytesMax ? absl::OkStatus() : put();
                   }));
  RETURN_IF_ERROR(put());
  ASSIGN_OR_RETURN(const TokenRecords tokens, from.tokens.Load());
  fingerprint.Add(tokens);
  report.tokens = static_cast<int64_t>(tokens.size());
  RETURN_IF_ERROR(to.tokens.Load().status());
  RETURN_IF_ERROR(to.tokens.WriteAll(tokens));

  ASSIGN_OR_RETURN(const TokenRecords written, to.tokens.Load());
  ASSIGN_OR_RETURN(const std::string read_back, FingerprintOf(to, written));
  if (read_back == fingerprint.value()) return report;
  return absl::DataLossError(
      "what was read back of the copy differs from the store; copy it again");
}

}  // namespace phalanx::coordinator
