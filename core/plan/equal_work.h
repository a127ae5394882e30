// core/plan/equal_work.h: which ranks of a plan do the same work in every step, so that one which
// takes longer than the others is slow.
//
// Ranks do the same if they stand at the same places of their replicas (module, stage, tensor and
// context position) and these have the same widths and are dealt as many samples. A rank that no
// other replica has a like of does what those tensor ranks of its own stage do that hold as many
// units of each kind. Samples differ in length, so of single steps this is true on average only.
//
// Ranks do *like* work if they do the same to each sample, of which they may be dealt more or less.
//
// Pure.
#pragma once

#include <cstdint>

#include "core/base/ids.h"
#include "core/plan/plan.h"

namespace phalanx::plan {

// The same number for ranks of one plan that do the same work, another one for others; it may be of
// one rank alone. 0: the rank has no work.
uint64_t EqualWork(const Plan& plan, Rank rank);
// Likewise of ranks that do like work.
uint64_t LikeWork(const Plan& plan, Rank rank);

}  // namespace phalanx::plan
