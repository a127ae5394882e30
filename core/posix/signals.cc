#include "core/posix/signals.h"

#include <execinfo.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <array>
#include <atomic>

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

// Only what a handler may call; backtrace() may once its library is loaded.
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
  std::array<void*, kFramesMax> frames;
  const int count = backtrace(frames.data(), kFramesMax);
  backtrace_symbols_fd(frames.data(), count, STDERR_FILENO);
  EndBy(fault);
}

void TellNoMore(int) { EndBy(told_of); }

}  // namespace

void LetWritesFail() {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

void TellOfFaults() {
  void* loads_the_library = nullptr;
  backtrace(&loads_the_library, 1);
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

}  // namespace phalanx
