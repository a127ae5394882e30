// coordinator/store/memory_backend.h: a store that lives in a value, for tests and simulations.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "coordinator/store/backend.h"
#include "core/base/mutex.h"

namespace phalanx::coordinator {

// What survives a crash: several backends may be opened on one disk, one after the other.
// Thread-safe.
class MemoryDisk {
 public:
  // From now on commits fail with `status` and store nothing; OK: they succeed again.
  void FailCommits(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until so many commits have failed; false: fewer have at the end of `patience`.
  bool AwaitFailedCommits(int count, absl::Duration patience) const ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<StoredRecord> records() const ABSL_LOCKS_EXCLUDED(mu_);
  // Puts a record there as a commit would have.
  void Put(StoredRecord record) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class MemoryBackend;
  friend class MemoryEndedJobs;
  mutable Mutex mu_;
  std::map<std::pair<JobId, uint64_t>, std::string> records_ ABSL_GUARDED_BY(mu_);
  std::map<JobId, EndedJob> ended_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, StoredRequest> requests_ ABSL_GUARDED_BY(mu_);
  StoreMarks marks_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  int failed_commits_ ABSL_GUARDED_BY(mu_) = 0;
  mutable CondVar failed_;
};

class MemoryBackend final : public Backend {
 public:
  explicit MemoryBackend(std::shared_ptr<MemoryDisk> disk);
  absl::StatusOr<StoreMarks> Load(absl::FunctionRef<absl::Status(StoredRecord)> visit) override;
  absl::StatusOr<std::vector<StoredRecord>> RecordsOf(JobId job) override;
  absl::Status Commit(const Batch& batch) override;
  absl::StatusOr<uint64_t> Reopen() override;
  absl::StatusOr<bool> Prune(const Retention& retention, Instant now) override;
  std::shared_ptr<EndedJobs> ended_jobs() override { return ended_jobs_; }
  uint64_t identity() const override { return 0; }

 private:
  const std::shared_ptr<MemoryDisk> disk_;
  const std::shared_ptr<EndedJobs> ended_jobs_;
};

}  // namespace phalanx::coordinator
