// worker/train/muted.h: a communicator that can be made to do nothing for a while.
//
// A rank that runs passes alone (warm_passes.h) has nobody to sum and gather with. What would come
// from others is then whatever the memory holds.
//
// Thread rule: as its communicator's.
#pragma once

#include <memory>

#include "core/base/ids.h"
#include "core/plan/plan.h"
#include "worker/comm/communicator.h"

namespace phalanx::train {

// Of `inner`, which outlives it: it does nothing while *muted. `muted` is the caller's, and changes
// only with nothing under way.
std::unique_ptr<comm::Communicator> MakeMuted(comm::Communicator& inner, const bool& muted);
// Those of a rank that is alone: each does nothing (Communicators of plan::Communicators(plan)).
comm::Communicators SilentCommunicators(const plan::Plan& plan, Rank rank);

}  // namespace phalanx::train
