#include "core/base/status.h"
#include "worker/comm/communicator.h"
#include "worker/comm/gloo_transport.h"
#include "worker/comm/peer_communicator.h"

namespace phalanx::comm {

absl::StatusOr<Communicators> ConnectGloo(absl::Span<const plan::CommunicatorSpec> specs, Rank self,
                                          int32_t world, Rendezvous& rendezvous,
                                          const WorldOptions& options) {
  if (world < 1 || self.value < 0 || self.value >= world) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", self.value, " of a world of ", world));
  }
  if (world == 1) {
    // Nobody to meet: every communicator has one member and moves nothing.
    return InProcessWorld(1).Connect(specs, self);
  }
  ASSIGN_OR_RETURN(std::shared_ptr<Transport> transport,
                   ConnectGlooTransport(self.value, world, rendezvous, options));
  return MakeCommunicators(std::move(transport), specs, self);
}

}  // namespace phalanx::comm
