// coordinator/rpc/log_relay.h: log lines on their way from a worker's upload to whoever asked.
//
// A LogPipe belongs to one GetLogs call and collects the uploads of several nodes, each named by a
// fetch id. A pipe that is full tells the upload to wait and calls it back when there is room: a
// slow reader slows the worker's upload, never its session.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "core/base/mutex.h"
#include "phalanx/v1/job_service.pb.h"

namespace phalanx::coordinator {

// Thread-safe.
class LogPipe {
 public:
  static constexpr size_t kChunksMax = 16;
  static constexpr size_t kBytesMax = 1 << 20;

  // What the failure of one source means to the reader. A follower of several nodes would miss one
  // of them unseen for as long as the others write.
  enum class Failure : uint8_t { kEndsItsSource, kEndsAll };

  // `wake` is called, on any thread and under no lock, when there may be something to take.
  LogPipe(std::function<void()> wake, Failure failure)
      : wake_(std::move(wake)), failure_(failure) {}

  void AddSource(const std::string& fetch_id) ABSL_LOCKS_EXCLUDED(mu_);
  // No source will be added any more.
  void Seal() ABSL_LOCKS_EXCLUDED(mu_);
  // True: send more. False: wait for `resume`, which is called once. Chunks for a closed pipe
  // vanish.
  bool Push(v1::GetLogsResponse chunk, std::function<void()> resume) ABSL_LOCKS_EXCLUDED(mu_);
  void EndSource(const std::string& fetch_id, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // The reader is gone.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);
  bool closed() const ABSL_LOCKS_EXCLUDED(mu_);

  // The next chunk; or nothing, and then `end` is set if no more will come.
  std::optional<v1::GetLogsResponse> Take(std::optional<absl::Status>& end)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const std::function<void()> wake_;
  const Failure failure_;
  mutable Mutex mu_;
  std::deque<v1::GetLogsResponse> chunks_ ABSL_GUARDED_BY(mu_);
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::function<void()>> resumes_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> sources_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);  // of the first source that failed
  bool sealed_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

// Pipes by fetch id. Of a node at most kUploadsMax, half of what its daemon sends at one time: one
// more ends the oldest of the person who has most of them, whose reader is told so. Thread-safe.
class LogRelay {
 public:
  static constexpr size_t kUploadsMax = 16;

  struct Source {
    std::shared_ptr<LogPipe> pipe;
    std::string node;
    std::string person;  // who reads; empty in plaintext
  };
  void Add(const std::string& fetch_id, Source source) ABSL_LOCKS_EXCLUDED(mu_);
  // Nothing if nobody waits for it.
  std::optional<Source> Find(const std::string& fetch_id) const ABSL_LOCKS_EXCLUDED(mu_);
  void End(const std::string& fetch_id, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets every fetch of a pipe whose reader is gone.
  void Remove(const LogPipe* pipe) ABSL_LOCKS_EXCLUDED(mu_);
  size_t size() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Fetch {
    Source source;
    uint64_t number = 0;
  };
  // The oldest fetch of `of_node` among those of the person who has most of them.
  std::string MostReadLocked(const std::map<uint64_t, std::string>& of_node) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What is left to do, under no lock, for a fetch that is forgotten.
  Source TakeLocked(std::map<std::string, Fetch>::iterator fetch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  std::map<std::string, Fetch> fetches_ ABSL_GUARDED_BY(mu_);
  // Fetch ids of each node, oldest first.
  std::map<std::string, std::map<uint64_t, std::string>> nodes_ ABSL_GUARDED_BY(mu_);
  uint64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace phalanx::coordinator
