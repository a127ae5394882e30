// core/schedule/order_rules.h: what each schedule asks of the order of passes.
//
// This is all that tells schedules apart: everything behind it (timeline, tickets, programs) is the
// same for all of them. Pure.
#pragma once

#include <vector>

#include "core/plan/plan.h"
#include "core/schedule/bound.h"
#include "core/schedule/pipeline.h"
#include "core/schedule/timeline.h"

namespace phalanx::schedule {

// Rules of the plan's schedule (`auto` counts as 1f1b). Where one choice is not best for all plans
// there are several, of which the one whose timeline is shortest is taken, the first of equals.
std::vector<OrderRules> RulesOf(const plan::Plan& plan, const Pipeline& pipeline);

// For forward passes alone, of a pipeline whose parts do not train: a part is ahead of its
// consumers by no more microbatches than there are stages behind it, and one.
OrderRules EvaluationRulesOf(const Pipeline& pipeline);

// What those rules allow, as far as the bound knows it.
BoundOptions BoundOptionsOf(const plan::Plan& plan, const Pipeline& pipeline);

}  // namespace phalanx::schedule
