// core/plan/copies.h: what several ranks of one replica hold of a parameter, and who leads.
//
// Norms and the biases behind row-parallel products stand on every tensor rank; a KV head stands on
// each rank that has one of its query heads; a tied embedding stands at both ends of its pipeline.
// Under sequence parallelism norms and biases of the layers see other rows on each rank, so that
// their gradients are summands too.
// Of each such run of elements one holder *leads* (Piece::primary): it alone reduces the run over
// the replicas, has its optimizer state and updates it. The others *follow*. Before the reduction
// followers whose gradient is a summand of its own (Holding::kPartial, kTied) give it to the leader
// (*fold*); after the update all followers take the leader's parameters (*spread*). So every bit of
// a parameter is decided at one place, whatever the order in which a backend adds, and no copy can
// drift.
//
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/parameters.h"
#include "core/plan/plan.h"

namespace phalanx::plan {

// Elements [offset, offset + count) of the follower's flat buffers are [lead_offset, ...) of the
// leader's.
struct CopyRun {
  int64_t lead_offset = 0, offset = 0, count = 0;
  bool folds = false;
  friend bool operator==(const CopyRun&, const CopyRun&) = default;
};

// Everything that one part of one rank follows of one part of another rank, or of another part of
// its own.
struct Copy {
  Place lead, follower;
  int32_t lead_chunk = 0, chunk = 0;
  std::vector<CopyRun> runs;  // ascending in the leader's buffers
};

// Among the tensor ranks of a place's slot, of one chunk, as far as they train: by leader, then
// follower. The same list on every rank of the slot.
std::vector<Copy> CopiesInSlot(const Plan& plan, const Place& place, int32_t chunk);

// Of the replica of a place: between the two ends of its module's embedding, if that is tied,
// trains and has its ends in two parts. The embedding leads.
std::vector<Copy> TiedCopies(const Plan& plan, const Place& place);

}  // namespace phalanx::plan
