// tests/e2e/matrix/thread_hold.h: one thread of another process is held while the others go on.
#pragma once

#include <sys/types.h>

namespace phalanx::e2e {

// Holds the thread from here on, wherever it is, until it is destroyed. Ends with an exception
// where this is not allowed.
class ThreadHold {
 public:
  explicit ThreadHold(pid_t thread);
  ~ThreadHold();
  ThreadHold(ThreadHold&& other) noexcept;
  ThreadHold& operator=(ThreadHold&&) = delete;

 private:
  pid_t thread_;
};

}  // namespace phalanx::e2e
