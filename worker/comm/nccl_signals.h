// worker/comm/nccl_signals.h: a receive waits for its sender outside of kernels.
//
// The kernel of a receive holds blocks of the device from its start on, and waits in them for the
// sender: passes that run beside it are the slower (docs/decisions/0012-receives-wait-outside-
// kernels.md). So the stream of a receive waits first, without a kernel, for a signal: a word in
// memory that the sender's stream writes before it sends. Both ranks must be on one host: what
// comes from elsewhere is received at once.
//
// An exchange that receives starts when all whose messages it takes have come to their sends; the
// checker holds programs to that (core/schedule/execution.h).
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/ids.h"
#include "worker/comm/communicator.h"
#include "worker/comm/shared_segment.h"

namespace phalanx::comm {

// The signals to this rank and to its peers, for all communicators of an epoch. Immutable once
// it is made, but for Settled().
class NcclSignalMemory {
 public:
  // Meets `peers`. `groups`: how many communicators have signals. Where the system or the device
  // has no such memory, nobody is attached. Errors: those of the rendezvous.
  static absl::StatusOr<std::shared_ptr<NcclSignalMemory>> Meet(Rank self, int32_t world,
                                                                int32_t groups,
                                                                const std::set<Rank>& peers,
                                                                Rendezvous& rendezvous,
                                                                Deadline deadline);

  // The memory of a signal, and where the device sees it.
  struct Word {
    std::atomic<uint32_t>* host = nullptr;
    uint64_t device = 0;
  };
  // The word at this rank that `peer` writes; nothing unless the peer has attached, which is known
  // once it has been heard of after its own Meet().
  std::optional<Word> Mine(int32_t group, Rank peer) const;
  // The word at `peer` that this rank writes; nothing where it is out of reach.
  std::optional<Word> AtPeer(int32_t group, Rank peer) const;
  // All peers have attached, or failed to.
  void Settled();

 private:
  // A segment that the device sees.
  class Mapped;
  NcclSignalMemory(Rank self, int32_t world, int32_t groups);
  Word WordOf(const Mapped& segment, int32_t group, Rank rank) const;
  uint64_t Bytes() const;

  const Rank self_;
  const int32_t world_, groups_;
  std::unique_ptr<Mapped> own_;
  std::map<Rank, std::unique_ptr<Mapped>> peers_;
};

// Of one communicator. It counts the messages of each direction from its making on, so both ends
// make it before the same message.
class NcclSignals {
 public:
  // `ranks`: of the communicator, in its order.
  NcclSignals(std::shared_ptr<NcclSignalMemory> memory, int32_t group,
              absl::Span<const Rank> ranks);

  // Enqueues the signals of these sends, then the waits for those of the receives. Messages of no
  // bytes do not count. One thread.
  absl::Status Enqueue(cudaStream_t stream, absl::Span<const Outgoing> sends,
                       absl::Span<const Incoming> receives);
  // Ends the waits that are enqueued by now. A peer that still sends may take that back.
  // Thread-safe.
  void EndWaits();

 private:
  struct Peer {
    std::optional<NcclSignalMemory::Word> mine, theirs;
    uint32_t sent = 0;
    std::atomic<uint32_t> received = 0;
  };

  const std::shared_ptr<NcclSignalMemory> memory_;
  std::vector<Peer> peers_;  // by rank of the communicator
};

}  // namespace phalanx::comm
