// core/schedule/admission.h: the plan under which a job is admitted to its devices.
//
// It fits them, and where that can be had also what is left of it without any one of them: a
// narrowed replica holds more of everything, and state that moves is there twice for a moment. For
// that a plan may lower what does not change what is trained: samples of a microbatch, then the
// homes of optimizer state (host memory for mirrors), then what activations keep (norms and the
// like of all modules, all of the others, all of the language module); and it says so.
// What that does not help, such as the only rank of a module, keeps nothing else from being
// lowered; it is planned so that most devices can be lost, and says what losing one of the others
// costs.
//
// It fits the memory of the nodes, too, with the copies that checkpoints are written from and the
// second homes in host memory. Second homes that a node has no room for are left out where the job
// does not ask for them by name; what cannot be left out is refused, since nothing that may be
// lowered makes it less.
//
// A function of its arguments, so that whoever plans a job decides alike. Pure.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/plan/change.h"
#include "core/plan/memory_fit.h"
#include "core/plan/part_sizes.h"
#include "core/plan/plan.h"
#include "core/schedule/losses.h"
#include "core/schedule/process_memory.h"

namespace phalanx::schedule {

// Memory that moving state takes beside it: one block on its way in, one out.
inline constexpr int64_t kMoveBytes = int64_t{128} << 20;

// As PlanJob. `limits`: of the cluster's devices and nodes, in its order. The plan's notes have a
// sentence of what was lowered ("batch.micro is 2 instead of 4: without node-0/1 ...") and of what
// cannot be tolerated ("losing device node-0/3 costs up to 50 steps: ..."), of each module that
// tolerates no loss (tolerance.h), of second homes that
// are left out ("optimizer state of module X has no second home: node-0 needs 96.0 GiB of host
// memory for second homes of optimizer state and has 64.0 GiB"), and of several nodes, which of
// them, or of their failure domains, has all homes of some state.
// Errors: those of PlanJob; InvalidArgument with a violation of spec.modules where no plan fits,
// and those of plan::CheckHostMemory.
// `beside`: what processes take of the devices beside what plans estimate, which is left to them.
absl::StatusOr<plan::Plan> AdmitJob(const job::JobSpec& spec, const plan::Cluster& cluster,
                                    const plan::MemoryLimits& limits, Epoch epoch,
                                    const BytesBeside& beside = {});

// The same for who asks of many plans of one job on one cluster, without notes of what losing
// devices costs, which take as long as all else.
struct Admitted {
  plan::Plan plan;
  Losses losses;  // what it comes to
};
absl::StatusOr<Admitted> AdmitWithoutRisks(const job::JobSpec& spec, const plan::Cluster& cluster,
                                           const plan::MemoryLimits& limits, Epoch epoch,
                                           const BytesBeside& beside, plan::PartSizes& sizes);

// What is left of a plan that was admitted for a job that begins without the places `lost`
// (plan::PlanWithout), within the same limits, of which its own processes take their part. Its
// notes are those of what was lowered, and of what losing more costs. Errors: those of
// plan::PlanWithout and plan::CheckMemory.
absl::StatusOr<plan::Plan> AdmitWithout(const plan::Plan& healthy, absl::Span<const Rank> lost,
                                        const plan::MemoryLimits& limits,
                                        const BytesBeside& beside = {});
// The same of what is left of `running`, or has come back (plan::PlanAfter), without notes of what
// losing more costs: training stands still for this plan. Whoever trains goes on as tightly as it
// was admitted, so that nothing is left to processes here.
absl::StatusOr<plan::Plan> AdmitAfter(const plan::Plan& running, const plan::Change& change,
                                      const plan::MemoryLimits& limits);

}  // namespace phalanx::schedule
