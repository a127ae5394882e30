#include <set>

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
  // Ranks of the world that are in no communicator may have no process.
  std::set<int32_t> peers;
  for (const plan::CommunicatorSpec& spec : specs) {
    for (const Rank member : spec.ranks) peers.insert(member.value);
  }
  const bool alone = peers.erase(self.value) == 0 || peers.empty();
  // Nobody to meet: every communicator of this rank has one member and moves nothing.
  if (alone) return InProcessWorld(world).Connect(specs, self);
  ASSIGN_OR_RETURN(
      std::shared_ptr<Transport> transport,
      ConnectGlooTransport(self.value, world, {peers.begin(), peers.end()}, rendezvous, options));
  return MakeCommunicators(std::move(transport), specs, self);
}

}  // namespace phalanx::comm
