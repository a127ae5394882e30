// core/schedule/stalls.h: what an execution that came to a stop waits for. Pure.
#pragma once

#include <string>
#include <vector>

#include "core/schedule/execution_state.h"

namespace phalanx::schedule {

// Who waits for what, a sentence each, at most kStallsMax of them; nothing if every program ran to
// its end.
std::vector<std::string> StallsOf(const ExecutionState& state);

}  // namespace phalanx::schedule
