// tests/e2e/recovery/elements.h: what two checkpoints of a job in fp64 have, element by element.
#pragma once

#include <string>

namespace phalanx::e2e {

// The largest difference between elements of masters and moments of two checkpoints, which may be
// of other layouts. Both folders are there, whole, and have the same elements: else it throws.
double WorstDifference(const std::string& a, const std::string& b);

}  // namespace phalanx::e2e
