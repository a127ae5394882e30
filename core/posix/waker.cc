#include "core/posix/waker.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace phalanx {

Waker::Waker() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void Waker::Wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then it is readable anyway.
  [[maybe_unused]] const ssize_t written = write(fd_.get(), &one, sizeof(one));
}

void Waker::Wait(absl::Duration timeout) {
  const timespec time = absl::ToTimespec(std::max(timeout, absl::ZeroDuration()));
  pollfd ready{fd_.get(), POLLIN, 0};
  if (ppoll(&ready, 1, &time, nullptr) <= 0) return;
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t bytes = read(fd_.get(), &count, sizeof(count));
}

}  // namespace phalanx
