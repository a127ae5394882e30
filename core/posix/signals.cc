#include "core/posix/signals.h"

#include <errno.h>
#include <execinfo.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>

namespace phalanx {
namespace {

constexpr int kFramesMax = 64;
constexpr unsigned int kTellingSecondsMax = 3;
constexpr size_t kStackBytes = 64 << 10;

std::atomic<int> told_of{0};

void Write(const char* text) {
  // Nothing is to be done about a standard error that takes nothing.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, strlen(text));
}

[[noreturn]] void EndBy(int fault) {
  signal(fault, SIG_DFL);
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, fault);
  pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
  raise(fault);
  _exit(128 + fault);
}

// By which a thread is asked; libraries take the first of these.
int SignalOfThread() { return SIGRTMAX - 3; }

// Only what a handler may call; backtrace() may once its library is loaded.
void WriteFrames() {
  std::array<void*, kFramesMax> frames;
  const int count = backtrace(frames.data(), kFramesMax);
  backtrace_symbols_fd(frames.data(), count, STDERR_FILENO);
}

void LoadBacktrace() {
  void* frame = nullptr;
  backtrace(&frame, 1);
}

void Tell(int fault) {
  int none = 0;
  if (!told_of.compare_exchange_strong(none, fault)) {
    if (none == fault) pause();  // another thread tells of the same; it ends all
    EndBy(fault);
  }
  alarm(kTellingSecondsMax);
  Write("*** ");
  Write(sigdescr_np(fault));
  Write(", by:\n");
  WriteFrames();
  EndBy(fault);
}

void TellNoMore(int) { EndBy(told_of); }

// Of the thread that tells when it is asked.
sem_t asked, told;

void Ask(int) { sem_post(&asked); }
void TellOfThread(int) {
  const int saved = errno;
  WriteFrames();
  sem_post(&told);
  errno = saved;
}

// One thread after the other, so that their lines stay apart. One that blocks the signal, or is
// gone meanwhile, is left out.
void TellOfThreads() {
  std::error_code error;
  for (std::filesystem::directory_iterator task("/proc/self/task", error), end;
       !error && task != end; task.increment(error)) {
    const pid_t thread = static_cast<pid_t>(std::stol(task->path().filename()));
    if (thread == gettid()) continue;
    Write(("*** thread " + std::to_string(thread) + " stands at:\n").c_str());
    if (syscall(SYS_tgkill, getpid(), thread, SignalOfThread()) != 0) continue;
    timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    while (sem_timedwait(&told, &until) != 0 && errno == EINTR) continue;
  }
}

}  // namespace

void LetWritesFail() {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

void TellOfFaults() {
  LoadBacktrace();
  // Where a stack has run over there is no room on it: of the thread that calls this.
  static std::array<char, kStackBytes> memory;
  const stack_t stack = {.ss_sp = memory.data(), .ss_flags = 0, .ss_size = memory.size()};
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_flags = SA_ONSTACK;
  action.sa_handler = Tell;
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT})
    sigaction(fault, &action, nullptr);
  action.sa_handler = TellNoMore;
  sigaction(SIGALRM, &action, nullptr);
}

void TellWhenAsked() {
  LoadBacktrace();
  sem_init(&asked, 0, 0);
  sem_init(&told, 0, 0);
  struct sigaction action = {};
  action.sa_flags = SA_RESTART;
  action.sa_handler = TellOfThread;
  sigaction(SignalOfThread(), &action, nullptr);
  action.sa_handler = Ask;
  sigaction(SIGQUIT, &action, nullptr);
  std::thread([] {
    while (true) {
      while (sem_wait(&asked) != 0) continue;
      TellOfThreads();
    }
  }).detach();
}

}  // namespace phalanx
