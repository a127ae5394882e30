// tests/bench/faults/away.h: a coordinator that is away for long, and jobs that lose ranks
// meanwhile.
#pragma once

#include <cstdint>

namespace phalanx::e2e {

// Six jobs of the same four ranks train: one is never hit, and each of the others has one rung of
// the ladder, or none. The coordinator is killed, at half of `minutes` a rank of each of those, and
// at their end the coordinator is started again. Prints a line of JSON with what became of each.
// Whether those that have a rung go on with the losses of the one that was not hit, every step
// once, and the one without has failed; each for the rank that was killed, and no other process
// but a killed one has restarted.
bool LeaveWithoutCoordinator(int64_t minutes);

}  // namespace phalanx::e2e
