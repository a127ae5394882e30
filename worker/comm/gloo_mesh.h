// worker/comm/gloo_mesh.h: a connection between every two ranks, over Gloo.
//
// Gloo connects in its own threads and says what went wrong by throwing there. Its pairs are
// derived from here, so that a peer that resets a connection while it is made fails the mesh
// instead of ending the process. A message that has begun to leave leaves whole, also where its
// buffer goes before.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/comm/communicator.h"

namespace gloo::transport {
class Context;
class UnboundBuffer;
}  // namespace gloo::transport

namespace phalanx::comm {

// From then on the process ignores SIGPIPE, unless it handles it. Meets `peers` through
// `rendezvous`: other ranks of the world, at least one, ascending; each of them meets all of them
// but itself, and this one. With options.proven_links connections are those of ConnectLinks()
// (links.h); else whoever connects first to where a peer is awaited is taken for it. Errors:
// Unavailable, DeadlineExceeded, Internal (a peer announces no address), Cancelled (options.stop),
// the rendezvous' own.
absl::StatusOr<std::shared_ptr<::gloo::transport::Context>> ConnectGlooMesh(
    int32_t self, int32_t world, absl::Span<const int32_t> peers, Rendezvous& rendezvous,
    const WorldOptions& options);

// What was thrown while connecting, as a status: that of a peer that cannot be reached, or
// OutOfMemory (core/job/failure.h) where it is this process that lacks memory or threads.
absl::Status ConnectingFailed(const std::exception& error);

// Whether what a buffer of that context was told to send has left it. Gloo itself only waits.
bool IsSent(::gloo::transport::UnboundBuffer& buffer);

}  // namespace phalanx::comm
