// tests/bench/faults/coordinators.h: whether anything is lost when a coordinator dies.
#pragma once

#include <cstdint>

namespace phalanx::e2e {

// Both kill -9 a coordinator so many times, each at a random moment of its life, under two streams
// of submits, cancels and suspends, one of which cordons and uncordons the node too, while a job
// trains, and print a line of JSON. Whether nothing that was acknowledged is missing or double, no
// rank ended, and no step is missing or double.

// The only one, which is started again at once.
bool KillCoordinators(int64_t kills);
// Whichever of two over one etcd leads; the one that was killed is started again and stands by.
// Also whether somebody else served, with the job's worker, within 5 s each time.
bool KillLeaders(int64_t kills);

}  // namespace phalanx::e2e
