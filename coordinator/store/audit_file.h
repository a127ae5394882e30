// coordinator/store/audit_file.h: lines of the audit in a file beside the store.
//
//   2026-01-31T12:00:00.123Z audit who=alice role=submitter method=SubmitJob job=7 outcome=OK
//
// Files are of bounded size and number: PATH, which is written, and PATH.1, PATH.2, ..., the older
// the higher. What lies under such a name and is no file, such as a folder, stays, and its number
// is left out. The owner alone may read them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/posix/unique_fd.h"

namespace phalanx::coordinator {

struct AuditFileOptions {
  // Of one file; the line that would go past it begins the next one.
  int64_t bytes_max = 8 << 20;
  // Files, the one that is written among them; at least 2. The oldest goes when there is one more.
  int count_max = 8;
};

// Whether a file may be written at `path`. Errors: FailedPrecondition: something else is there,
// such as a pipe, whose reader could hold up every change.
absl::Status CheckAuditPlace(const std::string& path);

// Thread-safe.
class AuditFile {
 public:
  // `changed`: called with the first failure, and with OK when lines are written again, by whoever
  // wrote; of two calls at a time the later one may come first.
  AuditFile(std::string path, AuditFileOptions options,
            std::function<void(const absl::Status&)> changed);

  // Returns when the system has the line, all of it: it is there also when this process is killed
  // then. Nothing is synced, so a machine that loses its power may lose the newest lines. One that
  // was not written leaves nothing of it, and the next that is written stands behind a line that
  // says how many were not. A file that is full and cannot be put aside stays as it is, and so do
  // all older ones but the oldest. Errors: Unavailable, with the path and the reason.
  absl::Status Append(absl::string_view line, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

  // How often a full file was put aside since the start. Waits for nobody.
  int64_t put_aside() const { return put_aside_; }

 private:
  absl::Status OpenLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Puts PATH aside, and opens another.
  absl::Status BeginNextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status WriteLocked(absl::string_view text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Failed(absl::string_view what) const;
  std::string NameOf(int number) const;

  const std::string path_;
  const AuditFileOptions options_;
  const std::function<void(const absl::Status&)> changed_;
  std::atomic<int64_t> put_aside_ = 0;
  // Held while the file is written: lines are whole.
  Mutex mu_;
  UniqueFd file_ ABSL_GUARDED_BY(mu_);
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;    // of the file that is open
  int64_t missing_ ABSL_GUARDED_BY(mu_) = 0;  // lines that were not written, and nobody was told of
};

}  // namespace phalanx::coordinator
