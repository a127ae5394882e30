// worker/comm/lost_message.h: a message that a rank loses on its way out, on demand.
#pragma once

#include <atomic>

namespace phalanx::comm {

// Thread-safe.
class LostMessage {
 public:
  // The next message to a peer is lost.
  void LoseNext() { wanted_.store(true, std::memory_order_relaxed); }
  // None is, if it has not been.
  void Forget() { wanted_.store(false, std::memory_order_relaxed); }
  // Whether it is this one; once.
  bool Take() {
    return wanted_.load(std::memory_order_relaxed) &&
           wanted_.exchange(false, std::memory_order_relaxed);
  }

 private:
  std::atomic<bool> wanted_ = false;
};

}  // namespace phalanx::comm
