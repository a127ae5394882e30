// tests/bench/kernels/library_races.h: our CUDA kernels and LibTorch's for the same jobs, in one
// run and in turn (ours, theirs, theirs, ours, ...), with L2 emptied before each call.
//
// Their job may take several of their kernels; ours does no less. A library with kernels of its own
// for more of these jobs (SwiGLU, rotation and packing, quick-GELU, casts to FP8) is raced in
// yardstick.cu.
#pragma once

#include <string>

namespace phalanx::bench {

// Prints a line for each job whose name has `pattern`, and one of JSON: {"races", "slower" (names),
// "slowest" (ratio, name)}. False: one of ours takes more than 5 % longer, or one of theirs failed.
bool RunLibraryRaces(const std::string& pattern);

}  // namespace phalanx::bench
