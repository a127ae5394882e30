// worker/agent/host_memory.h: memory in which ranks leave copies of their state.
//
// It belongs to the daemon and outlives the processes of ranks and their devices, but not the node
// or the daemon. Of each rank of a job two buffers of one size, so that one of them is whole while
// the other is written; kept until the job ends here. What they hold is the rank's business.
//
// Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "core/posix/unique_fd.h"

namespace phalanx::agent {

// Bytes that this process may still take: what the node has available, or less where a control
// group says so. 0: not known.
int64_t AvailableHostMemory();

class HostMemory {
 public:
  // `available`: asked each time, as AvailableHostMemory().
  explicit HostMemory(std::function<int64_t()> available = AvailableHostMemory)
      : available_(std::move(available)) {}

  // Descriptors of a rank's two buffers of `bytes` each, those of before if they are as large.
  // Errors: InvalidArgument for no bytes; ResourceExhausted, naming what is needed and there is.
  absl::StatusOr<std::array<int, 2>> BuffersOf(JobId job, int32_t rank, int64_t bytes);
  void Free(JobId job);                     // JobId{}: of all
  int64_t bytes() const { return bytes_; }  // of all buffers

 private:
  struct Buffers {
    std::array<UniqueFd, 2> fds;
    int64_t bytes = 0;  // of each
  };
  std::function<int64_t()> available_;
  std::map<std::pair<JobId, int32_t>, Buffers> buffers_;
  int64_t bytes_ = 0;
};

}  // namespace phalanx::agent
