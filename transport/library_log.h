// transport/library_log.h: what gRPC itself writes to stderr.
//
// It writes a line for each handshake that a stranger fails, and what it says stands in our own
// counts, logs and messages. `GRPC_VERBOSITY=ERROR` in the environment brings it back.
#pragma once

#include <cstdlib>

namespace phalanx::transport {

// Called by main before anything of gRPC is, and by nobody else.
inline void SilenceGrpcLog() { setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0); }

}  // namespace phalanx::transport
