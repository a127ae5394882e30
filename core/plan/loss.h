// core/plan/loss.h: the layout that is left when devices are gone.
//
// In each replica of a module that loses ranks, the first rung of `recovery.ladder` that can be
// taken decides: *shrink* leaves its hit stages to the ranks that survive, in unit order;
// *drop-replica* leaves the replica out, and its other ranks to other modules, or idle. Widths
// follow `recovery.widths`: own, each stage as wide as it can be; parity, every narrowed stage of
// the module as narrow as the narrowest, with the last of its survivors idle. Whether ranks are
// lost one after another or at once, the same is left, but for the order in which replicas share:
// that follows from who has what when a replica goes (replica_order.h). The schedule and the layers
// stay: nobody searches again after a loss. So do the homes of optimizer state and whatever else
// admission has lowered, as far as the replicas that are left allow.
//
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/plan/plan.h"

namespace phalanx::plan {

// The layout of the next epoch, without the places `lost`; what was lost before stays lost. Samples
// are shared by what replicas can do (SpeedsOf). O(ranks of the hit replicas), so that a plan of
// 131,072 ranks takes no longer than its changes.
// Errors: InvalidArgument with violations (no place, a place that does not exist, comes twice or is
// lost already); FailedPrecondition where a module would be left without a replica, or the ladder
// has no rung that can be taken.
absl::StatusOr<Layout> WithoutRanks(const Plan& plan, absl::Span<const Rank> lost);

// The plan of a job that begins without the places `lost`: WithoutRanks of its healthy plan, in the
// same epoch and with its notes of what was lowered.
// Errors: those of WithoutRanks.
absl::StatusOr<Plan> PlanWithout(const Plan& healthy, absl::Span<const Rank> lost);

// What each replica of a module can do, relative to the fastest, which has kSpeedOfFastest: one
// over the longest of its stages' times, each with the largest share of units that one of its ranks
// holds. 0: absent. Empty: all alike.
inline constexpr int64_t kSpeedOfFastest = int64_t{1} << 20;
std::vector<int64_t> SpeedsOf(const Plan& plan, int32_t module, const ReplicaTable& replicas);

}  // namespace phalanx::plan
