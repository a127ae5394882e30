// core/schedule/builder.h: programs of all ranks at once, one for each rank class. Pure.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "core/schedule/pipeline.h"
#include "core/schedule/program.h"

namespace phalanx::schedule {

// Programs of pipeline.classes. Errors: as BuildStep.
absl::StatusOr<std::vector<Program>> BuildStepOfClasses(const plan::Plan& plan,
                                                        const Pipeline& pipeline);

}  // namespace phalanx::schedule
