// core/plan/copy_takers.h: who takes which copies of state out of the memory of nodes' daemons.
//
// A copy stays on the node where its rank has trained, and the rank may have its place on another
// one by the time it is needed: a spare has taken over. So copies are taken by who works on their
// node, whoever made them.
//
// Pure.
#pragma once

#include "core/base/ids.h"
#include "core/plan/plan.h"

namespace phalanx::plan {

// Whose copies of earlier epochs a rank with work asks its node's daemon for: its own, first, and
// if it is the first of its node that has work, those of all ranks that have none there. So each
// daemon of a node on which some rank has work is asked for every rank, by one of them.
RankList CopiesToTake(const Plan& plan, Rank rank);

}  // namespace phalanx::plan
