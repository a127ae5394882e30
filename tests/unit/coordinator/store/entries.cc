#include "tests/unit/coordinator/store/entries.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/wire/record_codec.h"

namespace phalanx::coordinator {

StoredRecord Of(uint64_t number, std::string bytes, int64_t job) {
  return {.number = number, .job = JobId{job}, .bytes = std::move(bytes)};
}

EndedJob Ended(int64_t job, const std::string& name, Instant ended) {
  return {.job = JobId{job},
          .name = name,
          .phase = job::JobPhase::kSucceeded,
          .ended = ended,
          .summary = absl::StrCat("summary ", job),
          .details = absl::StrCat("details ", job)};
}

std::vector<StoredRecord> SomeRecords(const std::string& document, uint64_t first) {
  const auto submitted = [&](int64_t job, const std::string& name) {
    return JournalRecord{
        .time = kNow,
        .job = JobId{job},
        .body = JobSubmitted{
            std::make_shared<const JobRequest>(JobRequest{
                .document = {.text = document, .directory = "/d"}, .name = name, .steps = 1}),
            absl::StrCat("request ", job)}};
  };
  const JournalRecord cancelled{
      .time = kNow,
      .job = JobId{2},
      .body = PhaseChanged{job::JobPhase::kCancelled, "cancelled on request", std::nullopt}};
  std::vector<StoredRecord> records;
  for (const JournalRecord& record : {submitted(1, "a"), submitted(2, "b"), cancelled}) {
    const uint64_t number = first + records.size();
    records.push_back({.number = number, .job = record.job, .bytes = EncodeRecord(record, number)});
  }
  return records;
}

std::vector<StoredRecord> All(Backend& backend) {
  std::vector<StoredRecord> records;
  const auto status = backend.Load([&records](StoredRecord record) {
    records.push_back(std::move(record));
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status.status();
  return records;
}

}  // namespace phalanx::coordinator
