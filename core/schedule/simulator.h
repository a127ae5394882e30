// core/schedule/simulator.h: times the programs of a step under a cost model. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/cost.h"
#include "core/schedule/program.h"

namespace phalanx::schedule {

// Seconds, for one microbatch on one rank of the part.
struct PartCost {
  double forward = 1, backward_input = 1, backward_weight = 1;
};
struct CostModel {
  std::vector<std::vector<PartCost>> parts;  // [module][pp * chunks + chunk]
  double message = 0;                        // seconds a message
};
// From shapes: FLOPs over a nominal rate; what matters is the ratio between parts.
CostModel CostFromShapes(const plan::Plan& plan);

struct TimedInstruction {
  Rank rank;
  Instruction instruction;
  double begin = 0, end = 0;  // seconds from the start of the step
};
struct Simulation {
  double step = 0;         // seconds
  double bubble = 0;       // 1 - busy / (ranks x step), idle ranks left out
  double lower_bound = 0;  // bubble at the bound T of the pipeline: no schedule does better
  std::vector<TimedInstruction> timeline;
};
Simulation Simulate(const plan::Plan& plan, const std::vector<Program>& programs, const CostModel& costs);

}  // namespace phalanx::schedule
