// core/plan/part_sizes.h: what the parameters of a part come to on a rank, and what the ranks of a
// stage of several widths are homes of, worked out once for all that are alike. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "core/plan/parameters.h"
#include "core/plan/plan.h"
#include "core/plan/shares.h"

namespace phalanx::plan {

// Elements on one rank.
struct PartSize {
  int64_t elements = 0, trained_extent = 0, led = 0;  // as in StageParameters
  int64_t rounded = 0;                                // of weights that layers round
  // That travel between the copies of a replica (copies.h), of which a rank packs its own.
  int64_t folded = 0, spread = 0;
  bool leads_frozen = false;  // some of what does not train
};

// Of parts of any plans of one job on one cluster. Not thread-safe.
class PartSizes {
 public:
  // Of what ParametersOf lists.
  const PartSize& Of(const Plan& plan, const Place& place, int32_t chunk);
  // Of each tensor coordinate of the place's slot those with which its rank keeps copies alike
  // (CopiesInSlot).
  const std::vector<std::set<int32_t>>& CopyPeersOf(const Plan& plan, const Place& place,
                                                    int32_t chunk);
  // As HomeLoadsOf, of a stage whose replicas have several widths.
  const HomeLoads& LoadsOf(const Plan& plan, const PartId& part);

 private:
  // Module, width, tp, in how many even shares buckets are cut, whether rows are cut, whether both
  // ends are on one rank.
  using Key = std::tuple<PartKind, int32_t, int32_t, int32_t, int32_t, bool, bool>;
  // Module, stage and chunk of how many, their kind, the healthy width, how many homes are ranks,
  // and of each replica in order its number, its width and its ranks.
  using StageKey =
      std::tuple<PartId, int32_t, int32_t, PartKind, int32_t, int32_t, std::vector<int32_t>>;
  static Key KeyOf(const Plan& plan, const Place& place, int32_t tp, int32_t chunk);

  std::map<Key, PartSize> known_;
  std::map<Key, std::vector<std::set<int32_t>>> known_peers_;  // of the first tensor coordinate
  std::map<StageKey, HomeLoads> known_loads_;
};

}  // namespace phalanx::plan
