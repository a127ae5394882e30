// core/plan/replica_order.h: in which order the replicas that are left share what all of them did.
//
// When replicas of a module go or come, shares grow or shrink, and almost none keeps its place: of
// four replicas of which the last goes, in ascending order, half of the state has another primary
// home. Whoever is first, second, ... of those that are left is free, and a mirror has a share as
// well as its primary. So each new share goes to a replica that has most of it: in the example 1/12
// of the state has to move before the next step. What mirrors lack follows beside the steps, and is
// not weighed: a mirror that has become the primary needs another one, so in all more may move than
// in ascending order.
//
// Pure.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "core/plan/plan.h"
#include "core/plan/replica_table.h"

namespace phalanx::plan {

// ModuleLayout::order of the layout in which `left` are the replicas of `module`, `before` being
// the plan that runs: its order while the same replicas are there, else as above. Empty: ascending;
// so it is when all of them are there. The homes are those of the first stage's first tensor ranks;
// the other stages are taken to be on nodes alike. `fresh`: ranks that are on other devices now,
// and have nothing. O(replicas (log replicas + state_copies^2) + fresh).
std::vector<int32_t> OrderAfter(const Plan& before, int32_t module, const ReplicaTable& left,
                                const std::set<Rank>& fresh = {});

}  // namespace phalanx::plan
