// core/plan/kept_state.h: whether a layout that nobody has to go over to keeps all state.
//
// A rank gives the others what they lack as long as it has work in the next layout, too, on the
// device that it has; the process of any other one ends. After a loss ranks find out whether
// something is missing. Ranks that come back are no reason to lose anything.
//
// Pure.
#pragma once

#include "absl/status/status.h"
#include "core/plan/plan.h"

namespace phalanx::plan {

// `before`: in which ranks train. `after`: of a layout of the same job. `mirrored`: whether mirrors
// have all that `before` gives them; else primary homes alone do. Weights that do not train are
// looked at, too: of these, the ranks of a stage of some replica have to stay. O(ranks), and what
// the tables of those stages take (state_table.h) in which some rank does not stay.
// Errors: DataLoss, which names such ranks.
absl::Status CheckStateIsKept(const Plan& before, const Plan& after, bool mirrored);
// The same where the processes of `gone` are lost with what they had, and mirrors have all.
// Errors: DataLoss.
absl::Status CheckStateBeside(const Plan& plan, const RankList& gone);

}  // namespace phalanx::plan
