// core/base/mutex.h: the locks of all our code.
//
// The standard library's, with the annotations that Clang's -Wthread-safety reads (lint/locks). Not
// Abseil's: Debian's waits by the wall clock, which an operator or NTP may set, and ThreadSanitizer
// does not see its locks. A wait here ends by the steady clock.
//
// Not for pure folders: tests/lint/layers.py refuses the include there.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

#ifndef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT
#error "this standard library turns steady deadlines into wall time"
#endif

namespace phalanx {

// Thread-safe.
class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a Mutex for the life of a scope.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_->Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

// Wakes may be spurious: callers wait in a loop on their condition. Thread-safe.
class CondVar {
 public:
  void Wait(Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock lock(mutex->mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // True: the deadline has passed.
  bool WaitUntil(Mutex* mutex, std::chrono::steady_clock::time_point deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock lock(mutex->mutex_, std::adopt_lock);
    const bool expired = condition_.wait_until(lock, deadline) == std::cv_status::timeout;
    lock.release();
    return expired;
  }
  void Signal() { condition_.notify_one(); }
  void SignalAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace phalanx
