#include "tests/e2e/matrix/thread_hold.h"

#include <sys/ptrace.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/process.h"

namespace phalanx::e2e {

ThreadHold::ThreadHold(pid_t thread) : thread_(thread) {
  const auto require = [](bool condition, const char* what) {
    support::Require(condition, absl::StrCat(what, ": ", strerror(errno)));
  };
  require(ptrace(PTRACE_SEIZE, thread_, nullptr, nullptr) == 0, "a thread cannot be traced");
  require(ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr) == 0, "a thread cannot be held");
  int status = 0;
  require(waitpid(thread_, &status, __WALL) == thread_ && WIFSTOPPED(status),
          "a thread does not stand still");
}

ThreadHold::ThreadHold(ThreadHold&& other) noexcept : thread_(std::exchange(other.thread_, -1)) {}

// A call that it was in is begun again.
ThreadHold::~ThreadHold() {
  if (thread_ > 0) ptrace(PTRACE_DETACH, thread_, nullptr, nullptr);
}

}  // namespace phalanx::e2e
