#include "worker/comm/shared_memory.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <climits>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/accused.h"
#include "core/base/status.h"
#include "core/posix/activity.h"

namespace phalanx::comm {
namespace {

// Address space, not memory: pages exist once they are written.
constexpr uint64_t kSegmentBytes = uint64_t{16} << 30;
constexpr uint64_t kBlockBytesMin = 256;
// How many blocks under way are looked at for one that came back, before a new one is cut.
constexpr int kReclaimTries = 4;
// A reference is a rank and an offset in its segment; 0 is none, as no block starts at 0.
constexpr int kOffsetBits = 40;
constexpr uint64_t kOffsetMask = (uint64_t{1} << kOffsetBits) - 1;

static_assert(std::atomic<uint32_t>::is_always_lock_free &&
              std::atomic<uint64_t>::is_always_lock_free);

void FutexWait(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds timeout) {
  const timespec relative = {.tv_sec = static_cast<time_t>(timeout.count() / 1'000'000'000),
                             .tv_nsec = static_cast<long>(timeout.count() % 1'000'000'000)};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &relative, nullptr, 0);
}
void FutexWakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

struct SharedMemory::Segment {
  alignas(64) std::atomic<uint64_t> inbox{0};  // reference of the newest message
  // Rung with every message; a sleeper waits for it to change.
  std::atomic<uint32_t> doorbell{0};
  std::atomic<uint32_t> asleep{0};
  alignas(64) std::atomic<uint32_t> left{0};
};

struct alignas(64) SharedMemory::Message {
  std::atomic<uint32_t> in_use{0};
  int32_t source = 0;
  uint64_t next = 0;  // reference
  uint64_t tag = 0;
  int64_t bytes = 0;
  uint64_t shared = 0;  // offset of a Shared with the payload; 0: it follows this head
};

struct alignas(64) SharedMemory::Shared {
  std::atomic<uint32_t> readers{0};
};

SharedMemory::SharedMemory(int32_t self, int32_t world)
    : self_(self), segments_(static_cast<size_t>(world)), classes_(kOffsetBits) {}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Create(int32_t self, int32_t world) {
  std::unique_ptr<SharedMemory> memory(new SharedMemory(self, world));
  ASSIGN_OR_RETURN(SharedSegment segment, SharedSegment::Create(kSegmentBytes));
  new (segment.data()) Segment;
  memory->segments_[static_cast<size_t>(self)].emplace(std::move(segment));
  return memory;
}

SharedMemory::Segment& SharedMemory::Head(int32_t rank) const {
  return *reinterpret_cast<Segment*>(At(rank, 0));
}

bool SharedMemory::Attach(int32_t peer, const std::string& handle) {
  std::optional<SharedSegment> segment = SharedSegment::Attach(handle, kSegmentBytes);
  if (segment.has_value()) segments_[static_cast<size_t>(peer)].emplace(*std::move(segment));
  return segment.has_value();
}

absl::StatusOr<uint64_t> SharedMemory::AllocateLocked(int64_t bytes) {
  const uint64_t size =
      std::bit_ceil(std::max(kBlockBytesMin, static_cast<uint64_t>(bytes) + sizeof(Message)));
  if (size > kSegmentBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a message of ", bytes, " bytes exceeds a segment"));
  }
  SizeClass& blocks = classes_[static_cast<size_t>(std::countr_zero(size))];
  for (int i = 0; i < kReclaimTries && !blocks.under_way.empty(); ++i) {
    const uint64_t oldest = blocks.under_way.front();
    blocks.under_way.pop_front();
    // Message and Shared both begin with the count of those who still need the block.
    const auto& users = *reinterpret_cast<std::atomic<uint32_t>*>(At(self_, oldest));
    if (users.load(std::memory_order_acquire) == 0) {
      blocks.free.push_back(oldest);
    } else {
      blocks.under_way.push_back(oldest);
    }
  }
  uint64_t offset = top_;
  if (!blocks.free.empty()) {
    offset = blocks.free.back();
    blocks.free.pop_back();
  } else if (top_ + size <= kSegmentBytes) {
    top_ += size;
  } else {
    return absl::ResourceExhaustedError("the shared memory is full of messages that nobody takes");
  }
  blocks.under_way.push_back(offset);
  return offset;
}

absl::Status SharedMemory::Send(absl::Span<const Outbound> sends) {
  for (size_t first = 0, last = 0; first < sends.size(); first = last) {
    const Outbound& head = sends[first];
    while (last < sends.size() && sends[last].data == head.data && sends[last].bytes == head.bytes)
      ++last;
    const auto readers = static_cast<uint32_t>(last - first);
    // A short message is cheaper to copy than to share.
    const bool share = readers > 1 && head.bytes + sizeof(Message) > kBlockBytesMin;
    std::vector<uint64_t> offsets(readers);
    uint64_t payload = 0;
    {
      MutexLock lock(&allocation_);
      if (share) {
        ASSIGN_OR_RETURN(payload, AllocateLocked(head.bytes));
        new (At(self_, payload)) Shared{readers};
      }
      for (uint64_t& offset : offsets) {
        ASSIGN_OR_RETURN(offset, AllocateLocked(share ? 0 : head.bytes));
        new (At(self_, offset)) Message{.in_use = 1};
      }
    }
    if (share)
      std::memcpy(At(self_, payload) + sizeof(Shared), head.data, static_cast<size_t>(head.bytes));
    for (size_t i = 0; i < readers; ++i) {
      const Outbound& send = sends[first + i];
      auto& message = *reinterpret_cast<Message*>(At(self_, offsets[i]));
      message.source = self_;
      message.tag = send.tag;
      message.bytes = send.bytes;
      message.shared = payload;
      if (!share)
        std::memcpy(At(self_, offsets[i]) + sizeof(Message), send.data,
                    static_cast<size_t>(send.bytes));
      Push(send.peer, offsets[i]);
    }
  }
  return absl::OkStatus();
}

void SharedMemory::Push(int32_t peer, uint64_t offset) {
  auto& message = *reinterpret_cast<Message*>(At(self_, offset));
  const uint64_t reference = static_cast<uint64_t>(self_) << kOffsetBits | offset;
  Segment& segment = Head(peer);
  message.next = segment.inbox.load(std::memory_order_relaxed);
  // Sequentially consistent, as is what sleepers do: either they see the message or we see them.
  while (!segment.inbox.compare_exchange_weak(message.next, reference)) {
  }
  Ring(segment);
}

void SharedMemory::Ring(Segment& segment) {
  segment.doorbell.fetch_add(1);
  if (segment.asleep.load() != 0) FutexWakeAll(segment.doorbell);
}

void SharedMemory::TakeInboxLocked() {
  for (uint64_t reference = Head(self_).inbox.exchange(0); reference != 0;) {
    auto* message = reinterpret_cast<Message*>(
        At(static_cast<int32_t>(reference >> kOffsetBits), reference & kOffsetMask));
    reference = message->next;
    arrived_.emplace(std::make_pair(message->source, message->tag), message);
  }
}

absl::StatusOr<SharedMemory::Received> SharedMemory::Receive(
    int32_t peer, uint64_t tag, std::chrono::steady_clock::time_point deadline,
    absl::FunctionRef<absl::Status()> stop) {
  const Waiting for_peer(Waiting::kNeed);
  Segment& mine = Head(self_);
  for (bool announced = false;; announced = !announced) {
    // In this order: what a peer sent before it left is seen, and what comes later rings.
    const bool left = Head(peer).left.load() != 0;
    const uint32_t seen = mine.doorbell.load();
    if (announced) mine.asleep.fetch_add(1);
    Message* message = nullptr;
    {
      // Under the lock, so that what another thread of this rank took is in arrived_ when we look.
      MutexLock lock(&arrival_);
      TakeInboxLocked();
      if (auto found = arrived_.find({peer, tag}); found != arrived_.end()) {
        message = found->second;
        arrived_.erase(found);
      }
    }
    absl::Status status = stop();
    if (message == nullptr && left && status.ok()) {
      status = Accusing(
          Rank{peer}, absl::UnavailableError(absl::StrCat("rank ", peer, " is gone: it has left")));
    }
    const auto now = std::chrono::steady_clock::now();
    if (message == nullptr && now >= deadline && status.ok())
      status = absl::DeadlineExceededError("");
    if (message == nullptr && status.ok() && announced)
      FutexWait(mine.doorbell, seen, deadline - now);
    if (announced) mine.asleep.fetch_sub(1);
    if (message != nullptr) {
      auto* shared =
          message->shared == 0 ? nullptr : reinterpret_cast<Shared*>(At(peer, message->shared));
      Received received(message, shared,
                        shared != nullptr ? static_cast<void*>(shared + 1) : message + 1,
                        message->bytes);
      if (!status.ok()) return status;
      return received;
    }
    if (!status.ok()) return status;
  }
}

void SharedMemory::LetGo(Message* message, Shared* shared) {
  if (shared != nullptr) shared->readers.fetch_sub(1, std::memory_order_release);
  message->in_use.store(0, std::memory_order_release);
}

void SharedMemory::Wake() { Ring(Head(self_)); }

void SharedMemory::Leave() {
  Head(self_).left.store(1);
  for (size_t rank = 0; rank < segments_.size(); ++rank) {
    if (segments_[rank].has_value()) Ring(Head(static_cast<int32_t>(rank)));
  }
}

}  // namespace phalanx::comm
