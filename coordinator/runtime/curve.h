// coordinator/runtime/curve.h: loss and throughput of a job over its steps, in bounded memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/machine/records.h"

namespace phalanx::coordinator {

struct CurvePoint {
  int64_t step = 0;
  float loss = 0;
  float tokens_per_second = 0;  // 0: not known
};

// Keeps every step while there are few, then every second, every fourth, ... so that there are
// never more than kPointsMax. Steps that are done again replace what they were. Not thread-safe.
class Curve {
 public:
  static constexpr size_t kPointsMax = 512;
  void Add(const StepReport& report);
  // By step, ascending.
  const std::vector<CurvePoint>& points() const { return points_; }

 private:
  std::vector<CurvePoint> points_;
  int64_t stride_ = 1;  // a power of two; points are of steps that it divides
};

}  // namespace phalanx::coordinator
