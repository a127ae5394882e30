// core/plan/digest_text.h: the text whose digest stands for a plan. Pure.
#pragma once

#include <string>

#include "core/plan/plan.h"

namespace phalanx::plan {

// Everything that decides what a rank does, a line a thing, numbers in full precision, devices as
// runs. Two plans with the same text run alike; any difference shows.
std::string CanonicalText(const Plan& plan);

}  // namespace phalanx::plan
