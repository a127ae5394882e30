// core/schedule/power.h: which clock a device keeps up within its power limit.
//
// Times that were measured alone, at a high clock, add up to less than a step takes where a board
// is held to its limit. Where a profile has seconds and joules at two clocks, what work takes at
// another clock f goes through both points:
//   seconds a + b / f: memory and links keep their pace, the rest follows the clock
//   joules  idle * seconds + c + d * f^2: with f the voltage rises, and a switch takes the square
//           of it (dynamic power goes as f * V(f)^2)
// A device's clock is the highest at which the joules of its work, and of idling while it waits,
// over the step are within the limit. Each has its own; how long it waits follows from what no
// schedule beats at the profile's clock (bound.h). So it takes a fixed number of operations a rank
// class, and the same for everybody who asks. Pure.
#pragma once

#include <vector>

#include "core/plan/plan.h"
#include "core/schedule/cost_model.h"
#include "core/schedule/pipeline.h"
#include "core/schedule/profile.h"
#include "core/schedule/work_model.h"

namespace phalanx::schedule {

// What a device can do.
struct ClockRange {
  double fast_mhz = 0, slow_mhz = 0;  // where its work was measured; fast > slow > 0
  double idle_watts = 0, limit_watts = 0;
};
// Of a profile with power.
ClockRange RangeOf(const DeviceProfile& profile);
// A clock is searched for by so many halvings of what is left of a range.
inline constexpr int kHalvings = 50;
// Work at both.
struct WorkAtClocks {
  double fast_seconds = 0, slow_seconds = 0;
  double fast_joules = 0, slow_joules = 0;
};
// Seconds at another clock; never less than at the fast one.
double SecondsAt(const ClockRange& range, double clock_mhz, double fast_seconds,
                 double slow_seconds);
// The clock, at most the fast one and at least a fourth of the slow one, at which the work and so
// many seconds of waiting stay within the limit.
double SustainedClock(const ClockRange& range, const WorkAtClocks& work, double waiting_seconds);

// What the parts of a plan of known families take at the clock that each rank class keeps up. Where
// replicas of a class differ, they go at the clock of the one that works longest.
class SustainedCosts {
 public:
  SustainedCosts(const plan::Plan& plan, const Pipeline& pipeline, const DeviceProfile& profile,
                 int32_t items)
      : SustainedCosts(plan, pipeline, profile, items, UpdatesOf(plan)) {}
  // `updates`: of the plan.
  SustainedCosts(const plan::Plan& plan, const Pipeline& pipeline, const DeviceProfile& profile,
                 int32_t items, const Updates& updates);

  // A part of several rank classes goes at the lowest of their clocks.
  const CostModel& costs() const { return costs_; }
  // Of each rank class; the profile's where it has no power.
  const std::vector<double>& clocks() const { return clocks_; }
  // Of a microbatch of one part, with what of it is recomputation and exchange.
  const std::vector<PassSeconds>& parts() const { return parts_; }

 private:
  void Solve(const plan::Plan& plan, const Pipeline& pipeline, const DeviceProfile& profile,
             int32_t items, const Updates& updates);
  void SlowDown(const Pipeline& pipeline, const ClockRange& range, const CostModel& slow_costs,
                const std::vector<PassSeconds>& slow_parts);

  CostModel costs_;
  std::vector<double> clocks_;
  std::vector<PassSeconds> parts_;
};

}  // namespace phalanx::schedule
