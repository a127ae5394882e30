// coordinator/runtime/plan_products.h: which jobs take algorithms of products from the table that
// their nodes have (core/schedule/product_table.h), and what that means for their plans.
//
// Thread-safe: no state.
#pragma once

#include "coordinator/machine/actions.h"
#include "core/job/job_spec.h"
#include "core/plan/plan.h"

namespace phalanx::coordinator {

bool TakesProducts(const job::JobSpec& spec);

// A job goes on without its table where a node does not have it, which a note says; it never gets
// another one.
void KeepProducts(const ComputePlan& order, plan::Plan& plan);

// Less memory of each device that is limited, for what products take beside their operands: no
// job's estimate has it.
void LeaveRoomForProducts(const job::JobSpec& spec, ComputePlan& order);

}  // namespace phalanx::coordinator
