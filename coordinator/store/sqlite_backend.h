// coordinator/store/sqlite_backend.h: the store in one SQLite database (write-ahead log,
// synchronous=FULL: a commit returns after fsync).
//
// PATH.lock and the folder it lies in are locked while it is open, so two coordinators cannot share
// a store: the folder also when somebody removes the file.
#pragma once

#include <sys/stat.h>

#include <memory>
#include <string>

#include "coordinator/store/backend.h"
#include "coordinator/store/sqlite_ended_jobs.h"
#include "core/posix/unique_fd.h"

namespace phalanx::coordinator {

// Locks are beside the name that is given, and another name of the file would have locks of its
// own: a coordinator does not open a store that has two. Errors: FailedPrecondition.
absl::Status CheckHasOneName(const std::string& path);

class SqliteBackend final : public Backend {
 public:
  // Opens `path`, or creates it; a store of an older version is rewritten in this one's form.
  // Errors: FailedPrecondition if another process has it open, a newer version wrote it, or the
  // log of a database is there without it;
  // DataLoss if it is damaged or no store; Unavailable if it cannot be opened.
  static absl::StatusOr<std::unique_ptr<SqliteBackend>> Open(const std::string& path);
  ~SqliteBackend() override;

  // Empties it, for a copy of the store of that identity.
  absl::Status BeginCopy(uint64_t identity);
  // What was put is on disk, in the database alone.
  absl::Status EndCopy(const StoreMarks& marks);

  absl::StatusOr<StoreMarks> Load(absl::FunctionRef<absl::Status(StoredRecord)> visit) override;
  absl::StatusOr<std::vector<StoredRecord>> RecordsOf(JobId job) override;
  absl::Status Commit(const Batch& batch) override;
  absl::Status CheckPlace() override;
  absl::StatusOr<uint64_t> Reopen() override;
  absl::StatusOr<bool> Prune(const Retention& retention, Instant now) override;
  std::shared_ptr<EndedJobs> ended_jobs() override { return ended_jobs_; }
  absl::Status ForEachRequest(absl::FunctionRef<absl::Status(StoredRequest)> visit) override;
  absl::Status Import(const StoreContents& contents) override;
  int64_t bytes() const override;
  uint64_t identity() const override { return identity_; }

 private:
  struct Handles;
  explicit SqliteBackend(std::string path);
  // `flags`: beside reading and writing.
  absl::Status Connect(int flags);
  absl::Status Prepare(sqlite::Connection connection);
  absl::Status CountEnded();
  // Errors: DataLoss where pages that later commits rest upon are damaged.
  absl::Status CheckPages();
  // Runs `body` as one transaction.
  template <typename Body>
  absl::Status Transact(Body body);
  // How the number of ended jobs of each phase changes with a transaction.
  using Counts = std::map<job::JobPhase, int64_t>;
  void Counted(const Counts& changes);
  absl::Status Write(const Batch& batch, Counts& changes);
  absl::Status WriteRecord(const StoredRecord& record);
  absl::Status WriteRequest(const StoredRequest& request);
  absl::Status WriteEnded(const EndedJob& ended, Counts& changes);
  // Gives free pages back to the file system. Returns whether there is more to do.
  absl::StatusOr<bool> GiveBackPages();
  absl::StatusOr<std::vector<JobId>> Expired(const Retention& retention, Instant now);
  absl::Status DeleteEnded(JobId job, Counts& changes);

  const std::string path_;
  UniqueFd lock_, folder_;  // locked
  const std::shared_ptr<SqliteEndedJobs> ended_jobs_;
  std::unique_ptr<Handles> handles_;  // null after a failed Reopen
  uint64_t last_ = 0;
  uint64_t identity_ = 0;
  struct stat place_ {};  // of the open file
};

}  // namespace phalanx::coordinator
