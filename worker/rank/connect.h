// worker/rank/connect.h: how a rank process connects with the other ranks of a plan.
#pragma once

#include "absl/status/statusor.h"
#include "core/plan/plan.h"
#include "phalanx/v1/rank.pb.h"
#include "worker/comm/communicator.h"
#include "worker/rank/faults.h"

namespace phalanx::rank {

// The communicators of the order's rank under the plan, in their canonical order. `options` say how
// long it may take and what ends it; what follows from plan and order is filled in. `faults`
// outlives them. Errors: those of comm::ConnectGloo and comm::ConnectNccl; Unimplemented for GPUs
// in a build without them.
absl::StatusOr<comm::Communicators> ConnectRanks(const plan::Plan& plan, const v1::RunEpoch& order,
                                                 Faults& faults, comm::Rendezvous& rendezvous,
                                                 comm::WorldOptions options);

}  // namespace phalanx::rank
