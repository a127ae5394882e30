// core/plan/replica_table.h: which ranks hold each stage of each replica of one module.
//
// The one place that knows widths. A *slot* is one stage (pp) of one replica (dp; with context
// parallelism every cp coordinate has ranks of its own); its ranks stand in unit order, so that the
// rank at position tp holds the tp-th run of units. Widths may differ from slot to slot, and a slot
// may have nobody: then its replica is *absent*, and its other ranks have no work in this module.
//
// Pure.
#pragma once

#include <cstdint>
#include <optional>
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

// Immutable; safe to read from any thread.
class ReplicaTable {
 public:
  // Of a module whose healthy ranks are those of `grid` (axes tp, cp, dp, pp).
  // Errors: InvalidArgument for a change of a slot that the grid does not have or that is changed
  // twice, ranks that do not divide by cp, that are more than the healthy slot had or outside the
  // grid, and for a rank in two slots.
  static absl::StatusOr<ReplicaTable> Create(const Grid& grid,
                                             absl::Span<const SlotChange> changes);

  int32_t replicas() const { return replicas_; }  // slots along dp, absent replicas included
  int32_t stages() const { return stages_; }
  int32_t cp() const { return cp_; }

  // Tensor ranks of a slot, 0 if it has nobody.
  int32_t Width(int32_t dp, int32_t pp) const { return static_cast<int32_t>(Ranks(dp, pp).size()); }
  // In unit order.
  absl::Span<const Rank> Ranks(int32_t dp, int32_t pp, int32_t cp = 0) const {
    const size_t slot = SlotIndex(dp, pp, cp);
    return absl::MakeConstSpan(ranks_).subspan(
        static_cast<size_t>(first_[slot]), static_cast<size_t>(first_[slot + 1] - first_[slot]));
  }
  // Whether every stage of the replica has ranks: only then does it take samples.
  bool Present(int32_t dp) const { return present_[static_cast<size_t>(dp)]; }
  int32_t present_replicas() const { return present_replicas_; }
  int32_t FirstPresent() const;  // -1 if all are absent

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

 private:
  struct StageWidths {
    int32_t narrowest = 0, widest = 0, ranks = 0;
  };

  ReplicaTable() = default;
  size_t SlotIndex(int32_t dp, int32_t pp, int32_t cp) const {
    return static_cast<size_t>((dp * stages_ + pp) * cp_ + cp);
  }
  void Summarise();

  int32_t replicas_ = 0, stages_ = 0, cp_ = 1;
  int32_t base_ = 0;              // lowest rank of the grid
  std::vector<Rank> ranks_;       // slot after slot, by dp, then pp, then cp
  std::vector<int32_t> first_;    // of each slot, into ranks_, and the end
  std::vector<int32_t> slot_of_;  // of each rank from base_ on; -1: none
  std::vector<bool> present_;     // of each replica
  int32_t present_replicas_ = 0;
  std::vector<StageWidths> widths_;  // of each stage
};

}  // namespace phalanx::plan
