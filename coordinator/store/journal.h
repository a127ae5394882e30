// coordinator/store/journal.h: group commit. What is appended gathers while the batch before is
// being written, and the next commit takes all of it.
//
// A commit that fails is tried again until it succeeds: the store is opened anew, and the batch
// follows. Nothing is dropped meanwhile; whoever appends bounds what it appends.
//
// Every wait and every measure of time is on the steady clock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/store/backend.h"
#include "core/base/mutex.h"
#include "core/base/time.h"
#include "core/posix/waker.h"

namespace phalanx::coordinator {

// Called on the journal's thread after each attempt to commit something, and until one succeeds
// after each that failed. OK: all records up to `last` are on disk, and the rest is done. Else:
// none of it is, and it will be tried again.
struct CommitReport {
  absl::Status status;
  uint64_t last = 0;
  uint64_t records = 0;
  absl::Duration duration;
  int64_t bytes = 0;  // of the store behind the commit
  std::vector<JobId> archived;
  std::vector<uint64_t> deleted;  // tags of Delete
  // Ended jobs whose records cannot be read: they stay as they are, in memory too.
  std::vector<std::pair<JobId, absl::Status>> not_archived;
  std::vector<std::string> complaints;  // one line each: old jobs that could not be deleted
};
using CommitListener = std::function<void(const CommitReport&)>;

struct JournalOptions {
  Retention retention;
  absl::Duration prune_interval = absl::Seconds(10);
  // An idle journal looks so often whether the store is still where it was.
  absl::Duration look_interval = absl::Seconds(1);
  // After a failure.
  absl::Duration prune_retry_interval = absl::Minutes(1);
  // Ended jobs that one commit makes entries of; others wait for it.
  size_t archive_max = 64;
  absl::Duration retry_delay_min = absl::Milliseconds(100);
  absl::Duration retry_delay_max = absl::Seconds(5);
};

// Thread-safe.
class Journal {
 public:
  // `clock`, which outlives the journal, says how old ended jobs are.
  Journal(std::unique_ptr<Backend> backend, JournalOptions options, const Clock& clock,
          CommitListener listener);
  // Commits what was appended, trying once, then ends.
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // None of these blocks.
  void Append(StoredRecord record) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes the stored records of a job that has ended its entry.
  void Archive(JobId job) ABSL_LOCKS_EXCLUDED(mu_);
  // Deletes the entry of an ended job, if there is one.
  void Delete(JobId job, uint64_t tag) ABSL_LOCKS_EXCLUDED(mu_);

  // For how long the commit under way has been at it; zero without one.
  absl::Duration committing_for() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // What is to be committed together.
  struct Work {
    Batch batch;  // its ended jobs are made of `archive`
    std::deque<JobId> archive;
    std::vector<JobId> archived;  // were in `archive`
    std::vector<std::pair<JobId, absl::Status>> not_archived;
    std::vector<uint64_t> tags;      // of batch.deleted
    uint64_t records = 0, last = 0;  // how many batch.records are or were, and the last's number
    bool empty() const { return batch.empty() && archive.empty(); }
  };

  void Run();
  // Waits for work, or until it is time to prune or to look. False: the journal ends.
  bool Take(Work& work) ABSL_LOCKS_EXCLUDED(mu_);
  // False: the journal ends.
  bool WaitForRetry(absl::Duration delay) ABSL_LOCKS_EXCLUDED(mu_);
  CommitReport Commit(Work& work);
  absl::Status TryCommit(Work& work);
  void NoteCommitting(std::optional<SteadyTime> since) ABSL_LOCKS_EXCLUDED(mu_);
  void Prune();

  // Constant after construction.
  const std::unique_ptr<Backend> backend_;  // used by thread_ alone
  const JournalOptions options_;
  const Clock& clock_;
  const CommitListener listener_;

  // Of thread_ alone.
  bool broken_ = false;  // the backend must be opened anew
  SteadyTime prune_at_, look_at_;

  mutable Mutex mu_;
  Waker waker_;  // of thread_
  Work appended_ ABSL_GUARDED_BY(mu_);
  std::optional<SteadyTime> committing_since_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  // Last member: joins before anything it reads is destroyed.
  std::jthread thread_;
};

}  // namespace phalanx::coordinator
