// core/plan/layout_rules.h: what must hold between the parts of a job before it can be laid out.
//
// The job reader checks each field; these rules join several: layers cover stages, widths do not
// exceed units, spans are equal or disjoint, edges join what fits. Pure.
#pragma once

#include <vector>

#include "core/base/violation.h"
#include "core/job/job_spec.h"

namespace phalanx::plan {

// Every violation, in the order of the document.
std::vector<Violation> CheckLayout(const job::JobSpec& spec);

// Modules so that each comes after all that feed it, ties in spec order; fewer than all of them
// when the graph has a cycle.
std::vector<int32_t> DataFlowOrder(const job::JobSpec& spec);

// Pieces that each stage of a module is cut into: of the language module those of the schedule, of
// all others one.
int32_t ChunksOf(const job::JobSpec& spec, int32_t module);

// Whether three_phase runs the module's forwards before the language model's and its backwards
// after them: it is on the same ranks and feeds it, at first or second hand.
bool RunsInPhases(const job::JobSpec& spec, int32_t module);
// Such a module, or one that feeds it: it forwards all microbatches before it may get a gradient.
bool RunsAhead(const job::JobSpec& spec, int32_t module);

}  // namespace phalanx::plan
