// worker/comm/shared_memory.h: messages between ranks of one host without a system call each.
//
// Every rank owns one segment of memory that its peers map. A sender copies a message into its own
// segment and pushes a reference to it on the receiver's inbox, a linked list that the receiver
// takes whole with one exchange. So a send is complete when it returns, whatever the receiver does
// meanwhile, and no thread of either side has to help. A receiver without a message sleeps on a
// futex in its segment, the doorbell; nobody spins: there are often more ranks than cores.
//
// Memory: blocks are reused as soon as the receiver has let go of them, so a segment's resident
// part is what was under way at the worst moment.
//
// A peer that dies is not noticed here: whoever watches it calls Wake() after changing what `stop`
// of Receive() says.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/mutex.h"
#include "worker/comm/shared_segment.h"
#include "worker/comm/transport.h"

namespace phalanx::comm {

// Thread-safe, but for Attach() and Settled(), which come first.
class SharedMemory {
 public:
  // Errors: Unavailable where the system gives no such memory.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Create(int32_t self, int32_t world);

  // What a peer needs to attach.
  std::string Handle() const { return segments_[static_cast<size_t>(self_)]->Handle(); }
  // Maps the segment of `peer`. False where it is out of reach: another host, container or user.
  bool Attach(int32_t peer, const std::string& handle);
  // All peers have attached or failed to.
  void Settled() { segments_[static_cast<size_t>(self_)]->Close(); }

  // Copies the message into this rank's segment and rings. Messages in a row to several peers from
  // the same memory are copied once. Errors: ResourceExhausted when the segment is full of messages
  // that nobody takes.
  absl::Status Send(absl::Span<const Outbound> sends);

  // A message that was received, readable until it is let go.
  class Received;
  // Waits for the message of this name. `stop` is asked before each sleep and ends the wait with
  // its error. Errors: those of `stop`; DeadlineExceeded; Unavailable after `peer` has left.
  absl::StatusOr<Received> Receive(int32_t peer, uint64_t tag,
                                   std::chrono::steady_clock::time_point deadline,
                                   absl::FunctionRef<absl::Status()> stop);
  // Lets every wait of this rank ask `stop` again.
  void Wake();
  // Tells the peers that no further message comes from this rank.
  void Leave();

 private:
  struct Segment;  // head of a segment
  struct Message;  // head of a message's block
  struct Shared;   // head of a payload that several messages share
  // Blocks of one size. A released block is found again by looking at the oldest ones under way.
  struct SizeClass {
    std::deque<uint64_t> under_way;
    std::vector<uint64_t> free;
  };

  SharedMemory(int32_t self, int32_t world);
  char* At(int32_t rank, uint64_t offset) const {
    return segments_[static_cast<size_t>(rank)]->data() + offset;
  }
  Segment& Head(int32_t rank) const;
  // Offset of a free block of at least `bytes` with its head.
  absl::StatusOr<uint64_t> AllocateLocked(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(allocation_);
  void Push(int32_t peer, uint64_t offset);
  static void Ring(Segment& segment);
  // Moves all of the inbox to arrived_.
  void TakeInboxLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(arrival_);
  static void LetGo(Message* message, Shared* shared);

  const int32_t self_;
  std::vector<std::optional<SharedSegment>> segments_;  // by rank; none where not attached
  Mutex allocation_;
  std::vector<SizeClass> classes_ ABSL_GUARDED_BY(allocation_);
  // Nothing was handed out from here on; the segment's head has the first page.
  uint64_t top_ ABSL_GUARDED_BY(allocation_) = 4096;
  Mutex arrival_;
  absl::flat_hash_map<std::pair<int32_t, uint64_t>, Message*> arrived_ ABSL_GUARDED_BY(arrival_);
};

class SharedMemory::Received {
 public:
  Received(Message* message, Shared* shared, const void* data, int64_t bytes)
      : message_(message), shared_(shared), data_(data), bytes_(bytes) {}
  Received(Received&& other) noexcept
      : message_(std::exchange(other.message_, nullptr)),
        shared_(other.shared_),
        data_(other.data_),
        bytes_(other.bytes_) {}
  Received& operator=(Received&&) = delete;
  ~Received() {
    if (message_ != nullptr) LetGo(message_, shared_);
  }
  const void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  Message* message_;
  Shared* shared_;
  const void* data_;
  int64_t bytes_;
};

}  // namespace phalanx::comm
