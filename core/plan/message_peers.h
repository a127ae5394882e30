// core/plan/message_peers.h: with whom a rank exchanges messages, on which communicator.
//
// A device connects two ranks at their first message, beside kernels that may be waiting for the
// very ranks that connect. So whoever connects communicators is told before (WorldOptions::peers).
//
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/plan/part_sizes.h"
#include "core/plan/plan.h"

namespace phalanx::plan {

// By communicator, ascending, in its ranks; nothing where `rank` is no member. The messages are
// those of links, in training and in evaluation of any number of samples, those that keep copies
// alike (copy_exchange.h), those that reduce, or bring mirrors sums, where no collective does
// (reduction.h), and, in every epoch but the first, those in which state moves (relayout.h). Two
// ranks name each other or neither does.
std::vector<std::vector<int32_t>> MessagePeers(const Plan& plan, Rank rank,
                                               absl::Span<const CommunicatorSpec> specs);

// With how many a rank exchanges messages, in the sum over its communicators of a
// use: as many as MessagePeers names. Modules that share a group are counted once, as the one with
// most.
struct PeerCounts {
  int32_t links = 0;  // those of forward communicators, and of backward ones
  int32_t control = 0, tensor = 0, data = 0;
};
// Of every rank, in a fraction of the time of asking each; it takes a bit for every two.
std::vector<PeerCounts> CountPeers(const Plan& plan, PartSizes& sizes);

}  // namespace phalanx::plan
