// core/schedule/profile_cost.h: what the passes, updates and messages of a plan take on a kind of
// device (work_model.h), all of whose modules are of known families. Where replicas differ, as
// behind a loss, each has what its width and its samples come to. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/plan.h"
#include "core/schedule/cost_model.h"
#include "core/schedule/pipeline.h"
#include "core/schedule/profile.h"
#include "core/schedule/work_model.h"

namespace phalanx::schedule {

// Of a microbatch, of each part of the plan's pipeline, on the replica that it takes longest on.
// Passes that training leaves out take nothing.
std::vector<PassSeconds> PassesOf(const plan::Plan& plan, const Pipeline& pipeline,
                                  WorkModel& model);

// `updates`: UpdatesOf the plan.
CostModel CostFromProfile(const plan::Plan& plan, const DeviceProfile& profile, int32_t items,
                          const Updates& updates);
CostModel CostFromProfile(const plan::Plan& plan, const DeviceProfile& profile, int32_t items);

}  // namespace phalanx::schedule
