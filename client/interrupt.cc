#include "client/interrupt.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

namespace phalanx::client {

Interrupt::Interrupt(std::initializer_list<int> signals, std::function<void(int)> notify)
    : notify_(std::move(notify)) {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : signals) sigaddset(&mask, signal);
  pthread_sigmask(SIG_BLOCK, &mask, &before_);
  signal_fd_ = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  stop_fd_ = eventfd(0, EFD_CLOEXEC);
  thread_ = std::thread([this] { Run(); });
}

Interrupt::~Interrupt() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(stop_fd_, &one, sizeof(one));
  thread_.join();
  close(signal_fd_);
  close(stop_fd_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void Interrupt::Run() {
  while (true) {
    pollfd fds[] = {{.fd = stop_fd_, .events = POLLIN, .revents = 0},
                    {.fd = signal_fd_, .events = POLLIN, .revents = 0}};
    if (poll(fds, 2, -1) < 0 && errno != EINTR) return;
    if ((fds[0].revents & POLLIN) != 0) return;
    signalfd_siginfo info;
    while (read(signal_fd_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
      notify_(static_cast<int>(info.ssi_signo));
    }
  }
}

}  // namespace phalanx::client
