// worker/comm/links.h: the TCP connections between ranks of an epoch, which nobody else gets.
//
// Of two ranks the lower one listens and the higher one calls. Each rank draws a secret, and tells
// it with its address through the rendezvous, which travels over TLS and reaches ranks of the epoch
// alone. Before anything else passes, both ends prove that they know the secret of the one that
// listens:
//
//   caller    hello: both ranks, and 32 random bytes
//   listener  32 random bytes, and HMAC-SHA256(secret, "listener", all that was said)
//   caller    HMAC-SHA256(secret, "caller", all that was said)
//   listener  one byte: welcome
//
// What is proved once is worth nothing in another connection, since each end has drawn its part of
// what is signed. Nothing is encrypted. A rank listens while it connects, and at no other time.
// Whoever proves nothing is refused: at the first wrong byte, after kProofTimeout, or when
// kCallersMax others have called since. A caller that lost its place that way calls again. Who
// greets as a peer and goes, or waits when connecting fails, is not counted: peers that stop do so.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/posix/unique_fd.h"
#include "worker/comm/communicator.h"

namespace phalanx::comm {

inline constexpr absl::Duration kProofTimeout = absl::Seconds(5);
// That have called and proved nothing yet.
inline constexpr size_t kCallersMax = 128;

// Non-blocking sockets by peer. Meets `peers` (other ranks of the world, ascending; each of them
// meets this one, too) through `rendezvous`, and tells options.strangers of
// those that were refused. Errors: Unavailable (a peer that is not there, or is not reached by
// options.setup_timeout; an address that cannot be listened on), Internal (a peer announces no
// address), Cancelled (options.stop), the rendezvous' own.
absl::StatusOr<std::map<int32_t, UniqueFd>> ConnectLinks(int32_t self,
                                                         absl::Span<const int32_t> peers,
                                                         Rendezvous& rendezvous,
                                                         const WorldOptions& options);

}  // namespace phalanx::comm
