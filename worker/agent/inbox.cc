#include "worker/agent/inbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

namespace phalanx::agent {

Inbox::Inbox() : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void Inbox::Post(Event event) {
  MutexLock lock(&mutex_);
  events_.push_back(std::move(event));
  const uint64_t one = 1;
  // Fails only when the counter is full, and then it is readable anyway.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

std::vector<Event> Inbox::TakeAll() {
  MutexLock lock(&mutex_);
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t read_bytes = read(wake_.get(), &count, sizeof(count));
  return std::exchange(events_, {});
}

}  // namespace phalanx::agent
