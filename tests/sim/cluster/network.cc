#include "tests/sim/cluster/network.h"

#include <utility>

namespace phalanx::sim {

absl::Duration Network::Delay() {
  if (timeline_.Chance(0.02))
    return timeline_.Between(absl::Milliseconds(1), absl::Milliseconds(200));
  return timeline_.Between(absl::Microseconds(30), absl::Microseconds(600));
}

absl::Duration Network::LocalDelay() {
  if (timeline_.Chance(0.02))
    return timeline_.Between(absl::Milliseconds(1), absl::Milliseconds(50));
  return timeline_.Between(absl::Microseconds(5), absl::Microseconds(100));
}

void Network::Once(std::function<bool()> reaches, std::function<void()> what) {
  if (reaches()) return what();
  timeline_.After(
      timeline_.Between(absl::Milliseconds(200), absl::Seconds(1)),
      [this, reaches = std::move(reaches), what = std::move(what)] { Once(reaches, what); });
}

void Pipe::Send(std::function<void()> deliver) {
  if (broken_) return;
  queue_.push_back(std::move(deliver));
  if (pumping_) return;
  pumping_ = true;
  timeline_.After(network_.Delay(), [self = shared_from_this()] { self->Pump(); });
}

void Pipe::Pump() {
  pumping_ = false;
  if (broken_ || queue_.empty()) return;
  absl::Duration next;
  if (timeline_.now() < held_until_) {
    next = held_until_ - timeline_.now();
  } else if (!reaches_()) {
    if (blocked_since_ == absl::InfiniteFuture()) blocked_since_ = timeline_.now();
    // What gRPC's keepalive or the kernel's retransmissions take to give up.
    if (timeline_.now() - blocked_since_ > timeline_.Between(absl::Seconds(10), absl::Seconds(40)))
      return given_up_();
    next = timeline_.Between(absl::Milliseconds(200), absl::Seconds(1));
  } else {
    blocked_since_ = absl::InfiniteFuture();
    const std::function<void()> deliver = std::move(queue_.front());
    queue_.pop_front();
    deliver();
    if (broken_ || queue_.empty()) return;
    next = timeline_.Between(absl::Microseconds(5), absl::Microseconds(100));
  }
  if (pumping_) return;
  pumping_ = true;
  timeline_.After(next, [self = shared_from_this()] { self->Pump(); });
}

}  // namespace phalanx::sim
