// worker/agent/host_memory.h: memory in which ranks leave copies of their state.
//
// It belongs to the daemon and outlives the processes of ranks and their devices, but not the node
// or the daemon. Of each rank of a job in an epoch two buffers of one size, so that one of them is
// whole while the other is written; kept until the job ends here, or all ranks of a later epoch
// have whole copies or what they mirror. What they hold is the rank's business.
//
// Not thread-safe. Never waits for memory to go, which takes the kernel seconds where it is much.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/base/mutex.h"
#include "core/posix/available_memory.h"
#include "core/posix/unique_fd.h"

namespace phalanx::agent {

// Closes files of memory on a thread of its own. Thread-safe.
class MemoryCloser {
 public:
  MemoryCloser();
  ~MemoryCloser();  // closes all
  void Close(UniqueFd fd);
  // Bytes of files that are not closed yet, of what was written of them.
  int64_t bytes() const;

 private:
  struct File {
    UniqueFd fd;
    int64_t bytes = 0;
  };
  void Work();

  mutable Mutex mu_;
  CondVar changed_;
  std::deque<File> files_ ABSL_GUARDED_BY(mu_);
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of files_, and of the one that is being closed
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::jthread thread_;
};

class HostMemory {
 public:
  // `available`: asked each time, as AvailableHostMemory().
  explicit HostMemory(std::function<int64_t()> available = AvailableHostMemory)
      : available_(std::move(available)), closer_(std::make_unique<MemoryCloser>()) {}

  // Descriptors of a rank's two buffers of `bytes` each in an epoch, those of before if they are as
  // large. What was given to others and not yet written by them counts as taken. Buffers that the
  // rank had in an earlier epoch and that have no whole copy become those of the epoch if they are
  // as large: their pages are there. Where there is no room, what the job had in earlier epochs is
  // given up: first what has no whole copy, then what the rank had, whose buffers of that size
  // become those of the epoch.
  // `beside`: nothing is given up. Errors: InvalidArgument for no bytes; ResourceExhausted,
  // naming what is needed and there is.
  absl::StatusOr<std::array<int, 2>> BuffersOf(JobId job, Epoch epoch, int32_t rank, int64_t bytes,
                                               bool beside = false);
  struct Pair {
    int32_t rank = 0;
    Epoch epoch;
    int64_t bytes = 0;  // of each
    std::array<int, 2> fds;
  };
  // What those ranks were given in epochs before this one.
  std::vector<Pair> PairsBefore(JobId job, Epoch epoch, absl::Span<const int32_t> ranks) const;
  // What they were given in it.
  std::vector<Pair> PairsOf(JobId job, Epoch epoch, absl::Span<const int32_t> ranks) const;
  void Free(JobId job);                     // JobId{}: of all
  void FreeBefore(JobId job, Epoch epoch);  // of epochs before this one
  int64_t bytes() const { return bytes_; }  // of all buffers

 private:
  // Bytes of all buffers whose pages nobody has written yet.
  int64_t Promised() const;

  // -1: not known.
  int64_t Left() const;

  struct Buffers {
    std::array<UniqueFd, 2> fds;
    int64_t bytes = 0;  // of each
  };
  using Owner = std::tuple<JobId, Epoch, int32_t>;  // with the rank
  // Whether `a` is the same rank in an earlier epoch.
  static bool IsEarlier(const Owner& a, const Owner& b);
  // Whether the owner has left a whole copy in one of its buffers.
  static bool HasCopy(const Owner& owner, const Buffers& buffers);
  // Buffers of that size that the rank had earlier become the owner's, of the latest epoch first;
  // `useless`: only such as have no whole copy. False: there are none.
  bool TakeOver(const Owner& owner, int64_t bytes, bool useless);
  // Of what an epoch before this one has left, and is not whole, nothing stays: nobody writes to it
  // any more.
  void FreeUseless(JobId job, Epoch before);
  // In place of the owner's buffers, which others take or which go: two in which there is no copy.
  // Without them it would look as if all ranks of that epoch had the copies that others have.
  void LeaveEmpty(const Owner& owner);
  // Whether two buffers of `bytes` are less than what the node has left.
  bool HasRoom(int64_t bytes) const;
  template <typename Predicate>
  std::vector<Pair> PairsIf(absl::Span<const int32_t> ranks, Predicate predicate) const;
  template <typename Predicate>
  void FreeIf(Predicate predicate);

  // They have left buffers_.
  void Close(Buffers buffers);

  std::function<int64_t()> available_;
  std::unique_ptr<MemoryCloser> closer_;
  int64_t once_closed_ = 0;  // bytes that are available when closer_ has done its work
  std::map<Owner, Buffers> buffers_;
  int64_t bytes_ = 0;
};

}  // namespace phalanx::agent
