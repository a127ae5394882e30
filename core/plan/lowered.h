// core/plan/lowered.h: a module on fewer ranks than its grid has, with lower degrees.
//
// What the rung `restart` does where a module cannot go on in the shape that it has (loss.h). A
// pure function of the healthy module and the ranks that are left.
//
// Pure.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/plan.h"

namespace phalanx::plan {

// Degrees below those that take at most so many ranks, in the order in which they are tried: dp is
// lowered first, then pp, then tp. Of each pp and tp that with most replicas: fewer of them hold
// more each, so what has no room in this one has none in the others.
std::vector<Degrees> LowerDegrees(const Degrees& healthy, int64_t ranks);

// Lays a module on `degrees` over ranks of its grid that are not in `gone`, of which there are
// enough. Tensor groups are of ranks that were neighbours in one as far as these suffice, and stand
// at the stage that is nearest to the one where they were, so that state stays and groups stay on
// their nodes. Layers stay where pp does; else they are balanced by cost. `plan`: one in
// which the module has not restarted; what it has lost there does not matter.
LoweredGrid LowerOnto(const Plan& plan, int32_t module, const Degrees& degrees,
                      const std::set<Rank>& gone);

// Whether some module of the layout has restarted.
bool HasRestarts(const Layout& layout);
// The plan with such modules in their healthy form, as if nothing of them were lost. Errors: those
// of Expand.
absl::StatusOr<Plan> WithoutRestarts(const Plan& running);

}  // namespace phalanx::plan
