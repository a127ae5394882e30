#include "worker/rank/connect.h"

#include <utility>
#include <vector>

#include "core/plan/derivation.h"
#include "core/plan/message_peers.h"
#include "worker/device/cuda_device.h"

namespace phalanx::rank {
namespace {

// Of each rank of the world whether it is on another node than `self`.
std::vector<bool> RanksElsewhere(const plan::Placement& nodes, Rank self) {
  std::vector<NodeName> node_of;
  for (const plan::NodeDevices& node : nodes)
    node_of.insert(node_of.end(), node.devices.size(), node.node);
  std::vector<bool> elsewhere;
  for (const NodeName& node : node_of)
    elsewhere.push_back(node != node_of[static_cast<size_t>(self.value)]);
  return elsewhere;
}

}  // namespace

absl::StatusOr<comm::Communicators> ConnectRanks(const plan::Plan& plan, const v1::RunEpoch& order,
                                                 Faults& faults, comm::Rendezvous& rendezvous,
                                                 comm::WorldOptions options) {
  const Rank self{order.rank()};
  const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(plan);
  if (!order.address().empty()) options.interface_address = order.address();
  if (order.device_kind() == "gpu") {
#ifdef PHALANX_WITH_CUDA
    if (!options.current_stream) options.current_stream = device::CurrentStream;
    options.peers = plan::MessagePeers(plan, self, specs);
    options.wide_tensor_groups = plan.layout.derivation >= plan::kDerivationOfConnectedState;
    return comm::ConnectNccl(specs, self, plan.world, rendezvous, options);
#else
    return absl::UnimplementedError("no GPU support in this build");
#endif
  }
  options.proven_links = plan.layout.derivation >= plan::kDerivationOfProvenLinks;
  options.isolation = &faults.isolation;
  options.lost = &faults.lost;
  options.elsewhere = RanksElsewhere(plan.layout.nodes, self);
  return comm::ConnectGloo(specs, self, plan.world, rendezvous, options);
}

}  // namespace phalanx::rank
