// core/plan/preparation.h: what the ranks of a job make ready beside their layout, for the loss of
// another device.
//
// Before its first step a process on a GPU tries the layout behind the loss of each other rank, so
// that the job's first recovery runs nothing for the first time (worker/rank/warm_run.cc), if that
// layout fits the device; where less than kPreparedRoom is left then, what trying took goes back.
// What comes behind a recovery is tried by processes that are new alone. While it trains, ranks
// make the communicators of these layouts (docs/decisions/0030-standby.md), and where state has its
// second home in host memory, the first two ranks of a node pin the copies that they would take
// over, with room for them on the device.
//
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/plan/plan.h"

namespace phalanx::plan {

// Devices of a job whose losses are prepared for. With more of them a loss is rarer than the memory
// that this takes is dear.
inline constexpr int32_t kPreparedDevicesMax = 8;
// Bytes that a device has left before anything more of it is taken for that.
inline constexpr int64_t kPreparedRoom = int64_t{4} << 30;

// The plan behind the loss of one rank, whatever the memory of its devices, one epoch later.
// Errors: those of PlanAfter.
absl::StatusOr<Plan> PlanBehindLoss(const Plan& plan, Rank lost);

// OK where all state that a rank keeps has another home: its loss leads to a layout that begins
// with that. Errors: FailedPrecondition.
absl::Status MayBeLost(const Plan& plan, Rank rank);
// Whether the other home of some state that these ranks keep is in host memory: without them
// training can but go back to copies.
bool NeedsCopies(const Plan& plan, const RankList& lost);
// Whether the communicators of `next`, the plan behind the loss of `lost`, are made beforehand.
bool HasStandby(const Plan& plan, Rank lost, const Plan& next);

// Whose copies of state in host memory a rank would take if one other rank of its node were lost:
// of the first that has work those of all, of the second those of the first.
std::vector<int32_t> RanksToTakeOver(const Plan& plan, Rank self);
// The same for each rank, [world].
std::vector<std::vector<int32_t>> RanksToTakeOver(const Plan& plan);
// What a device takes for `state` bytes of masters and moments that it takes over: beside them come
// gradients and weights, half as much again.
inline int64_t BytesToTakeOver(int64_t state) { return state + state / 2; }

}  // namespace phalanx::plan
