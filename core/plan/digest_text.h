// core/plan/digest_text.h: the text whose digest stands for a plan. Pure.
#pragma once

#include <string>

#include "core/plan/plan.h"

namespace phalanx::plan {

// Everything that decides what a rank does, a line a thing, numbers in full precision, devices as
// runs. Two plans with the same text run alike; any difference shows.
std::string CanonicalText(const Plan& plan);
// The plan's ranks take their algorithms of products from that table (Layout::products), or from
// none where it is empty: of all that a plan says its digest alone follows from it.
void TakeProducts(std::string table, Plan& plan);

}  // namespace phalanx::plan
