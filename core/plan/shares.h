// core/plan/shares.h: which replica keeps the optimizer state of what where widths are unequal, and
// who keeps it besides.
//
// A share is an interval of a ruler (ruler.h). Its primary home is the rank of one replica that
// leads those units there. Where the replicas of a stage have one width, shares are equal parts of
// buckets instead (reduction.h). Where they have several, which rank can be home of what depends on
// the unit, so shares are cut such that the elements of each rank are as even as that allows.
//
// Of the cuts that are as even, one is taken that is close to that of the *whole stage*: the same
// replicas in the same order, all of healthy width. So a stage that is narrowed, or narrowed again,
// leaves optimizer state where it is as far as its rank still leads it, though a cut follows from
// its own layout alone. What padding takes from the last replicas of a whole stage they may lack
// here too.
//
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "core/plan/plan.h"
#include "core/plan/ruler.h"
#include "core/plan/units.h"

namespace phalanx::plan {

inline constexpr int64_t kShareQuantum = 128;  // elements

struct RulerShare {
  UnitFamily family;
  UnitRange elements;   // of the family's ruler
  int32_t replica = 0;  // position in the data group (ReplicaTable::order, cp inside)
  friend bool operator==(const RulerShare&, const RulerShare&) = default;
};

// Of each bucket of a part that trains, by family and first element; they cover each ruler without
// gaps. A share begins at a multiple of kShareQuantum elements from where a run of units with the
// same leaders begins. What a bucket cannot even out, the next ones do.
// O((shares + slabs) log) a bucket.
std::vector<std::vector<RulerShare>> CutShares(const Plan& plan, const PartId& part);

// What one replica keeps of a ruler where all have one width.
struct EvenRun {
  UnitFamily family;
  UnitRange elements;  // of the family's ruler, in one slab
  int32_t tp = 0;      // which tensor rank leads them
  int32_t replica = 0;
};
// Of each bucket of a part that trains what its replicas would keep if all had `width`: of each
// tensor coordinate share r is the r-th part of the bucket. By tensor coordinate, then as stored.
std::vector<std::vector<EvenRun>> CutEvenly(const Plan& plan, const PartId& part, int32_t width);

// What tensor rank `tp` of the replicas of `width` is the home of under CutShares, at most:
// replicas of one width differ by a quantum or two a bucket, but for padding.
struct HomeLoad {
  int64_t own = 0;               // elements of the part
  int64_t given = 0, taken = 0;  // that a reduction sends and receives, of the bucket with most
};
struct HomeLoads {
  std::map<std::pair<int32_t, int32_t>, HomeLoad> of;  // by width and tensor coordinate
  std::map<Rank, int64_t> mirrored;                    // elements, of ranks that mirror some
};
HomeLoads HomeLoadsOf(const Plan& plan, const PartId& part);

// Of each replica the homes of its shares, where `group` has the rank of each replica that leads
// them: itself, the primary; then the mirrors, each on a node that has none of them yet if there is
// one, else on another than the primary's, else beside it; going round, from as far behind the home
// before as a node reaches, past those that mirror as many shares as all can. So no rank mirrors
// more than another where nodes allow. Where nodes have failure domains, each is in a domain that
// has none of them yet, as far as that lets all mirror alike.
std::vector<RankList> HomesOf(const Plan& plan, int32_t module, const RankList& group);
// The same as positions in `group`.
struct HomePositions {
  size_t copies = 0;         // homes of each share
  std::vector<int32_t> all;  // share after share
  absl::Span<const int32_t> Of(size_t share) const {
    return absl::MakeConstSpan(all).subspan(share * copies, copies);
  }
};
HomePositions HomePositionsOf(const Plan& plan, int32_t module, const RankList& group);
// The homes of what a part's replicas of several widths lead, of each run of units once.
class GroupsOfLeaders {
 public:
  // `plan` outlives it.
  GroupsOfLeaders(const Plan& plan, const PartId& part);
  // Of each present replica in order, as HomesOf the ranks that lead `unit` in each. The same
  // object for units with the same leaders, for as long as this lives.
  const std::vector<RankList>& HomesAt(const UnitFamily& family, int64_t unit);

 private:
  struct Replica {
    int32_t dp = 0, cp = 0, width = 0;
  };
  const Plan& plan_;
  const PartId part_;
  std::vector<Replica> replicas_;
  std::map<int32_t, int32_t> leaders_;  // by width: of the unit at hand
  std::map<std::map<int32_t, int32_t>, std::vector<RankList>> homes_;
};

// Whether homes are ranks, several of each element as far as there are replicas.
bool IsMirrored(const Plan& plan, int32_t module);
// Whether all state has such homes.
bool AllIsMirrored(const Plan& plan);
// Whether every rank of the module is a home of all that it leads, beside one of each other
// replica, and updates it all (kDerivationOfUpdatesEverywhere).
bool EveryReplicaIsHome(const Plan& plan, int32_t module);
// Whether one collective brings every rank of the stage all sums that it leads, since all are such
// homes, of one width.
bool SumsAreForAll(const Plan& plan, int32_t module, int32_t stage);
// Whether the module's second home is host memory of the primary's node.
bool HasHostHome(const Plan& plan, int32_t module);
// Whether ranks copy optimizer state to host memory. They copy that of all modules as soon as one
// that trains has its second home there: who goes back to a copy takes everyone with it, and
// mirrors have nothing of earlier steps.
bool CopiesToHost(const Plan& plan);

}  // namespace phalanx::plan
