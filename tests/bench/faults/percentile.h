// tests/bench/faults/percentile.h: percentiles of what was measured.
#pragma once

#include <vector>

namespace phalanx::e2e {

// The least of `sorted`, of which there is one at least, that a `part` of them does not pass.
double Percentile(const std::vector<double>& sorted, double part);

}  // namespace phalanx::e2e
