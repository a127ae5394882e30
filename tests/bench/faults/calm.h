// tests/bench/faults/calm.h: whether a job that only has a hard time is left alone.
#pragma once

#include <cstdint>

namespace phalanx::e2e {

// Six ranks on three nodes for so many minutes, on data that takes longer to decode than to train
// on, beside two threads that do nothing but use the processor. In turn: a rank, a daemon and the
// coordinator do not run for 2 s (SIGSTOP), a rank trains at a third of its speed for 5 s, a
// checkpoint takes 20 s, and, each eighth turn, a shard of data does not answer a rank for 20 s.
// Then another job, whose evaluation waits 20 s for its shards. Prints a line of JSON. Whether no
// rank was found lost, no epoch but the first began, no step is missing or double, and training
// stood still for the data where that was held.
bool LeaveAlone(int64_t minutes);

}  // namespace phalanx::e2e
