// core/plan/draft.h: plans that are compared by the thousand, and not acted on.
//
// Pure.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/plan/plan.h"

namespace phalanx::plan {

// As MakePlan of a job whose fields are sound, without a digest.
absl::StatusOr<Plan> DraftPlan(const job::JobSpec& spec, const Cluster& cluster);

// Sets sample_runs and microbatches from the batch of the plan's document, as Expand does. Whoever
// has changed batch.micro of a plan calls it: nothing else depends on that but the digest. Errors:
// InvalidArgument where there are more microbatches than can be planned; unequal replicas make more
// than the document was checked for.
absl::Status DealBatch(Plan* plan);

}  // namespace phalanx::plan
