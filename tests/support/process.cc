#include "tests/support/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/support/files.h"
#include "tests/support/paths.h"

namespace phalanx::support {
namespace {

constexpr char kMarkName[] = "PHALANX_TEST_MARK";

int MillisecondsUntil(absl::Time deadline) {
  const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now() + absl::Microseconds(999));
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

pid_t Start(const std::vector<std::string>& argv, const std::string& mark, const std::string& out,
            const std::string& talk) {
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const std::string marked = absl::StrCat(kMarkName, "=", mark);
  std::vector<char*> environment = {const_cast<char*>(marked.c_str())};
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(nullptr);
  const int out_fd = open(out.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const int talk_fd = open(talk.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  Require(out_fd >= 0 && talk_fd >= 0, absl::StrCat("cannot open ", out, " and ", talk));
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    dup2(out_fd, STDOUT_FILENO);
    dup2(talk_fd, STDERR_FILENO);
    execve(arguments[0], arguments.data(), environment.data());
    _exit(127);
  }
  close(out_fd);
  close(talk_fd);
  Require(pid > 0, "cannot fork");
  return pid;
}

bool AllThreadsHaveStopped(pid_t pid) {
  std::error_code gone;
  for (const auto& thread :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"), gone)) {
    const std::string stat = ReadText(thread.path() / "stat");
    const size_t behind_name = stat.rfind(") ");
    if (behind_name == std::string::npos || stat.substr(behind_name + 2, 1) != "T") return false;
  }
  return !gone;
}

}  // namespace

void Require(bool condition, const std::string& message) {
  if (!condition) throw std::runtime_error(message);
}

ProcessWatch::ProcessWatch(pid_t pid)
    : pid_(pid), descriptor_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {}

ProcessWatch::ProcessWatch(ProcessWatch&& other) noexcept
    : pid_(other.pid_), descriptor_(std::exchange(other.descriptor_, -1)) {}

ProcessWatch::~ProcessWatch() {
  if (descriptor_ >= 0) close(descriptor_);
}

bool ProcessWatch::AwaitEnd(absl::Duration patience) const {
  if (descriptor_ < 0) return true;  // it was gone before we looked
  const absl::Time deadline = absl::Now() + patience;
  while (true) {
    pollfd entry{descriptor_, POLLIN, 0};
    const int ready = poll(&entry, 1, MillisecondsUntil(deadline));
    if (ready >= 0 || errno != EINTR) return ready == 1;
  }
}

void ProcessWatch::Stop() const {
  Require(kill(pid_, SIGSTOP) == 0, "the process to be stopped is gone");
  const absl::Time deadline = absl::Now() + kPatience;
  while (!AllThreadsHaveStopped(pid_)) {
    Require(!AwaitEnd(absl::Milliseconds(1)), "the process to be stopped has ended");
    Require(absl::Now() < deadline, absl::StrCat("process ", pid_, " does not stop"));
  }
}

Process::Process(const std::vector<std::string>& argv, const std::string& mark,
                 const std::string& out, const std::string& talk)
    : watch_(Start(argv, mark, out, talk)) {}

Process::~Process() {
  if (reaped_) return;
  kill(pid(), SIGKILL);
  waitpid(pid(), nullptr, 0);
}

void Process::Signal(int number) const {
  Require(!reaped_ && kill(pid(), number) == 0, "the process to be signalled is gone");
  if (number == SIGSTOP) AwaitStop();
}

// The kernel tells the parent once the last thread has stopped.
void Process::AwaitStop() const {
  const absl::Time deadline = absl::Now() + kPatience;
  siginfo_t stopped{};
  while (waitid(P_PID, static_cast<id_t>(pid()), &stopped, WSTOPPED | WNOHANG) == 0 &&
         stopped.si_pid == 0) {
    Require(!watch_.AwaitEnd(absl::Milliseconds(1)), "the process to be stopped has ended");
    Require(absl::Now() < deadline, absl::StrCat("process ", pid(), " does not stop"));
  }
}

int Process::Wait() {
  if (reaped_) return status_;
  Require(watch_.AwaitEnd(), absl::StrCat("process ", pid(), " does not end"));
  Require(waitpid(pid(), &status_, 0) == pid(), "cannot reap");
  reaped_ = true;
  return status_;
}

int Process::WaitExitCode() {
  const int status = Wait();
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string Program(const std::string& name) {
  return name.find('/') == name.npos ? absl::StrCat(tests::BinDir(), "/", name) : name;
}

Finished RunToEnd(const std::vector<std::string>& argv) {
  const std::string folder = MakeFolder("run");
  Process process(argv, NewMark(), folder + "/out", folder + "/talk");
  Finished finished{.exit_code = process.WaitExitCode()};
  finished.out = ReadText(folder + "/out");
  finished.talk = ReadText(folder + "/talk");
  return finished;
}

namespace {

// Until `there` is true, looked at anew whenever something in the folder of `path` changes.
void AwaitChange(const std::string& path, const Process& writer, const std::string& what,
                 const std::function<bool()>& there) {
  const absl::Time deadline = absl::Now() + kPatience;
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int notifier = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  // Watched before the first look, so that no change falls in between.
  const bool watched =
      inotify_add_watch(notifier, folder.c_str(), IN_MOVED_TO | IN_CREATE | IN_MODIFY) >= 0;
  bool found = false, ended = false;
  while (watched && !(found = there()) && !ended && absl::Now() < deadline) {
    pollfd entries[2] = {{notifier, POLLIN, 0}, {writer.watch().descriptor(), POLLIN, 0}};
    poll(entries, 2, MillisecondsUntil(deadline));
    ended = entries[1].revents != 0;
    char events[4096];
    while (read(notifier, events, sizeof(events)) > 0) {
    }
  }
  close(notifier);
  Require(watched, absl::StrCat("cannot watch ", folder));
  Require(found || there(), absl::StrCat(what, ended ? ": its writer ended" : " does not appear"));
}

}  // namespace

void AwaitFile(const std::string& path, const Process& writer) {
  AwaitChange(path, writer, path, [&] { return std::filesystem::exists(path); });
}

void AwaitText(const std::string& path, const std::string& text, const Process& writer) {
  AwaitChange(path, writer, absl::StrCat("\"", text, "\" in ", path),
              [&] { return ReadText(path).find(text) != std::string::npos; });
}

std::vector<pid_t> ProcessesMarked(const std::string& mark) {
  const std::string wanted = absl::StrCat(kMarkName, "=", mark);
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    const std::string environment = ReadText(entry.path().string() + "/environ");
    const size_t at = environment.find(wanted);
    if (at != std::string::npos && environment[at + wanted.size()] == '\0') found.push_back(pid);
  }
  return found;
}

std::string NewMark() {
  static int count = 0;
  return absl::StrCat(getpid(), "-", absl::ToUnixNanos(absl::Now()), "-", ++count);
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace phalanx::support
