// coordinator/store/memory_backend.h: a journal that lives in a value, for tests and simulations.
#pragma once

#include <memory>
#include <vector>

#include "coordinator/store/backend.h"

namespace phalanx::coordinator {

// What survives a crash: several backends may be opened on one disk, one after the other.
struct MemoryDisk {
  std::vector<StoredRecord> records;
  absl::Status next_commit;  // not OK: the next commit fails with it and stores nothing
};

class MemoryBackend final : public Backend {
 public:
  explicit MemoryBackend(std::shared_ptr<MemoryDisk> disk) : disk_(std::move(disk)) {}
  absl::StatusOr<std::vector<StoredRecord>> Load() override;
  absl::Status Commit(absl::Span<const StoredRecord> records) override;

 private:
  const std::shared_ptr<MemoryDisk> disk_;
};

}  // namespace phalanx::coordinator
