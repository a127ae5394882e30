// core/plan/loss.h: the layout that follows when places of a job are lost, or back.
//
// In each replica of a module that lacks ranks, the first rung of `recovery.ladder` that can be
// taken decides: *spare* gives its lost places devices that idle; *shrink* leaves its hit stages to
// the ranks that survive, in unit order; *drop-replica* leaves the replica out, and its other ranks
// to other modules, or idle. Widths follow `recovery.widths`: own, each stage as wide as it can be;
// parity, every narrowed stage of the module as narrow as the narrowest, with the last of its
// survivors idle.
//
// What is left follows from the healthy grid and all places that are lost, not from the way there:
// whether they were lost one after another or at once, or were more before some came back, the same
// is left, but for two things that state stays where it is for: the order in which replicas share
// (replica_order.h), and whose places the devices of spares are. Without a lost place it is the
// layout that was admitted, homes of optimizer state included. The schedule stays, and so do
// layers but where a module restarts: nobody searches again after a loss. So does what else
// admission has lowered.
//
// A module *restarts* (`restart`) where some hit replica has no rung before it, none is left, or
// what is left with the other rungs does not fit memory: it is laid out anew on its ranks that are
// left, with the highest degrees that fit, where dp is lowered before pp and pp before tp
// (lowered.h). Its other ranks idle. What is lost next, or back, is judged by its healthy grid as
// ever.
//
// A spare is a device that idles while no module can use it in its own place: beyond the ranks, of
// a rank in no module, or of replicas that are left out. It changes places with the lost one: the
// rank stays, and the spare's place is lost. Replicas that lack least are served first, after those
// without which a module has none; one that cannot be made whole is widened as far as spares go, if
// it may shrink at all.
//
// A replica with a slow place is dealt fewer samples, as long as its device is slow (SpeedsOf).
// Where a module has restarted, samples are dealt evenly and nobody is slow.
//
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/plan/change.h"
#include "core/plan/memory_fit.h"
#include "core/plan/part_sizes.h"
#include "core/plan/plan.h"

namespace phalanx::plan {

// What was done for a replica that lacks ranks. One that got some spares, not enough, is there
// twice.
struct Taken {
  int32_t module = 0, replica = 0;
  job::Rung rung = job::Rung::kShrink;  // or kSpare, kDropReplica, kRestart
  std::string why;  // "stage 1 goes on with 3 of 4 tensor ranks", "node-1/0 takes over rank 3"
  friend bool operator==(const Taken&, const Taken&) = default;
};

struct NextLayout {
  Layout layout;
  // By module, replica, rung: of all replicas that lack ranks now, whenever they lost them, and of
  // those in which spares take over.
  std::vector<Taken> taken;
};

// The layout of the next epoch; what was lost before stays lost. Samples are shared by what
// replicas can do (SpeedsOf). O(ranks of the hit replicas), so that a plan of 131,072 ranks takes
// no longer than its changes. Whether it fits memory is for the caller to see (memory_fit.h): homes
// that were left out for want of room are back. `limits` decide alone whether modules restart, and
// with which degrees.
// Errors: those of CheckChange; FailedPrecondition where a module would be left without a replica,
// the ladder has no rung that can be taken, a module has to restart and no degrees fit, or places
// are to be slow from now on where a module has restarted.
// `sizes`: of whoever asks for more plans of the job; nullptr: nobody.
absl::StatusOr<NextLayout> LayoutAfter(const Plan& running, const Change& change,
                                       const MemoryLimits& limits = {}, PartSizes* sizes = nullptr);

// The plan of a job that begins without the places `lost`: LayoutAfter of its healthy plan without
// spares, in the same epoch and with its notes of what was lowered.
// Errors: those of LayoutAfter.
absl::StatusOr<Plan> PlanWithout(const Plan& healthy, absl::Span<const Rank> lost,
                                 const MemoryLimits& limits = {});
// The plan of LayoutAfter, in the epoch of `running`, which the caller numbers, and with its notes
// of what was lowered. Errors: those of LayoutAfter.
absl::StatusOr<Plan> PlanAfter(const Plan& running, const Change& change,
                               const MemoryLimits& limits = {}, PartSizes* sizes = nullptr);

}  // namespace phalanx::plan
