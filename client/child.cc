#include "client/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace phalanx::client {
namespace {

constexpr absl::Duration kReapInterval = absl::Milliseconds(10);

// After fork, in a process that may have had threads: only what is safe in a signal handler.
[[noreturn]] void BecomeProgram(char* const* argv, const char* log, pid_t parent, bool own_group,
                                int error_fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);  // the parent ended before it could be noticed
  if (own_group) setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (log != nullptr) {
    const int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0644);
    const int nothing = open("/dev/null", O_RDONLY);
    if (fd >= 0 && nothing >= 0) {
      dup2(nothing, STDIN_FILENO);
      dup2(fd, STDOUT_FILENO);
      dup2(fd, STDERR_FILENO);
    }
  }
  execv(argv[0], argv);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(error_fd, &error, sizeof(error));
  _exit(127);
}

absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& argv, const std::string& log,
                            bool own_group) {
  std::vector<char*> raw;
  for (const std::string& argument : argv) raw.push_back(const_cast<char*>(argument.c_str()));
  raw.push_back(nullptr);
  // The write end closes at exec: an end of file says that the program runs.
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return absl::InternalError("cannot make a pipe");
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    BecomeProgram(raw.data(), log.empty() ? nullptr : log.c_str(), parent, own_group, fds[1]);
  }
  close(fds[1]);
  int error = 0;
  const ssize_t got = pid > 0 ? read(fds[0], &error, sizeof(error)) : 0;
  close(fds[0]);
  if (pid < 0)
    return absl::ResourceExhaustedError(
        "cannot make a process: end others, or raise the limit on them (ulimit -u)");
  if (got == static_cast<ssize_t>(sizeof(error))) {
    waitpid(pid, nullptr, 0);
    const std::string message = absl::StrCat(argv[0], ": ", std::strerror(error));
    return error == ENOENT ? absl::NotFoundError(message) : absl::FailedPreconditionError(message);
  }
  return pid;
}

}  // namespace

absl::StatusOr<Child> Child::Start(const std::vector<std::string>& argv, const std::string& log) {
  absl::StatusOr<pid_t> pid = Spawn(argv, log, /*own_group=*/true);
  if (!pid.ok()) return pid.status();
  return Child(*pid);
}

Child& Child::operator=(Child&& other) noexcept {
  std::swap(pid_, other.pid_);
  return *this;
}

Child::~Child() { End(absl::ZeroDuration()); }

bool Child::HasEnded(pid_t pid) {
  if (pid == 0) return true;
  siginfo_t info;
  info.si_pid = 0;
  return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         info.si_pid != 0;
}

int Child::End(absl::Duration grace, const std::atomic<bool>* hurry) {
  if (pid_ == 0) return 0;
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(grace);
  kill(pid_, SIGTERM);
  while (!Ended() && std::chrono::steady_clock::now() < deadline && !(hurry != nullptr && *hurry)) {
    absl::SleepFor(kReapInterval);
  }
  // Also what it left in its group; the group cannot be another's before the child is reaped.
  kill(-pid_, SIGKILL);
  kill(pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  return status;
}

absl::StatusOr<int> RunAndWait(const std::vector<std::string>& argv) {
  const absl::StatusOr<pid_t> pid = Spawn(argv, "", /*own_group=*/false);
  if (!pid.ok()) return pid.status();
  int status = 0;
  while (waitpid(*pid, &status, 0) < 0) {
    if (errno != EINTR) return absl::InternalError("cannot wait for a process");
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace phalanx::client
