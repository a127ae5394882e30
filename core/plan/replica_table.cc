#include "core/plan/replica_table.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace phalanx::plan {
namespace {

using ChangesBySlot = std::map<std::pair<int32_t, int32_t>, const SlotChange*>;

std::string SlotName(const SlotChange& change) {
  return absl::StrCat("the slot of dp ", change.dp, " and pp ", change.pp);
}

absl::Status CheckChange(const Grid& grid, const SlotChange& change) {
  const int32_t tp = grid.AxisLength("tp"), cp = grid.AxisLength("cp");
  if (change.dp < 0 || change.dp >= grid.AxisLength("dp") || change.pp < 0 ||
      change.pp >= grid.AxisLength("pp")) {
    return absl::InvalidArgumentError(absl::StrCat("its module does not have ", SlotName(change)));
  }
  const auto count = static_cast<int64_t>(change.ranks.size());
  if (count % cp != 0 || count > int64_t{tp} * cp) {
    return absl::InvalidArgumentError(absl::StrCat(SlotName(change), " has ", count,
                                                   " ranks; it takes a multiple of ", cp,
                                                   " and at most ", int64_t{tp} * cp));
  }
  for (Rank rank : change.ranks) {
    if (grid.Contains(rank)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(SlotName(change), " has rank ", rank.value, ", which is none of its module"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ChangesBySlot> IndexChanges(const Grid& grid, absl::Span<const SlotChange> changes) {
  ChangesBySlot by_slot;
  for (const SlotChange& change : changes) {
    if (absl::Status status = CheckChange(grid, change); !status.ok()) return status;
    if (!by_slot.try_emplace({change.dp, change.pp}, &change).second) {
      return absl::InvalidArgumentError(absl::StrCat(SlotName(change), " is changed twice"));
    }
  }
  return by_slot;
}

}  // namespace

absl::StatusOr<ReplicaTable> ReplicaTable::Create(const Grid& grid,
                                                  absl::Span<const SlotChange> changes) {
  absl::StatusOr<ChangesBySlot> changed = IndexChanges(grid, changes);
  if (!changed.ok()) return changed.status();
  ReplicaTable table;
  table.replicas_ = grid.AxisLength("dp");
  table.stages_ = grid.AxisLength("pp");
  table.cp_ = grid.AxisLength("cp");
  table.base_ = grid.offset();
  const int32_t width = grid.AxisLength("tp"), stride = grid.AxisStride("tp");
  table.ranks_.reserve(static_cast<size_t>(grid.size()));
  for (int32_t dp = 0; dp < table.replicas_; ++dp) {
    for (int32_t pp = 0; pp < table.stages_; ++pp) {
      const auto change = changed->empty() ? changed->end() : changed->find({dp, pp});
      for (int32_t cp = 0; cp < table.cp_; ++cp) {
        table.first_.push_back(static_cast<int32_t>(table.ranks_.size()));
        if (change != changed->end()) {
          const RankList& ranks = change->second->ranks;
          const auto count = static_cast<std::ptrdiff_t>(ranks.size()) / table.cp_;
          table.ranks_.insert(table.ranks_.end(), ranks.begin() + cp * count,
                              ranks.begin() + (cp + 1) * count);
          continue;
        }
        int32_t rank = grid.offset() + cp * grid.AxisStride("cp") + dp * grid.AxisStride("dp") +
                       pp * grid.AxisStride("pp");
        for (int32_t tp = 0; tp < width; ++tp, rank += stride) table.ranks_.push_back(Rank{rank});
      }
    }
  }
  table.first_.push_back(static_cast<int32_t>(table.ranks_.size()));
  table.slot_of_.assign(static_cast<size_t>(grid.size()), -1);
  for (size_t slot = 0; slot + 1 < table.first_.size(); ++slot) {
    for (int32_t i = table.first_[slot]; i < table.first_[slot + 1]; ++i) {
      const Rank rank = table.ranks_[static_cast<size_t>(i)];
      int32_t& entry = table.slot_of_[static_cast<size_t>(rank.value - table.base_)];
      if (entry >= 0) {
        return absl::InvalidArgumentError(absl::StrCat("rank ", rank.value, " is in two slots"));
      }
      entry = static_cast<int32_t>(slot);
    }
  }
  table.Summarise();
  return table;
}

void ReplicaTable::Summarise() {
  present_.assign(static_cast<size_t>(replicas_), true);
  for (int32_t dp = 0; dp < replicas_; ++dp) {
    for (int32_t pp = 0; pp < stages_; ++pp) {
      if (Width(dp, pp) == 0) present_[static_cast<size_t>(dp)] = false;
    }
    present_replicas_ += Present(dp);
  }
  widths_.resize(static_cast<size_t>(stages_));
  for (int32_t pp = 0; pp < stages_; ++pp) {
    StageWidths& widths = widths_[static_cast<size_t>(pp)];
    for (int32_t dp = 0; dp < replicas_; ++dp) {
      if (!Present(dp)) continue;
      const int32_t width = Width(dp, pp);
      widths.narrowest = widths.narrowest == 0 ? width : std::min(widths.narrowest, width);
      widths.widest = std::max(widths.widest, width);
      widths.ranks += width * cp_;
    }
  }
}

int32_t ReplicaTable::FirstPresent() const {
  for (int32_t dp = 0; dp < replicas_; ++dp) {
    if (Present(dp)) return dp;
  }
  return -1;
}

std::optional<ReplicaTable::Position> ReplicaTable::PositionOf(Rank rank) const {
  const int64_t index = int64_t{rank.value} - base_;
  if (index < 0 || index >= static_cast<int64_t>(slot_of_.size())) return std::nullopt;
  const int32_t slot = slot_of_[static_cast<size_t>(index)];
  if (slot < 0) return std::nullopt;
  Position position{.cp = slot % cp_, .dp = slot / (cp_ * stages_), .pp = slot / cp_ % stages_};
  if (!Present(position.dp)) return std::nullopt;
  const absl::Span<const Rank> ranks = Ranks(position.dp, position.pp, position.cp);
  position.width = static_cast<int32_t>(ranks.size());
  position.tp = static_cast<int32_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  return position;
}

}  // namespace phalanx::plan
