// core/schedule/builder.h: programs by rank class, and under costs other than those from shapes.
//
// Costs decide the order of messages and nothing else. Ranks must agree on it, so what they execute
// comes from the plan alone (program.h). Pure.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "core/schedule/cost_model.h"
#include "core/schedule/pipeline.h"
#include "core/schedule/program.h"

namespace phalanx::schedule {

// Programs of pipeline.classes. As BuildStep.
absl::StatusOr<std::vector<Program>> BuildStepOfClasses(const plan::Plan& plan,
                                                        const Pipeline& pipeline,
                                                        const CostModel& costs);
// Programs of all ranks. As BuildStep.
absl::StatusOr<std::vector<Program>> BuildStepWithCosts(const plan::Plan& plan,
                                                        const CostModel& costs);

}  // namespace phalanx::schedule
