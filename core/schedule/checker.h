// core/schedule/checker.h: runs all programs of a step together and proves what must hold.
//
// Model: each rank executes its instructions in order; each (communicator, direction) is a FIFO
// queue with rendezvous: a message passes only when both ends have reached it (no buffering), and at
// each end in ticket order. Collectives are a rendezvous of the whole group. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/schedule/program.h"

namespace phalanx::schedule {

struct CheckReport {
  std::vector<int32_t> live_activations_max;  // of each rank: microbatches forwarded and not yet backwarded, at most
};

// Errors: FailedPrecondition naming ranks and instructions: a deadlock (with what each rank waits
// for), a microbatch that does not pass forward then backward exactly once at every pipeline part of
// every rank, an activation used before it arrived, messages out of ticket order, a missing record,
// decision or reduction.
absl::StatusOr<CheckReport> CheckStep(const plan::Plan& plan, const std::vector<Program>& programs);

}  // namespace phalanx::schedule
