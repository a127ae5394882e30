// tests/bench/faults/recoveries.h: how long a job stands still that loses a rank.
#pragma once

#include <cstdint>

namespace phalanx::e2e {

// kill -9 of a rank of jobs on three nodes, `tries` times, a part of them in each of four layouts,
// each once all ranks are back. Prints a line of JSON with, of kill to all that are left having
// stopped, and of kill to the next decided step having been read by a watcher: percentiles; and of
// each layout its steps and what the processes hold at the beginning and at the end. Whether both
// are as fast as they must be, every step is done once with the loss of a run that was not hit (to
// 1e-9 of it), and nothing has grown.
bool KillAndReturn(int64_t tries);

}  // namespace phalanx::e2e
