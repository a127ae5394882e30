#include "coordinator/store/memory_backend.h"

#include "absl/strings/str_cat.h"

namespace phalanx::coordinator {

absl::StatusOr<std::vector<StoredRecord>> MemoryBackend::Load() { return disk_->records; }

absl::Status MemoryBackend::Commit(absl::Span<const StoredRecord> records) {
  if (!disk_->next_commit.ok()) return disk_->next_commit;
  uint64_t next = disk_->records.size() + 1;
  for (const StoredRecord& record : records) {
    if (record.number != next++) {
      return absl::InvalidArgumentError(
          absl::StrCat("record ", record.number, " does not follow ", next - 2));
    }
  }
  disk_->records.insert(disk_->records.end(), records.begin(), records.end());
  return absl::OkStatus();
}

}  // namespace phalanx::coordinator
