// core/wire/plan_dot.h: the module graph of a plan with its layouts, for Graphviz.
//
// A node a module: family, layout ("tp2 pp2 dp1"), ranks, layers of each stage, frozen or not. An
// edge its lane ratio ("4:1") and its projector. Modules of one span of ranks stand in a cluster.
//
// A function of its arguments alone; throws nothing.
#pragma once

#include <string>

#include "core/plan/plan.h"

namespace phalanx::wire {

std::string PlanDot(const plan::Plan& plan);

}  // namespace phalanx::wire
