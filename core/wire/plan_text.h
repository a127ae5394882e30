// core/wire/plan_text.h: what JSON, tables and pictures of a plan have in common.
#pragma once

#include <cstdint>
#include <string>

#include "core/plan/plan.h"

namespace phalanx::wire {

// "3-7", "3", "-" for none.
std::string RunText(int64_t first, int64_t count);
// As job files spell it; "-" for none.
std::string FamilyName(job::Family family);
// Layer counts, stage by stage, equal neighbours together, chunks of one stage behind each other:
// "3+3", "8x10+7", "2/2+2/1".
std::string LayerCounts(const plan::ModulePlan& layout);

// Whether ranks at a pipeline coordinate hold the module's first or last part in one of their
// chunks. Under a V-shaped placement the ranks of coordinate 0 hold both.
bool HoldsFirst(const plan::ModulePlan& layout, int32_t stage);
bool HoldsLast(const plan::ModulePlan& layout, int32_t stage);

}  // namespace phalanx::wire
