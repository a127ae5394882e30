// core/base/mutex.h: locks that ThreadSanitizer can see.
//
// Debian's Abseil is built without ThreadSanitizer and waits on futexes of its own, so a sanitized
// program that locks an absl::Mutex looks unlocked to it. These types are absl::Mutex, MutexLock
// and CondVar that say what they do; in every other build they add nothing. Code that is meant to
// pass under the tsan preset takes its locks from here.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#define PHALANX_TSAN(call) call
#else
#define PHALANX_TSAN(call) static_cast<void>(0)
#endif

namespace phalanx {

// Thread-safe.
class ABSL_LOCKABLE Mutex {
 public:
  Mutex() { PHALANX_TSAN(__tsan_mutex_create(this, __tsan_mutex_not_static)); }
  ~Mutex() { PHALANX_TSAN(__tsan_mutex_destroy(this, __tsan_mutex_not_static)); }
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    PHALANX_TSAN(__tsan_mutex_pre_lock(this, 0));
    mutex_.Lock();
    PHALANX_TSAN(__tsan_mutex_post_lock(this, 0, 0));
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    PHALANX_TSAN(__tsan_mutex_pre_unlock(this, 0));
    mutex_.Unlock();
    PHALANX_TSAN(__tsan_mutex_post_unlock(this, 0));
  }

 private:
  friend class CondVar;
  absl::Mutex mutex_;
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
    WaitWithDeadline(mutex, absl::InfiniteFuture());
  }
  // True: the deadline has passed.
  bool WaitWithDeadline(Mutex* mutex, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    PHALANX_TSAN(__tsan_mutex_pre_unlock(mutex, 0));
    PHALANX_TSAN(__tsan_mutex_post_unlock(mutex, 0));
    const bool expired = condition_.WaitWithDeadline(&mutex->mutex_, deadline);
    PHALANX_TSAN(__tsan_mutex_pre_lock(mutex, 0));
    PHALANX_TSAN(__tsan_mutex_post_lock(mutex, 0, 0));
    return expired;
  }
  void Signal() { condition_.Signal(); }
  void SignalAll() { condition_.SignalAll(); }

 private:
  absl::CondVar condition_;
};

}  // namespace phalanx
