// worker/train/warm_up.h: a new process makes ready for its place in a plan, before it has peers.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "core/base/ids.h"
#include "core/plan/plan.h"
#include "worker/train/batches.h"
#include "worker/train/training_state.h"
#include "worker/train/warm_passes.h"

namespace phalanx::train {

// Runs the rank's passes of the plan's first step that `warm` has not (Executor::RunPassesAlone).
// `state` lies in the plan's layout and is of no use afterwards; what the device had to take for it
// and for activations LibTorch keeps for the next. Returns once the device has done it. Errors:
// Cancelled after a request to stop of the state; what stages and samples return.
absl::Status WarmUpAlone(const plan::Plan& plan, Rank rank, SampleSource& source,
                         TrainingState& state, int64_t length_multiple, WarmPasses& warm);

}  // namespace phalanx::train
