// core/job/references.h: what a spec's fields say about one another: names of modules become
// indices, and what is left out follows from the rest. Pure.
#pragma once

#include "core/job/job_spec.h"
#include "core/job/report.h"

namespace phalanx::job {

// The offset of a module whose place is not known, because something about it is wrong.
inline constexpr int32_t kUnplaced = -1;

// Fills, after core/job/fields.h: language, ends of edges and offsets from the names and numbers
// that are written; then sizes and degrees that are derived. A reference that cannot be resolved is
// a violation, or, if a violation elsewhere is the reason, only not sound.
void ResolveReferences(Report& report, JobSpec& spec);

}  // namespace phalanx::job
