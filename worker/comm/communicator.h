// worker/comm/communicator.h: collectives and messages among the ranks of one group.
//
// Order: operations of one communicator run in the order of the calls, and every member calls
// collectives in the same order; there are no tags to save a caller who does not (NCCL has none).
// Messages are matched by order per peer.
//
// Completion: memory given to a call belongs to the communicator until completion.
//   CPU   collectives and receives are complete when the call returns; sends are posted and
//         complete at Flush(), or when what they keep is let go.
//   CUDA  a call only enqueues, on the communicator's own stream, behind everything that is
//         enqueued so far on the caller's current stream. Join() makes the caller's current stream
//         wait for what has been enqueued here, as does Flush(); the host never waits.
//
// Failure: a call fails with Unavailable (a peer is gone or reset; the message names its world
// rank), the reason given to Abort(), or DeadlineExceeded; after a failure every later call fails
// alike. On CPU the communicators of one rank and epoch share their links, so they fail together;
// under NCCL each fails by itself, and what it has on the device stands still until Abort() or
// destruction. Results of a failed collective are garbage. A call that cannot be right on this rank
// alone (a negative count, a peer outside the group, a sum of bytes) is InvalidArgument and changes
// nothing.
//
// Ending: collectives that returned are complete for the others too, but sends are withdrawn unless
// Flush() came after them. On CPU a rank that leaves healthy fails only those who still expect
// something of it; one that leaves after a failure fails all its peers, with Unavailable and the
// name of the rank that failed first.
//
// Thread rule: one thread issues on a communicator, different ones may issue on different
// communicators; Abort() may be called from any thread and wakes every wait.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/base/accused.h"
#include "core/base/ids.h"
#include "core/plan/plan.h"
#include "worker/comm/isolation.h"
#include "worker/comm/lost_message.h"

namespace phalanx::comm {

// Sums on CPU are taken in rank order; those of kBf16 in fp32, rounded once to nearest even (NCCL
// rounds at every hop). kInt64 wraps; kByte has no sum.
enum class DType : uint8_t { kByte, kInt64, kBf16, kFp32, kFp64 };
int64_t SizeOf(DType dtype);

struct Outgoing {
  int32_t peer = 0;  // communicator rank; never this rank itself
  const void* data = nullptr;
  int64_t bytes = 0;
  // CPU: let go once the message needs its memory no more, which is noticed at a later Exchange().
  std::shared_ptr<const void> keep = nullptr;
};
struct Incoming {
  int32_t peer = 0;
  void* data = nullptr;
  int64_t bytes = 0;  // exactly what the peer sends
};

// One of several like collectives: `in` and `out` as of the collective itself. What is reduced for
// all is `in` and `out` at once, of count_per_rank elements.
struct Piece {
  const void* in = nullptr;
  void* out = nullptr;
  int64_t count_per_rank = 0;
};

// Whom a communicator tells of what it does, in the thread that issues. Not thread-safe.
class Observer {
 public:
  virtual ~Observer() = default;
  // Around every operation that has anything to move. On CUDA it is enqueued on `stream`, a
  // cudaStream_t, between the two calls, behind what it waits for; on CPU that is nullptr, and it
  // is done between them, but for messages that are sent. Of one that fails the end may be missing.
  virtual void Begins(plan::CommunicatorOperation operation, void* stream) = 0;
  virtual void Ends(void* stream) = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int32_t rank() const = 0;  // position of this process in the group
  virtual int32_t size() const = 0;

  // data[i] = sum over ranks of data[i], [count], the same bits on every rank.
  virtual absl::Status AllReduceSum(void* data, int64_t count, DType dtype) = 0;
  // out[count_per_rank] = sum over ranks of in[rank() * count_per_rank ...]; in holds size() such
  // blocks. out may be that block of in itself.
  virtual absl::Status ReduceScatterSum(const void* in, void* out, int64_t count_per_rank,
                                        DType dtype) = 0;
  // out[r * count_per_rank ...] = rank r's in. in may be this rank's block of out itself.
  virtual absl::Status AllGather(const void* in, void* out, int64_t count_per_rank,
                                 DType dtype) = 0;
  // The same of several, in their order. Under NCCL they are one kernel, which waits once for
  // processors and for its peers; so every member has the same pieces in one call.
  virtual absl::Status ReduceScatterSums(absl::Span<const Piece> pieces, DType dtype) {
    absl::Status status;
    for (size_t i = 0; i < pieces.size() && status.ok(); ++i)
      status = ReduceScatterSum(pieces[i].in, pieces[i].out, pieces[i].count_per_rank, dtype);
    return status;
  }
  virtual absl::Status AllReduceSums(absl::Span<const Piece> pieces, DType dtype) {
    absl::Status status;
    for (size_t i = 0; i < pieces.size() && status.ok(); ++i)
      status = AllReduceSum(pieces[i].out, pieces[i].count_per_rank, dtype);
    return status;
  }
  virtual absl::Status AllGathers(absl::Span<const Piece> pieces, DType dtype) {
    absl::Status status;
    for (size_t i = 0; i < pieces.size() && status.ok(); ++i)
      status = AllGather(pieces[i].in, pieces[i].out, pieces[i].count_per_rank, dtype);
    return status;
  }
  // One group of messages, progressing together: no order among them can deadlock. Messages of no
  // bytes are skipped on both ends.
  virtual absl::Status Exchange(absl::Span<const Outgoing> sends,
                                absl::Span<const Incoming> receives) = 0;
  virtual absl::Status Join() = 0;
  virtual absl::Status Flush() = 0;
  // What has been enqueued here so far, to be waited for later, while the communicator lives: a
  // call makes the caller's current stream wait for that and for nothing enqueued since.
  using Point = std::function<absl::Status()>;
  virtual absl::StatusOr<Point> Mark() {
    return [] { return absl::OkStatus(); };
  }
  // Makes the caller's current stream wait until the device has come to what is enqueued here, not
  // until that is done: so it has its processors before work that the caller enqueues next, which
  // would take them all.
  virtual absl::Status Lead() { return absl::OkStatus(); }
  // For a host that waits for the device: the failure of what is enqueued here, if it is known.
  // Never blocks.
  virtual absl::Status Check() { return absl::OkStatus(); }

  // Tells `observer` of every operation from now on; nullptr: nobody. Issued as an operation is.
  // Communicators that stand for others may have none to tell.
  virtual void Observe(Observer* /*observer*/) {}

  // Thread-safe; returns without waiting for anyone. The first reason stays.
  virtual void Abort(absl::Status reason) = 0;
};

// Of a clock that nobody sets, so that a wait lasts as long as it was meant to.
using Deadline = std::chrono::steady_clock::time_point;
inline Deadline DeadlineIn(absl::Duration timeout) {
  return std::chrono::steady_clock::now() +
         absl::ToChronoMilliseconds(std::min(timeout, absl::Hours(24 * 365)));
}

// How the processes of one epoch find each other before they have a communicator: a small
// write-once key-value table. The rank process implements it over its daemon's socket (the daemon
// forwards to the coordinator); tests implement it in memory. Thread-safe.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual absl::Status Put(const std::string& key, const std::string& value) = 0;
  // Blocks until somebody has put `key`. Errors: DeadlineExceeded, Aborted.
  virtual absl::StatusOr<std::string> Get(const std::string& key, Deadline deadline) = 0;
  // The same of a key that `rank` of the world puts: its silence accuses it.
  absl::StatusOr<std::string> GetFrom(Rank rank, const std::string& key, Deadline deadline) {
    absl::StatusOr<std::string> value = Get(key, deadline);
    if (absl::IsDeadlineExceeded(value.status())) return Accusing(rank, value.status());
    return value;
  }
};

struct WorldOptions {
  absl::Duration setup_timeout = absl::Seconds(60);
  // A stop that is requested while ranks connect ends that at once, with Cancelled. A wait inside
  // the rendezvous is the rendezvous' own to end.
  std::stop_token stop;
  // The longest that one operation may wait for its peers. Supervision finds dead ones much sooner.
  absl::Duration operation_timeout = absl::Minutes(10);
  // Gloo: address to listen on and to publish. NCCL, at the first use of the process: of the
  // interface to listen on, unless NCCL_SOCKET_IFNAME is set, no interface here has it, or the
  // loopback one.
  std::string interface_address = "127.0.0.1";
  // Gloo: both ends of a connection prove that they are of this epoch (links.h). All ranks of the
  // epoch have the same.
  bool proven_links = true;
  // Called once, in the connecting thread, where that has refused connections: how many, and the
  // last caller's address (core/posix/peer_name.h).
  std::function<void(int64_t refused, const std::string& last)> strangers;
  // Gloo: pass messages between processes of one host through shared memory instead of TCP.
  bool shared_memory = true;
  // Gloo: while it is active nothing is sent to, taken or heard from the ranks of the world for
  // which `elsewhere` is true; what is under way may still arrive. nullptr: it never is.
  const Isolation* isolation = nullptr;
  std::vector<bool> elsewhere;
  // Gloo: a message that is lost is never sent, and this rank takes it to be complete. nullptr:
  // none is.
  LostMessage* lost = nullptr;
  // NCCL: the CUDA stream that the calling thread enqueues its work on at the moment of the call,
  // as a cudaStream_t; called once an operation. Empty: CUDA's legacy default stream, which is
  // LibTorch's until somebody sets another.
  std::function<void*()> current_stream;
  // NCCL: with whom this rank exchanges messages, by spec: communicator ranks. Of two ranks both
  // name each other. Empty: everybody with everybody.
  std::vector<std::vector<int32_t>> peers;
  // NCCL: communicators of tensor ranks have no limit of their own. All ranks have the same.
  bool wide_tensor_groups = true;
  // NCCL: the longest that giving a communicator back to NCCL may take, in the background, after
  // Abort() or destruction. A process whose NCCL holds one longer is wedged: it ends itself, with
  // exit code 70 and a line on standard error.
  absl::Duration release_timeout = absl::Seconds(30);
};

// All communicators of one rank in one epoch: entry i of the result belongs to specs[i], nullptr
// where `self` is not a member. Every rank of the world calls with the same specs.
// Errors: Unavailable, DeadlineExceeded, Cancelled.
using Communicators = std::vector<std::unique_ptr<Communicator>>;
absl::StatusOr<Communicators> ConnectGloo(absl::Span<const plan::CommunicatorSpec> specs, Rank self,
                                          int32_t world, Rendezvous& rendezvous,
                                          const WorldOptions& options);
#ifdef PHALANX_WITH_CUDA
// On the current CUDA device. Returns with every communicator connected and warm: collectives where
// they are used, messages between those that options.peers names. Who connects later does so beside
// kernels that wait for peers, and may wait for them himself. Sets NCCL_NVLS_ENABLE=0 and
// NCCL_ALGO=Ring unless the environment says otherwise. Communicators are given back to NCCL in the
// background (releases.h), so an old epoch's may be dropped while a new one's are made.
absl::StatusOr<Communicators> ConnectNccl(absl::Span<const plan::CommunicatorSpec> specs, Rank self,
                                          int32_t world, Rendezvous& rendezvous,
                                          const WorldOptions& options);
// Waits until every communicator that was aborted or destroyed so far is given back, which they are
// at once (releases.h); false if some are not by `deadline`. A process calls it before it ends.
bool WaitForNcclReleases(Deadline deadline);
#endif

// Ranks as threads of one process, for tests. Thread-safe.
class InProcessWorld {
 public:
  explicit InProcessWorld(int32_t world);
  ~InProcessWorld();
  Communicators Connect(absl::Span<const plan::CommunicatorSpec> specs, Rank self);
  // Fails every call of every rank from now on.
  void Abort(absl::Status reason);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace phalanx::comm
