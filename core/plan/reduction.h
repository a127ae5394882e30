// core/plan/reduction.h: what a rank sums over the replicas of a pipeline part each step, with
// whom, and who keeps which result.
//
// The data that kReduce and kGather of a program (core/schedule/program.h) act on. Every bucket is
// cut into shares; a share has one *home*, which alone holds the complete sum, keeps optimizer
// state for what it leads (copies.h) and gives the updated parameters to the others. Copies inside
// the replica are folded before and spread after, so that each element has one place where it is
// summed.
//
// Where the replicas of a stage have one width, share r is the r-th part of the bucket, and one
// collective reduces it. Else shares are intervals of rulers (shares.h): each rank gives what it
// leads to the homes and takes what it is home of, in one exchange of messages a bucket, and the
// home sums in the order of the replicas.
//
// A share may have *mirrors* too, ranks of other replicas that lead it there: they receive the
// home's sums, and so its bits, and keep the same optimizer state. Where every replica is a home of
// all (EveryReplicaIsHome), each updates all parameters itself and is given none, and where they
// have one width, too, one collective brings each all sums.
//
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/copies.h"
#include "core/plan/parameters.h"
#include "core/plan/plan.h"
#include "core/plan/units.h"

namespace phalanx::plan {

// What a rank exchanges with one other of its group. Runs are elements of its own flat buffers,
// ascending; what one end gives and the other takes are the same elements in the same order.
struct SharePeer {
  int32_t peer = 0;              // position in Reduction::group
  std::vector<UnitRange> give;   // led by this rank; the peer is their home
  std::vector<UnitRange> take;   // led by the peer; this rank is their home
  int64_t given = 0, taken = 0;  // elements
  friend bool operator==(const SharePeer&, const SharePeer&) = default;
};

// A run that this rank is the home of.
struct SummedRun {
  UnitRange elements;
  // Of each replica where its summand begins in what this rank takes, peer after peer; -1: in this
  // rank's own buffer.
  std::vector<int64_t> sources;
  friend bool operator==(const SummedRun&, const SummedRun&) = default;
};

// Sums that go from a home to a mirror; both have them at places of their own, ascending.
struct MirrorPeer {
  int32_t peer = 0;             // position in Reduction::group
  std::vector<UnitRange> runs;  // of the rank's own flat buffers
  friend bool operator==(const MirrorPeer&, const MirrorPeer&) = default;
};

struct ReducedBucket {
  UnitRange elements;                      // of the part's flat buffers
  bool even = true;                        // share r is the r-th part: EvenShare
  std::vector<UnitRange> own;              // what this rank is the home of, ascending
  std::vector<SharePeer> peers;            // !even: those with something to give or take, ascending
  std::vector<SummedRun> sums;             // !even: cover `own`, ascending
  std::vector<MirrorPeer> to_mirrors;      // of `own`, by peer
  std::vector<MirrorPeer> from_primaries;  // what this rank mirrors, by peer
  friend bool operator==(const ReducedBucket&, const ReducedBucket&) = default;
};

struct Reduction {
  PartId part;
  RankList group;                      // Plan::DataGroupOf, in the order of its communicator
  int32_t self = 0;                    // the place's position in it
  int32_t replicas = 1;                // that sum
  bool for_all = false;                // every replica gets all sums, at once; buckets are even
  std::vector<ReducedBucket> buckets;  // those that train, in storage order
  std::vector<Copy> copies;  // of its tensor group (CopiesInSlot), with an end at the place
};

// The share of one replica in a bucket whose shares are its equal parts.
constexpr UnitRange EvenShare(const UnitRange& bucket, int32_t replicas, int32_t replica) {
  const int64_t part = bucket.count / replicas;
  return {bucket.first + replica * part, part};
}

// `parameters`: ParametersOf the same place and chunk.
Reduction ReductionOf(const Plan& plan, const Place& place, int32_t chunk,
                      const StageParameters& parameters);
// By messages even where the replicas have one width.
Reduction ReductionByMessages(const Plan& plan, const Place& place, int32_t chunk,
                              const StageParameters& parameters);

}  // namespace phalanx::plan
