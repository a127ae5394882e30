// tests/bench/faults/leaders.h: whether anything is lost when the leader of two coordinators dies.
#pragma once

#include <cstdint>

namespace phalanx::e2e {

// kill -9 of whichever of two coordinators over one etcd leads, so many times, each at a random
// moment of its life, under two streams of submits, while a job trains; the one that was killed is
// started again and stands by. Prints a line of JSON. Whether nothing that was acknowledged is
// missing or double, no rank ended, no step is missing or double, and somebody else served, with
// the job's worker, within 5 s each time.
bool KillLeaders(int64_t kills);

}  // namespace phalanx::e2e
