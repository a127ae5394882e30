// tests/bench/faults/coordinators.h: whether anything is lost when a coordinator dies.
#pragma once

#include <cstdint>

namespace phalanx::e2e {

// Both kill -9 a coordinator so many times, each at a random moment of its life, under two streams
// of changes while a job trains and short ones come and go (tests/e2e/jobs/load.h), and print a
// line of JSON. One kill of ten, the first among them, falls anywhere in the two seconds after the
// submit of a short job. Whether nothing that was acknowledged is missing or double, no job is
// stuck, no rank ended or was started again, and no step is missing or double.

// The only one, which is started again at once.
bool KillCoordinators(int64_t kills);
// Whichever of two over one etcd leads; the one that was killed is started again and stands by.
// Also whether somebody else served, with both workers, within 5 s each time.
bool KillLeaders(int64_t kills);

}  // namespace phalanx::e2e
