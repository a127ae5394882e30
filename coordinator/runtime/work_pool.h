// coordinator/runtime/work_pool.h: threads for what takes long, so that no thread that serves
// others does it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "core/base/mutex.h"

namespace phalanx::coordinator {

// Thread-safe.
class WorkPool {
 public:
  // Called exactly once. OK: on a thread of the pool, to do the work. ResourceExhausted (too much
  // waits) or Unavailable (the pool has stopped): it is not to be done.
  using Work = std::function<void(const absl::Status& go)>;

  // kBehind: work that takes long leaves the processor to those that serve, where there are too
  // few.
  enum class Priority : uint8_t { kServing, kBehind };
  // The threads are named so (15 bytes at most).
  WorkPool(const std::string& name, Priority priority, int32_t threads, size_t waiting_max);
  ~WorkPool() { Stop(); }
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // Of one owner one is done at a time, whatever the threads, and a third of those that may wait
  // does, rounded up: nobody else waits for all threads, or finds no room. Empty: of nobody, as
  // many as there are.
  void Add(Work work, std::string owner = {}) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits for what is under way and refuses what waits, and whatever comes later. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Waiting {
    Work work;
    std::string owner;
  };
  // Whether one more of the owner's has no room.
  bool IsFull(const std::string& owner) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The first whose owner has none under way; waiting_.end(): there is none.
  std::deque<Waiting>::iterator Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const std::string name_;
  const Priority priority_;
  const size_t waiting_max_;

  Mutex mu_;
  CondVar changed_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> busy_ ABSL_GUARDED_BY(mu_);  // owners whose work is under way
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::jthread> threads_;  // written by the constructor and Stop alone
};

}  // namespace phalanx::coordinator
