#include "worker/agent/spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "worker/channel/frame_socket.h"

namespace phalanx::agent {
namespace {

// Our descriptors stay above those that the child is given, so that no dup2 overwrites one.
constexpr int kLowestFd = 10;

absl::Status SystemError(absl::string_view what, int error) {
  const std::string message = absl::StrCat(what, ": ", strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(message);
  return absl::UnavailableError(message);
}

absl::StatusOr<UniqueFd> Raised(UniqueFd fd) {
  UniqueFd raised(fcntl(fd.get(), F_DUPFD_CLOEXEC, kLowestFd));
  if (!raised.is_open()) return SystemError("no file descriptor left", errno);
  return raised;
}

struct Pair {
  UniqueFd ours, theirs;
};

absl::StatusOr<Pair> MakePipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return SystemError("cannot make a pipe", errno);
  UniqueFd read_end(fds[0]), write_end(fds[1]);
  ASSIGN_OR_RETURN(UniqueFd ours, Raised(std::move(read_end)));
  ASSIGN_OR_RETURN(UniqueFd theirs, Raised(std::move(write_end)));
  return Pair{std::move(ours), std::move(theirs)};
}

absl::StatusOr<Pair> MakeSocketPair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
    return SystemError("cannot make a socket pair", errno);
  }
  UniqueFd first(fds[0]), second(fds[1]);
  ASSIGN_OR_RETURN(UniqueFd ours, Raised(std::move(first)));
  ASSIGN_OR_RETURN(UniqueFd theirs, Raised(std::move(second)));
  return Pair{std::move(ours), std::move(theirs)};
}

// Whether a core of this process, and of the program that it becomes, has none of its memory.
bool KeepMemoryOutOfCores() {
  const int filter = open("/proc/self/coredump_filter", O_WRONLY | O_CLOEXEC);
  if (filter < 0) return errno == ENOENT;  // a kernel that makes no cores
  const bool set = write(filter, "0", 1) == 1;
  close(filter);
  return set;
}

// A limit of 0 bytes keeps the kernel from writing a file, and not from handing a core to a program
// (`|` in kernel.core_pattern); one of 1 byte keeps it from both.
bool LeaveNoCore() {
  const rlimit one_byte{1, 1};  // nobody raises it again
  if (setrlimit(RLIMIT_CORE, &one_byte) == 0) return true;
  // It is 0 already, which whoever has no privilege cannot raise.
  const rlimit none{0, 0};
  return setrlimit(RLIMIT_CORE, &none) == 0 && KeepMemoryOutOfCores();
}

// Between fork and exec: the daemon has other threads, so only what is async-signal-safe. Writes
// errno to `failure` if it cannot go on.
[[noreturn]] void BecomeRank(const char* program, char* const* arguments, char* const* environment,
                             pid_t parent, int channel, int life, int output, int failure,
                             bool leaves_no_core) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The daemon may have ended before the line above took effect.
  if (getppid() != parent) _exit(127);
  struct sigaction defaults;
  memset(&defaults, 0, sizeof(defaults));
  defaults.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) sigaction(number, &defaults, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = open("/dev/null", O_RDONLY);
  const bool placed = null >= 0 && dup2(null, 0) >= 0 && dup2(output, 1) >= 0 &&
                      dup2(output, 2) >= 0 && dup2(channel, channel::kRankChannelFd) >= 0 &&
                      dup2(life, channel::kLifePageFd) >= 0;
  if (placed && (!leaves_no_core || LeaveNoCore())) {
    syscall(SYS_close_range, channel::kLifePageFd + 1, ~0u, 1u << 2);  // CLOSE_RANGE_CLOEXEC
    execve(program, arguments, environment);
  }
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(failure, &error, sizeof(error));
  _exit(127);
}

// The caller's variables but for those of `own`, and those. Pointers into both.
std::vector<char*> EnvironmentWith(const std::vector<std::string>& own) {
  const auto replaced = [&own](absl::string_view variable) {
    const absl::string_view name = variable.substr(0, variable.find('=') + 1);
    return std::any_of(own.begin(), own.end(),
                       [name](const std::string& other) { return absl::StartsWith(other, name); });
  };
  std::vector<char*> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!replaced(*variable)) variables.push_back(*variable);
  }
  // execve() takes them as they are, and changes none.
  for (const std::string& variable : own) variables.push_back(const_cast<char*>(variable.c_str()));
  variables.push_back(nullptr);
  return variables;
}

}  // namespace

absl::StatusOr<Spawned> SpawnRank(const std::string& program,
                                  const std::vector<std::string>& environment,
                                  std::vector<std::string> arguments, bool leaves_no_core) {
  ASSIGN_OR_RETURN(Pair channel, MakeSocketPair());
  ASSIGN_OR_RETURN(channel::LifePage::Made life, channel::LifePage::Make());
  ASSIGN_OR_RETURN(life.for_rank, Raised(std::move(life.for_rank)));
  ASSIGN_OR_RETURN(Pair output, MakePipe());
  ASSIGN_OR_RETURN(Pair failure, MakePipe());
  const size_t slash = program.rfind('/');
  std::string name = slash == std::string::npos ? program : program.substr(slash + 1);
  std::vector<char*> words = {name.data()};
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  const std::vector<char*> variables = EnvironmentWith(environment);
  const pid_t parent = getpid();

  Spawned spawned;
  spawned.pid = fork();
  if (spawned.pid < 0) return SystemError("cannot fork", errno);
  if (spawned.pid == 0) {
    BecomeRank(program.c_str(), words.data(), variables.data(), parent, channel.theirs.get(),
               life.for_rank.get(), output.theirs.get(), failure.theirs.get(), leaves_no_core);
  }
  setpgid(spawned.pid, spawned.pid);  // whichever of the two is first
  failure.theirs.reset();
  int error = 0;
  ssize_t n = 0;
  do {
    n = read(failure.ours.get(), &error, sizeof(error));
  } while (n < 0 && errno == EINTR);
  if (n == 0) {
    spawned.pidfd.reset(static_cast<int>(syscall(SYS_pidfd_open, spawned.pid, 0)));
    if (!spawned.pidfd.is_open()) {
      error = errno;
      kill(spawned.pid, SIGKILL);
    }
  }
  if (!spawned.pidfd.is_open()) {
    waitpid(spawned.pid, nullptr, 0);
    return SystemError(absl::StrCat("cannot run ", program), error);
  }
  spawned.channel = std::move(channel.ours);
  spawned.output = std::move(output.ours);
  spawned.life = std::move(life.page);
  for (const int fd : {spawned.channel.get(), spawned.output.get()}) {
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  }
  return spawned;
}

}  // namespace phalanx::agent
