// core/plan/replica_table.h: which ranks hold each stage of each replica of one module.
//
// The one place that knows widths. A *slot* is one stage (pp) of one replica (dp; with context
// parallelism every cp coordinate has ranks of its own); its ranks stand in unit order, so that the
// rank at position tp holds the tp-th run of units. Widths may differ from slot to slot, and a slot
// may have nobody: then its replica is *absent*, and its other ranks have no work in this module.
//
// The present replicas have an *order*, that of the data group: share r of whatever they share is
// that of the r-th of them (with context parallelism, of its cp ranks one after the other). It is
// ascending but after losses (loss.h). Samples know nothing of it: they are dealt by dp.
//
// A table is as large as its changes and that order: all other ranks follow from the grid. One of
// lowered degrees (the rung `restart`, loss.h) lists its ranks.
//
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/plan/grid.h"

namespace phalanx::plan {

// The ranks of a slot that are not those of the healthy grid: cp coordinate after cp coordinate,
// equally many each, in unit order; none: the slot has nobody.
struct SlotChange {
  int32_t dp = 0, pp = 0;
  RankList ranks;
  friend bool operator==(const SlotChange&, const SlotChange&) = default;
};

// How many ranks there are along each axis.
struct Degrees {
  int32_t tp = 1, cp = 1, dp = 1, pp = 1;
  friend bool operator==(const Degrees&, const Degrees&) = default;
};

// Immutable; safe to read from any thread.
class ReplicaTable {
 public:
  // Of a module whose healthy ranks are those of `grid` (axes tp, cp, dp, pp).
  // Errors: InvalidArgument for a change of a slot that the grid does not have or that is changed
  // twice, ranks that do not divide by cp, that are more than the healthy slot had or outside the
  // grid, for a rank in two slots, and for an order that does not have each present replica once.
  static absl::StatusOr<ReplicaTable> Create(const Grid& grid, absl::Span<const SlotChange> changes,
                                             absl::Span<const int32_t> order = {});

  // Of other degrees than the grid has, on some of its ranks: `ranks` by pp, dp, cp, tp, tp
  // fastest. Errors: InvalidArgument for degrees below 1 or with other than so many ranks, for a
  // rank outside the grid or twice, and for orders as above.
  static absl::StatusOr<ReplicaTable> CreateLowered(const Grid& grid, const Degrees& degrees,
                                                    RankList ranks,
                                                    absl::Span<const int32_t> order = {});

  int32_t replicas() const { return replicas_; }  // slots along dp, absent replicas included
  int32_t stages() const { return stages_; }
  int32_t cp() const { return cp_; }
  bool IsOfGrid() const { return seats_.empty(); }  // else its degrees are lowered
  Degrees degrees() const { return {.tp = tp_, .cp = cp_, .dp = replicas_, .pp = stages_}; }

  // Tensor ranks of a slot, 0 if it has nobody.
  int32_t Width(int32_t dp, int32_t pp) const {
    const RankList* changed = ChangeOf(dp, pp);
    return changed == nullptr ? tp_ : static_cast<int32_t>(changed->size()) / cp_;
  }
  // The one at a position of the unit order, below the slot's width.
  Rank At(int32_t dp, int32_t pp, int32_t cp, int32_t tp) const {
    const RankList* changed = ChangeOf(dp, pp);
    if (changed != nullptr) {
      return (*changed)[static_cast<size_t>(cp) * (changed->size() / static_cast<size_t>(cp_)) +
                        static_cast<size_t>(tp)];
    }
    const int32_t at = tp * tp_stride_ + cp * cp_stride_ + dp * dp_stride_ + pp * pp_stride_;
    return seats_.empty() ? Rank{base_ + at} : seats_[static_cast<size_t>(at)];
  }
  // All of them, in unit order.
  RankList Ranks(int32_t dp, int32_t pp, int32_t cp = 0) const;
  // Whether every stage of the replica has ranks: only then does it take samples.
  bool Present(int32_t dp) const { return !absent_.contains(dp); }
  int32_t present_replicas() const { return replicas_ - static_cast<int32_t>(absent_.size()); }
  int32_t FirstPresent() const;  // the lowest dp; -1 if all are absent
  // The present replicas in the order of the data group: the one place that knows it.
  const std::vector<int32_t>& order() const { return order_; }

  // Over the present replicas of a stage; 0 where none is.
  int32_t WidestOf(int32_t pp) const { return widths_[static_cast<size_t>(pp)].widest; }
  int32_t NarrowestOf(int32_t pp) const { return widths_[static_cast<size_t>(pp)].narrowest; }
  bool EqualWidths(int32_t pp) const { return WidestOf(pp) == NarrowestOf(pp); }
  // Ranks of a stage over all present replicas.
  int32_t RanksOfStage(int32_t pp) const { return widths_[static_cast<size_t>(pp)].ranks; }

  struct Position {
    int32_t tp = 0, cp = 0, dp = 0, pp = 0;
    int32_t width = 1;
  };
  // Where a rank of a present replica stands; nullopt for every other rank.
  std::optional<Position> PositionOf(Rank rank) const;
  // Whether some rank stands in both.
  bool SharesRanksWith(const ReplicaTable& other) const;

 private:
  struct StageWidths {
    int32_t narrowest = 0, widest = 0, ranks = 0;
  };

  explicit ReplicaTable(const Grid& grid);

  // The ranks that a slot has instead of the grid's, or nullptr.
  const RankList* ChangeOf(int32_t dp, int32_t pp) const {
    if (changes_.empty()) return nullptr;
    const auto found = changes_.find({dp, pp});
    return found == changes_.end() ? nullptr : &found->second;
  }
  // Where the grid has a rank of its own, whatever has changed.
  Position HealthyPositionOf(Rank rank) const { return PositionAt(rank.value - base_); }
  Position PositionAt(int32_t at) const;
  absl::Status EnterChanges(absl::Span<const SlotChange> changes);
  void Summarise();
  // `order`: as in a layout.
  absl::Status EnterOrder(absl::Span<const int32_t> order);

  int32_t replicas_, stages_, cp_, tp_;  // lengths of dp, pp, cp, tp
  int32_t base_, size_;                  // ranks of the grid: [base_, base_ + size_)
  int32_t tp_stride_, cp_stride_, dp_stride_, pp_stride_;
  RankList seats_;                       // of lowered degrees: by position; else empty
  std::map<Rank, int32_t> position_of_;  // of seats_
  std::map<std::pair<int32_t, int32_t>, RankList> changes_;  // by (dp, pp)
  std::map<Rank, Position> changed_ranks_;                   // all ranks in changes_
  std::set<int32_t> absent_;                                 // replicas
  std::vector<int32_t> order_;                               // present replicas
  std::vector<StageWidths> widths_;                          // of each stage
};

}  // namespace phalanx::plan
