// coordinator/runtime/curve.h: loss and throughput of a job over its steps, in bounded memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/machine/records.h"

namespace phalanx::coordinator {

// Keeps every step while there are few, then every second, every fourth, ... so that there are
// never more than kPointsMax. Steps that are done again replace what they were. Not thread-safe.
class Curve {
 public:
  static constexpr size_t kPointsMax = 512;
  void Add(const StepReport& report);
  // The same for a point that was kept before (Thinned), in the order of steps.
  void Add(const CurvePoint& point);
  // By step, ascending.
  const std::vector<CurvePoint>& points() const { return points_; }
  // At most `count` of them, above 0, as evenly as Add thins them.
  std::vector<CurvePoint> Thinned(size_t count) const;

 private:
  std::vector<CurvePoint> points_;
  int64_t stride_ = 1;  // a power of two; points are of steps that it divides
};

}  // namespace phalanx::coordinator
