// worker/agent/log_spool.h: what ranks write to stdout and stderr, on disk, with a cap.
//
// STATE/stores/STORE/jobs/JOB/EPOCH/rank-R.log is the newest part; when it has reached half of the
// cap it becomes rank-R.log.1, replacing the one before, so between half and all of the cap is
// kept, always the newest. Of jobs the newest kJobsMax keep their logs, of a job its newest
// kEpochsMax epochs. Jobs are numbered within a store of a coordinator, so logs are kept by store,
// and only those of the present one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/base/mutex.h"
#include "core/posix/unique_fd.h"

namespace phalanx::agent {

inline constexpr size_t kJobsMax = 100, kEpochsMax = 256;

// STATE/stores/STORE, the number in hexadecimal: what is kept of a store's jobs. `folder` below.
std::string StoreFolder(const std::string& state, uint64_t store);
// Removes what is kept of other stores.
void RemoveOtherStores(const std::string& state, uint64_t store);

// One rank of one epoch. Not thread-safe.
class LogSpool {
 public:
  // Creates the folders; continues a file that is there. With the first file of an epoch those of
  // the oldest epochs that are too many are removed, of at most 8. Errors: Unavailable.
  static absl::StatusOr<std::unique_ptr<LogSpool>> Open(const std::string& folder, JobId job,
                                                        Epoch epoch, int32_t rank,
                                                        int64_t bytes_max);

  // What a disk that takes no more has lost of a text.
  struct Lost {
    int64_t bytes = 0;
    int error = 0;  // an errno
  };
  // Does not wait for such a disk: training matters more.
  Lost Append(absl::string_view text);
  // The last whole lines within `bytes_max`, or the end of the last line where it alone is longer.
  std::string Tail(size_t bytes_max) const;

 private:
  LogSpool(std::string path, int64_t bytes_max) : path_(std::move(path)), bytes_max_(bytes_max) {}

  const std::string path_;
  const int64_t bytes_max_;
  UniqueFd file_;
  int64_t bytes_ = 0;
};

struct LogFile {
  std::string path;
  Epoch epoch;
  uint64_t identity = 0;
};
// Of an open file, whatever its name; 0: it cannot be told. Its inode, and where the file system
// has one its generation: the inode of a file that is gone is the next one's.
uint64_t IdentityOf(int file);
// The files of one rank, oldest text first.
std::vector<LogFile> LogFiles(const std::string& folder, JobId job, int32_t rank);
// Ranks that have files, ascending.
std::vector<int32_t> LoggedRanks(const std::string& folder, JobId job);
// Removes the logs of all but the newest kJobsMax jobs and those in `keep`.
void RemoveOldLogs(const std::string& folder, const std::vector<JobId>& keep);

// Wakes those who follow logs. Thread-safe.
class LogActivity {
 public:
  void ProcessBegan(JobId job);
  void ProcessEnded(JobId job);
  void TextAppended();
  // Lets those who wait look at their clock: their deadlines are of one that may be set.
  void Tick();
  // Nobody will wait any more.
  void Close();

  uint64_t version() const;
  bool IsLive(JobId job) const;
  // Jobs with processes.
  std::vector<JobId> LiveJobs() const;
  bool closed() const;
  // Returns when something happened after `version` was taken, or after `patience`.
  void WaitBeyond(uint64_t version, absl::Duration patience) const;

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  uint64_t version_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<JobId, int32_t> processes_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace phalanx::agent
