#include "tests/bench/faults/percentile.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace phalanx::e2e {

double Percentile(const std::vector<double>& sorted, double part) {
  const auto index = static_cast<size_t>(std::ceil(part * static_cast<double>(sorted.size()))) - 1;
  return sorted[std::min(index, sorted.size() - 1)];
}

}  // namespace phalanx::e2e
