// core/schedule/admission.h: the plan under which a job is admitted to its devices.
//
// It fits them, and where that can be had also what is left of it without any one of them: a
// narrowed replica holds more of everything, and state that moves is there twice for a moment. For
// that a plan may lower what does not change what is trained: samples of a microbatch, then the
// homes of optimizer state (host memory for mirrors), then what activations keep; and it says so.
// What that does not help, such as the only rank of a module, keeps nothing else from being
// lowered; it is planned so that most devices can be lost, and says what losing one of the others
// costs.
//
// A function of its arguments, so that whoever plans a job decides alike. Pure.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/plan/plan.h"

namespace phalanx::schedule {

// Memory that moving state takes beside it: one block on its way in, one out.
inline constexpr int64_t kMoveBytes = int64_t{128} << 20;

// As PlanJob. `device_memory`: bytes of the cluster's devices, in its order; 0, or no entry: not
// known, which fits. The plan's notes have a sentence of what was lowered ("batch.micro is 2
// instead of 4: without node-0/1 ...") and of what cannot be tolerated ("losing device node-0/3
// costs up to 50 steps: ..."), and of several nodes, which of them has all homes of some state.
// Errors: those of PlanJob; InvalidArgument with a violation of
// spec.modules where no plan fits.
absl::StatusOr<plan::Plan> AdmitJob(const job::JobSpec& spec, const plan::Cluster& cluster,
                                    absl::Span<const int64_t> device_memory, Epoch epoch);

}  // namespace phalanx::schedule
