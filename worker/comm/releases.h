// worker/comm/releases.h: when what communicators of a device held is freed.
//
// To free memory waits for all that is on the device, and launches wait for it. Two ranks that free
// while each has work on its device that waits for work of the other, which is not launched yet,
// wait for ever. So a communicator that is given up stops what it does on the device at once, and
// is freed in its turn: while nothing of this process may wait for a peer
// (docs/decisions/0068-aborted-communicators-are-freed-later.md).
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "worker/comm/communicator.h"

namespace phalanx::comm {

class Releases {
 public:
  struct Options {
    // After which what waits for its turn has it, where no PeerKernels lives.
    absl::Duration held_max = absl::Seconds(2);
    absl::Duration turn_max = absl::Seconds(10);  // that somebody waits for one turn
  };
  Releases() : Releases(Options()) {}
  explicit Releases(const Options& options) : options_(options) {}
  // Those of the one device of this process.
  static Releases& OfProcess();

  // A communicator is given up.
  void Begin();
  // One that was is freed. What there is to tell once all are; else "".
  std::string End();

  // Of a communicator that has stopped: from when on it may be freed, to when it is.
  class Turn {
   public:
    explicit Turn(Releases& releases);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Releases& releases_;
    absl::Time begin_ = absl::Now();
  };

  // Until all that are given up have stopped. False: some have not by `deadline`.
  bool AwaitStops(Deadline deadline);
  // Until all are freed. False as above.
  bool AwaitFreed(Deadline deadline);
  // The same, and nobody waits for a turn meanwhile.
  bool FreeAll(Deadline deadline);

 private:
  friend class PeerKernels;
  bool AwaitNone(const int64_t& left, Deadline deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayFree(Deadline give_up) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  Mutex mutex_;
  CondVar changed_;
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;     // that are not over
  int64_t stopping_ ABSL_GUARDED_BY(mutex_) = 0;  // of them, that have not stopped
  int64_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;   // for their turn
  int64_t freeing_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t turns_ ABSL_GUARDED_BY(mutex_) = 0;    // that nobody has taken yet
  int64_t holders_ ABSL_GUARDED_BY(mutex_) = 0;  // PeerKernels
  int64_t awaited_ ABSL_GUARDED_BY(mutex_) = 0;  // by how many threads: then nothing is held back
  // Since there was none.
  int64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time since_ ABSL_GUARDED_BY(mutex_);
  absl::Duration held_ ABSL_GUARDED_BY(mutex_);   // the longest wait for a turn
  absl::Duration freed_ ABSL_GUARDED_BY(mutex_);  // all turns together
};

// Lives as long as this process has work on its device that may wait for that of other ranks.
// Making one waits for what is being freed, turn_max at most: NCCL hangs then, which whoever frees
// watches.
class PeerKernels {
 public:
  explicit PeerKernels(Releases& releases = Releases::OfProcess());
  ~PeerKernels();
  PeerKernels(const PeerKernels&) = delete;
  PeerKernels& operator=(const PeerKernels&) = delete;

  // Whether something waits for its turn, and no other one of these lives.
  bool MayFree();
  // Nothing of the caller's is on the device: gives turns, one after the other, until the budget is
  // spent or MayFree() is false. Returns how many there were.
  int64_t Free(absl::Duration budget);

 private:
  Releases& releases_;
};

}  // namespace phalanx::comm
