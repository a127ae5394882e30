// coordinator/store/journal.h: group commit. Appended records gather while the one before is being
// written, and the next commit takes them all.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/store/backend.h"
#include "core/base/mutex.h"

namespace phalanx::coordinator {

// Called on the journal's thread after each commit. OK: all records up to `last` are on disk. An
// error is final: nothing after it is ever stored.
struct CommitReport {
  absl::Status status;
  uint64_t last = 0;
  uint64_t records = 0;
  absl::Duration duration;
};
using CommitListener = std::function<void(const CommitReport&)>;

// Thread-safe.
class Journal {
 public:
  Journal(std::unique_ptr<Backend> backend, CommitListener listener);
  // Commits what was appended, then ends.
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Never blocks. The caller bounds what it appends: it has few decisions that nobody has been told
  // of.
  void Append(StoredRecord record) ABSL_LOCKS_EXCLUDED(mu_);

  // Records appended and not yet committed.
  size_t pending() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run();

  // Constant after construction.
  const std::unique_ptr<Backend> backend_;  // used by thread_ alone
  const CommitListener listener_;

  mutable Mutex mu_;
  CondVar changed_;
  std::vector<StoredRecord> appended_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  // Last member: joins before anything it reads is destroyed.
  std::jthread thread_;
};

}  // namespace phalanx::coordinator
