#include "worker/agent/death_watch.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "absl/time/time.h"

namespace phalanx::agent {
namespace {

// Nobody can wake a thread that waits for a mutex of another process; it looks up now and then.
constexpr absl::Duration kLookInterval = absl::Seconds(1);

}  // namespace

DeathWatch::DeathWatch(channel::LifePage page)
    : page_(std::move(page)), died_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

DeathWatch::~DeathWatch() = default;

void DeathWatch::Begin() {
  if (thread_.joinable() || !page_.was_held()) return;
  thread_ = std::jthread([this](std::stop_token stop) { Watch(std::move(stop)); });
}

void DeathWatch::Watch(std::stop_token stop) {
  while (!stop.stop_requested()) {
    const channel::LifePage::End end = page_.AwaitEnd(kLookInterval);
    if (end == channel::LifePage::End::kNone) continue;
    const uint64_t one = 1;
    if (end == channel::LifePage::End::kDied) [[maybe_unused]]
      const ssize_t written = write(died_.get(), &one, sizeof(one));
    return;
  }
}

}  // namespace phalanx::agent
