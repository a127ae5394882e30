// worker/comm/transport.h: tagged messages among the ranks of one epoch, under the CPU
// communicators.
//
// A message is named by (source, destination, tag), and a name is used once; so neither order nor
// size decides what belongs together. All communicators of a rank share one transport, and fail
// with it: the first failure stays and every later call returns it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"

namespace phalanx::comm {

struct Outbound {
  int32_t peer = 0;  // world rank, not this one
  uint64_t tag = 0;
  const void* data = nullptr;
  int64_t bytes = 0;                           // at least 1
  std::shared_ptr<const void> keep = nullptr;  // as that of Outgoing
};
struct Inbound {
  int32_t peer = 0;
  uint64_t tag = 0;
  void* data = nullptr;  // null: the message is only lent to `consume`
  int64_t bytes = 0;
};

// A posted send whose memory the transport may still read.
class PendingSend {
 public:
  explicit PendingSend(std::shared_ptr<const void> keep) : keep_(std::move(keep)) {}
  virtual ~PendingSend() = default;

 private:
  const std::shared_ptr<const void> keep_;  // goes last, once nothing reads its memory
};
using PendingSends = std::deque<std::unique_ptr<PendingSend>>;

// Thread-safe: calls of several threads proceed side by side.
class Transport {
 public:
  virtual ~Transport() = default;

  // Called for the receives in their order, each as soon as it and those before it are there.
  using Consume = absl::FunctionRef<void(size_t index, const void* data)>;

  // Posts all receives and sends, then waits for the receives. Sends that may still be under way
  // are appended to `pending`; their memory stays put until Settle(). Errors: the transport's
  // failure. No memory of the call is touched after an error.
  virtual absl::Status Transfer(absl::Span<const Outbound> sends,
                                absl::Span<const Inbound> receives, PendingSends& pending,
                                Consume consume) = 0;
  // Waits until the sends are complete and forgets them, also after an error.
  virtual absl::Status Settle(PendingSends& pending) = 0;
  // Forgets those that are complete, without waiting.
  virtual void ForgetComplete(PendingSends& pending) = 0;

  // The transport's failure. Never blocks.
  virtual absl::Status Check() = 0;
  // Fails the transport and wakes every wait. Returns without waiting for anyone.
  virtual void Abort(absl::Status reason) = 0;
};

}  // namespace phalanx::comm
