// coordinator/store/sqlite_backend.h: the journal in one SQLite database (write-ahead log,
// synchronous=FULL: a commit returns after fsync).
//
// The file is locked while it is open, so two coordinators cannot share a store.
#pragma once

#include <memory>
#include <string>

#include "coordinator/store/backend.h"

namespace phalanx::coordinator {

class SqliteBackend final : public Backend {
 public:
  // Opens `path`, or creates it. Errors: FailedPrecondition if another process has it open, or a
  // newer version wrote it; DataLoss if it is no journal; Unavailable if it cannot be opened.
  static absl::StatusOr<std::unique_ptr<SqliteBackend>> Open(const std::string& path);
  ~SqliteBackend() override;

  absl::StatusOr<std::vector<StoredRecord>> Load() override;
  absl::Status Commit(absl::Span<const StoredRecord> records) override;

 private:
  struct Handles;
  explicit SqliteBackend(std::unique_ptr<Handles> handles);
  const std::unique_ptr<Handles> handles_;
};

}  // namespace phalanx::coordinator
