// core/plan/copy_takers.h: who takes which copies of state out of the memory of nodes' daemons.
//
// A copy stays on the node where its rank has trained, and the rank may have its place on another
// one by the time it is needed: a spare has taken over. So copies are taken by who works on their
// node, whoever made them. Where nobody works there any more, as on a node whose only device is
// gone, a process without a device gives them to ranks of other nodes: it is known by a place of
// its node, the *keeper*.
//
// Pure.
#pragma once

#include <vector>

#include "core/base/ids.h"
#include "core/plan/plan.h"

namespace phalanx::plan {

// Whose copies of earlier epochs a rank with work asks its node's daemon for: its own, first, and
// if it is the first of its node that has work, those of all ranks that have none there. So each
// daemon of a node on which some rank has work is asked for every rank, by one of them.
RankList CopiesToTake(const Plan& plan, Rank rank);

// The copies of a rank that lie where nobody works any more.
struct InheritedCopies {
  Rank of, keeper, taker;
  friend bool operator==(const InheritedCopies&, const InheritedCopies&) = default;
};
// Of copies that lie in the layout of `before`, by rank, those of ranks with work in it that the
// nodes of `keepers` (places of `next`) have. They go to the rank itself, where it works on another
// node now; where it has no work, to nodes with work in turn, on each to its ranks in turn. A
// keeper on whose node some rank has work gives nothing, nor does one that is no place.
std::vector<InheritedCopies> CopiesToInherit(const Plan& before, const Plan& next,
                                             const RankList& keepers);

}  // namespace phalanx::plan
