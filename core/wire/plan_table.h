// core/wire/plan_table.h: a plan as people read it.
//
// A function of its arguments alone; throws nothing.
#pragma once

#include <string>

#include "core/plan/plan.h"
#include "core/wire/plan_text.h"

namespace phalanx::wire {

// At most 100 columns: modules with their layouts, edges, ranks with their stages and units,
// memory, schedule and what else was tried. Ranks beyond the first 64 are summed up in a line.
std::string PlanTable(const plan::Plan& plan, const PlanFigures& figures);

}  // namespace phalanx::wire
