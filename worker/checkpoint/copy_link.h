// worker/checkpoint/copy_link.h: copies of ranks' state (host_copy.h) over a connection, from a
// process of the node where they lie to a rank of another one that inherits them.
//
// The taker asks for one copy after the other, and closes the connection when it has all:
//
//   taker   whose: its rank, 4 bytes, the lowest first
//   giver   how many bytes follow before the last page, 8 bytes, the lowest first; 0: it has no
//           whole copy of the step, and that is all
//   giver   so many bytes of the buffer: its page, and what is behind it
//   giver   the page once more, as it is then: where it differs, somebody has written to the buffer
//
// Who is at the other end is proved before (worker/comm/links.h); lengths and waits are bounded all
// the same. Pages lie as the processors of nodes have them, and read as nothing where these differ.
//
// Functions of their arguments; safe to call from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/posix/available_memory.h"
#include "worker/checkpoint/host_load.h"

namespace phalanx::checkpoint {

struct CopyLinkOptions {
  // Without a byte that comes or goes, in the middle of something.
  absl::Duration silence_max = absl::Seconds(30);
  // Of the giver: without a question.
  absl::Duration turn_max = absl::Minutes(10);
  // Of the taker: bytes of memory that may be taken; 0: not known.
  std::function<int64_t()> available = AvailableHostMemory;
  std::stop_token stop;
};

// Gives copies of `step` to whoever asks at the other end of `fd`, a non-blocking socket, until
// that closes the connection. `find`: what there is of a rank; nullptr: nothing, and what the other
// end may not have is nothing, too. Errors: Unavailable (the connection broke), DeadlineExceeded,
// Cancelled (options.stop).
absl::Status GiveCopies(int fd, int64_t step, const std::function<const HostCopyPair*(Rank)>& find,
                        const CopyLinkOptions& options);

// The rank's copy that the other end of `fd` has, in memory of this process; nothing where it has
// none. `whose` says what it has to be of. Errors: DataLoss (it is no whole copy, or somebody wrote
// to it meanwhile), InvalidArgument (it has more than `bytes_max` bytes), ResourceExhausted (no
// memory, or less than it takes is available), and those of GiveCopies. Behind an error the
// connection is of no more use.
absl::StatusOr<std::optional<HostCopyPair>> TakeCopy(int fd, const HostCopyPair::Identity& whose,
                                                     int64_t bytes_max,
                                                     const CopyLinkOptions& options);

}  // namespace phalanx::checkpoint
