// core/plan/segments.h: runs of units with the same owners, and where their state lives.
//
// A *segment* is a maximal run of units of one family (ruler.h) whose holders, over all replicas,
// are the same ranks. With equal widths segments are the classical data-parallel shares; with
// unequal ones they are bookkeeping, never communicators.
//
// A *share* is the part of a segment in one bucket that one home keeps optimizer state for. Where
// the replicas of a stage have one width, share r is the r-th part of each bucket. Its *homes*: the
// primary, in replica r, which reduces and updates it; then mirrors in other replicas, in other
// failure domains and on other nodes where there is a choice, or host memory of the primary's node.
//
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/plan/plan.h"
#include "core/plan/ruler.h"
#include "core/plan/units.h"

namespace phalanx::plan {

struct Segment {
  int32_t module = 0, pp = 0;
  UnitFamily family;
  UnitRange units;
  std::vector<RankList> holders;  // of each present replica, in order (cp inside)
};

// In order of module, pipeline stage, family, first unit. Modules without architecture have none.
std::vector<Segment> Segments(const Plan& plan);

struct Share {
  int32_t module = 0, pp = 0, chunk = 0;
  int32_t segment = 0;  // index into Segments
  int32_t bucket = 0;   // of the part
  // Of the segment's in this bucket: in storage order where replicas are equally wide, else on the
  // family's ruler.
  UnitRange elements;
  RankList homes;     // primary first, then mirrors
  bool host = false;  // the second home is host memory of the primary's node
};

// So many are listed: they are as many as buckets x ranks, and past that the rule says as much
// (HomesOfState).
inline constexpr size_t kSharesMax = 4096;

// Of every segment that trains, in its order, then chunk, bucket, first element. nullopt: there are
// more than kSharesMax.
std::optional<std::vector<Share>> Shares(const Plan& plan);

// The rule behind shares: the homes of the state that one tensor coordinate of a stage leads, alike
// for all its buckets.
struct StateHomes {
  int32_t module = 0, pp = 0, tp = 0;
  std::vector<RankList> homes;  // of share r of each bucket: as Share::homes
  bool host = false;            // as Share::host
};

// By module, pp, tp; nothing of stages whose replicas have different widths, nor of modules without
// architecture.
std::vector<StateHomes> HomesOfState(const Plan& plan);

}  // namespace phalanx::plan
