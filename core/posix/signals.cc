#include "core/posix/signals.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <link.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>

namespace phalanx {
namespace {

constexpr int kFramesMax = 64;
constexpr unsigned int kTellingSecondsMax = 3;
constexpr time_t kThreadSecondsMax = 1;
constexpr size_t kStackBytes = 64 << 10;

struct Frames {
  std::array<void*, kFramesMax> at;
  int count = 0;
};

std::atomic<int> told_of{0};

// Only what a handler may call, from here to Tell(); backtrace() may once its library is loaded.
void Write(const char* text) {
  // Nothing is to be done about a standard error that takes nothing.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, strlen(text));
}

void WriteHex(uintptr_t value) {
  std::array<char, 2 * sizeof(value) + 1> text = {};
  size_t begin = text.size() - 1;
  do {
    text[--begin] = "0123456789abcdef"[value & 0xF];
    value >>= 4;
  } while (value != 0);
  Write("0x");
  Write(text.data() + begin);
}

// Without the names of functions, as backtrace_symbols_fd() finds them: it takes a lock of the
// loader, and milliseconds a frame of a large library, for which nobody learns of a death.
void WriteFrames(const Frames& frames) {
  for (int i = 0; i < frames.count; ++i) {
    void* const at = frames.at[static_cast<size_t>(i)];
    dl_find_object module;
    const bool found = _dl_find_object(at, &module) == 0;
    const link_map* const map = found ? module.dlfo_link_map : nullptr;
    if (map != nullptr) Write(*map->l_name == '\0' ? program_invocation_name : map->l_name);
    Write("(+");
    WriteHex(reinterpret_cast<uintptr_t>(at) - (map != nullptr ? map->l_addr : 0));
    Write(")\n");
  }
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

void TellNoMore(int) { EndBy(told_of); }

void Tell(int fault) {
  int none = 0;
  if (!told_of.compare_exchange_strong(none, fault)) {
    if (none == fault) pause();  // another thread tells of the same; it ends all
    EndBy(fault);
  }
  // From now on alone: whoever sends SIGALRM otherwise ends the process by it.
  signal(SIGALRM, TellNoMore);
  alarm(kTellingSecondsMax);
  Frames frames;
  frames.count = backtrace(frames.at.data(), kFramesMax);
  Write("*** ");
  Write(sigdescr_np(fault));
  Write(", by:\n");
  WriteFrames(frames);
  EndBy(fault);
}

void LoadBacktrace() {
  void* frame = nullptr;
  backtrace(&frame, 1);
}

// By which a thread is asked; libraries take the first of these.
int SignalOfThread() { return SIGRTMAX - 3; }

// Of the thread that tells when it is asked.
sem_t asked, told;
std::atomic<Frames*> wanted{nullptr};  // to be filled by the thread that is asked

void Ask(int) { sem_post(&asked); }

// No more than this, so that a thread stands still for no lock, and for nobody who reads.
void TellOfThread(int) {
  const int saved = errno;
  if (Frames* const frames = wanted.exchange(nullptr); frames != nullptr) {
    frames->count = backtrace(frames->at.data(), kFramesMax);
    sem_post(&told);
  }
  errno = saved;
}

// False: it blocks the signal, or is gone meanwhile.
bool AskThread(pid_t thread, Frames& frames) {
  wanted = &frames;
  if (syscall(SYS_tgkill, getpid(), thread, SignalOfThread()) == 0) {
    timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += kThreadSecondsMax;
    int waited = 0;
    while ((waited = sem_timedwait(&told, &until)) != 0 && errno == EINTR) continue;
    if (waited == 0) return true;
  }
  if (wanted.exchange(nullptr) != nullptr) return false;
  while (sem_wait(&told) != 0) continue;  // it has begun after all
  return true;
}

// One thread after the other, so that their lines stay apart.
void TellOfThreads() {
  std::error_code error;
  for (std::filesystem::directory_iterator task("/proc/self/task", error), end;
       !error && task != end; task.increment(error)) {
    const pid_t thread = static_cast<pid_t>(std::stol(task->path().filename()));
    if (thread == gettid()) continue;
    Frames frames;
    const bool stands = AskThread(thread, frames);
    Write(
        ("*** thread " + std::to_string(thread) + (stands ? " stands at:\n" : " does not answer\n"))
            .c_str());
    // This thread holds nobody up, so it may look for names.
    if (stands) backtrace_symbols_fd(frames.at.data(), frames.count, STDERR_FILENO);
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
