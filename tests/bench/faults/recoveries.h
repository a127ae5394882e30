// tests/bench/faults/recoveries.h: how long a job stands still that loses a rank.
#pragma once

#include <cstdint>

namespace phalanx::e2e {

// kill -9 of one of six ranks on three nodes, `tries` times, each once all six are back. Prints a
// line of JSON with, of kill to all that are left having stopped, and of kill to the next decided
// step having been read by a watcher: percentiles; and what the processes hold at the beginning and
// at the end. Whether both are as fast as they must be, no step is missing or double, and nothing
// has grown.
bool KillAndReturn(int64_t tries);

}  // namespace phalanx::e2e
