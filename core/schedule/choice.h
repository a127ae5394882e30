// core/schedule/choice.h: plans of jobs that leave their schedule open.
//
// `auto` tries every schedule that the job can have: 1f1b; zero_bubble_h1; interleaved with the
// written chunks, or 2; zero_bubble_v; and with encoders on the ranks of the language module
// three_phase with 1, 2, 4 and the written encoder_chunks. The last two before it change where
// layers are, so each candidate is planned as if the job named it, and simulated by rank class
// under the costs from shapes (of very long steps beginnings, long_step.h). The shortest step wins;
// of those within a hundredth of it the one that needs the least memory on its worst rank, the
// first in the order above if that is the same too. A graph so large that simulating it would take
// more than some seconds (200 stages; fewer where several modules share ranks) gets 1f1b.
//
// A function of its arguments, so that whoever plans a job chooses alike. Pure.
#pragma once

#include "absl/status/statusor.h"
#include "core/plan/plan.h"

namespace phalanx::schedule {

// As plan::MakePlan, and where the job says `auto`, the plan's spec names the schedule that was
// chosen, with its chunks, and the plan lists what was tried.
// Errors: those of plan::MakePlan.
absl::StatusOr<plan::Plan> PlanJob(const job::JobSpec& spec, const plan::Cluster& cluster,
                                   Epoch epoch);

}  // namespace phalanx::schedule
