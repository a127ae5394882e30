// client/child.h: processes that must not outlive the one that made them.
//
// A child gets the signal mask of a fresh process, a process group of its own (Ctrl-C on the
// terminal reaches the parent alone, which ends its children in order), and SIGKILL when the thread
// that made it ends: so make children on a thread that lives as long as they do, the main one.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace phalanx::client {

// Not thread-safe.
class Child {
 public:
  // Starts argv[0] (a path) with `log` as its stdout and stderr; empty: the parent's.
  // Errors: NotFound or what else keeps it from being executed.
  static absl::StatusOr<Child> Start(const std::vector<std::string>& argv, const std::string& log);

  Child() = default;
  Child(Child&& other) noexcept : pid_(other.pid_) { other.pid_ = 0; }
  Child& operator=(Child&& other) noexcept;
  // Kills and reaps what still runs.
  ~Child();

  pid_t pid() const { return pid_; }
  // Whether it has ended; it stays to be reaped.
  bool Ended() const { return HasEnded(pid_); }
  // The same for the process that was started as `pid`; from any thread.
  static bool HasEnded(pid_t pid);
  // SIGTERM, then SIGKILL to its group after `grace`, or as soon as `hurry` is set; reaps. Returns
  // the wait status; 0 for none.
  int End(absl::Duration grace, const std::atomic<bool>* hurry = nullptr);

 private:
  explicit Child(pid_t pid) : pid_(pid) {}

  pid_t pid_ = 0;
};

// Runs a program to its end with the parent's streams; its exit code (128 + signal if it died).
absl::StatusOr<int> RunAndWait(const std::vector<std::string>& argv);

}  // namespace phalanx::client
