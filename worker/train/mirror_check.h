// worker/train/mirror_check.h: whether mirrors hold what the primary homes of their shares do, to
// the bit: masters, moments, and of which step and how many updates these are.
//
// Homes tell their mirrors sums over the bits of what these are to hold, bucket by bucket, modulo
// 2^64: any one element that differs shows.
#pragma once

#include "absl/status/status.h"
#include "core/plan/plan.h"
#include "worker/comm/communicator.h"
#include "worker/train/training_state.h"
#include "worker/train/verified_exchange.h"

namespace phalanx::train {

// Of a state that lies in the layout of `plan`, with nothing under way. Every rank that has work
// calls it, in a group that has all of these; without a communicator: there is one. What a mirror
// lacks still (StateBlock::lacking) is not looked at. On CPU alone: a device would have to read all
// of its state while training waits, and what comes to mirrors is hashed on its way. Nor is it
// under the derivation before kDerivationOfComparedMirrors, whose ranks say nothing. Errors:
// Internal, naming what differs; those of the communicator.
absl::Status CheckMirrors(const plan::Plan& plan, TrainingState& state, const BulkGroup& group);
// `control`: of all ranks that have work, in their order.
absl::Status CheckMirrors(const plan::Plan& plan, TrainingState& state,
                          comm::Communicator* control);

}  // namespace phalanx::train
