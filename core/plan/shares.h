// core/plan/shares.h: which replica keeps the optimizer state of what where widths are unequal, and
// who keeps it besides.
//
// A share is an interval of a ruler (ruler.h). Its primary home is the rank of one replica that
// leads those units there. Where the replicas of a stage have one width, shares are equal parts of
// buckets instead (reduction.h). Where they have several, which rank can be home of what depends on
// the unit, so shares are cut such that the elements of each rank are as even as that allows.
//
// Pure.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "core/plan/plan.h"
#include "core/plan/ruler.h"
#include "core/plan/units.h"

namespace phalanx::plan {

inline constexpr int64_t kShareQuantum = 128;  // elements

struct RulerShare {
  UnitFamily family;
  UnitRange elements;   // of the family's ruler
  int32_t replica = 0;  // position among the present replicas (dp, then cp)
  friend bool operator==(const RulerShare&, const RulerShare&) = default;
};

// Of each bucket of a part that trains, by family and first element; they cover each ruler without
// gaps. A share begins at a multiple of kShareQuantum elements from where a run of units with the
// same leaders begins. What a bucket cannot even out, the next ones do.
std::vector<std::vector<RulerShare>> CutShares(const Plan& plan, const PartId& part);

// What tensor rank `tp` of the replicas of `width` is the home of under CutShares, at most:
// replicas of one width differ by a quantum or two.
struct HomeLoad {
  int64_t own = 0;               // elements of the part
  int64_t given = 0, taken = 0;  // that a reduction sends and receives, of the bucket with most
};
// By width and tensor coordinate.
std::map<std::pair<int32_t, int32_t>, HomeLoad> HomeLoadsOf(const Plan& plan, const PartId& part);

// Of each replica the homes of its shares, where `group` has the rank of each replica that leads
// them: itself, the primary; then the mirrors, going round from as far behind it as a node reaches,
// first those on other nodes, then those on its own.
std::vector<RankList> HomesOf(const Plan& plan, int32_t module, const RankList& group);
// Whether the module's second home is host memory of the primary's node.
bool HasHostHome(const Plan& plan, int32_t module);

}  // namespace phalanx::plan
