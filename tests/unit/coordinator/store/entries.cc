#include "tests/unit/coordinator/store/entries.h"

#include <gtest/gtest.h>

#include <utility>

#include "absl/strings/str_cat.h"

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
