// core/plan/segments.h: runs of units with the same owners, and where their state lives.
//
// A *segment* is a maximal run of units of one family whose holders, over all replicas, are the
// same ranks. With equal widths segments are the classical data-parallel shards; with unequal ones
// they are bookkeeping, never communicators. A segment's optimizer state lives at its *homes*: the
// primary in one replica (they take turns, so that state spreads evenly), a mirror in the next.
//
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/plan.h"
#include "core/plan/units.h"

namespace phalanx::plan {

enum class UnitFamily : uint8_t { kAttention, kKv, kMlp, kVocabulary, kReplicated };

struct Segment {
  int32_t module = 0, pp = 0;
  UnitFamily family = UnitFamily::kAttention;
  UnitRange units;  // query heads, KV heads, blocks; kReplicated: one unit, everything
  std::vector<RankList> holders;  // of each replica, (dp, then cp)
  RankList homes;                 // primary first; one entry where there is one replica
};

// In order of module, pipeline stage, family, first unit. Modules without architecture have none.
std::vector<Segment> Segments(const Plan& plan);

}  // namespace phalanx::plan
