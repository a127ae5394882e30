// coordinator/store/audit_queue.h: lines of the audit on their way to their file.
//
// Who brings one does not wait for the disk: a thread of this object's own writes it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/store/audit_file.h"
#include "core/base/mutex.h"

namespace phalanx::coordinator {

struct AuditQueueOptions {
  // Lines that wait; as many may be in the thread's hands. One more is not taken.
  size_t lines_max = 4096;
};

// Thread-safe.
class AuditQueue {
 public:
  // `full`: called with the first line that is not taken since the thread has last taken those that
  // waited, by whoever brought it. `file` outlives this.
  AuditQueue(AuditFile& file, AuditQueueOptions options, std::function<void()> full);
  // Writes what was taken, as long as the disk takes for it.
  ~AuditQueue();
  AuditQueue(const AuditQueue&) = delete;
  AuditQueue& operator=(const AuditQueue&) = delete;

  // The line will be written behind those that were taken before it, with `now` as its time. Waits
  // for no disk. Errors: ResourceExhausted: it is not taken; behind the lines that wait will be one
  // that says how many were not.
  absl::Status Put(std::string line, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

  // Lines that were taken, and then could not be written, since the start. Waits for nobody.
  int64_t not_written() const { return not_written_; }

 private:
  struct Line {
    std::string text;
    absl::Time time;
  };
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  AuditFile& file_;
  const AuditQueueOptions options_;
  const std::function<void()> full_;
  std::atomic<int64_t> not_written_ = 0;
  Mutex mu_;
  CondVar changed_;
  std::vector<Line> waiting_ ABSL_GUARDED_BY(mu_);
  int64_t refused_ ABSL_GUARDED_BY(mu_) = 0;    // behind those that wait
  absl::Time refused_at_ ABSL_GUARDED_BY(mu_);  // of the last of them
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  // Last member: joins before anything it reads is destroyed.
  std::jthread thread_;
};

}  // namespace phalanx::coordinator
