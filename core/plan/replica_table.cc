#include "core/plan/replica_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace phalanx::plan {
namespace {

std::string SlotName(const SlotChange& change) {
  return absl::StrCat("the slot of dp ", change.dp, " and pp ", change.pp);
}

absl::Status CheckSlotChange(const Grid& grid, const SlotChange& change) {
  const int32_t tp = grid.AxisLength(Axis::kTensor), cp = grid.AxisLength(Axis::kContext);
  if (change.dp < 0 || change.dp >= grid.AxisLength(Axis::kData) || change.pp < 0 ||
      change.pp >= grid.AxisLength(Axis::kPipeline)) {
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

}  // namespace

absl::StatusOr<ReplicaTable> ReplicaTable::Create(const Grid& grid,
                                                  absl::Span<const SlotChange> changes,
                                                  absl::Span<const int32_t> order) {
  for (const SlotChange& change : changes) RETURN_IF_ERROR(CheckSlotChange(grid, change));
  ReplicaTable table(grid);
  RETURN_IF_ERROR(table.EnterChanges(changes));
  table.Summarise();
  RETURN_IF_ERROR(table.EnterOrder(order));
  return table;
}

ReplicaTable::ReplicaTable(const Grid& grid)
    : replicas_(grid.AxisLength(Axis::kData)),
      stages_(grid.AxisLength(Axis::kPipeline)),
      cp_(grid.AxisLength(Axis::kContext)),
      tp_(grid.AxisLength(Axis::kTensor)),
      base_(grid.offset()),
      size_(grid.size()),
      tp_stride_(grid.AxisStride(Axis::kTensor)),
      cp_stride_(grid.AxisStride(Axis::kContext)),
      dp_stride_(grid.AxisStride(Axis::kData)),
      pp_stride_(grid.AxisStride(Axis::kPipeline)) {}

absl::StatusOr<ReplicaTable> ReplicaTable::CreateLowered(const Grid& grid, const Degrees& degrees,
                                                         RankList ranks,
                                                         absl::Span<const int32_t> order) {
  int64_t count = 1;
  for (const int32_t degree : {degrees.tp, degrees.cp, degrees.dp, degrees.pp})
    count = degree < 1 || count > grid.size() ? 0 : count * degree;
  if (count == 0 || count != static_cast<int64_t>(ranks.size())) {
    return absl::InvalidArgumentError(absl::StrCat("it is lowered to tp ", degrees.tp, ", cp ",
                                                   degrees.cp, ", dp ", degrees.dp, ", pp ",
                                                   degrees.pp, " on ", ranks.size(), " ranks"));
  }
  ReplicaTable table(grid);
  table.tp_ = degrees.tp;
  table.cp_ = degrees.cp;
  table.replicas_ = degrees.dp;
  table.stages_ = degrees.pp;
  table.tp_stride_ = 1;
  table.cp_stride_ = degrees.tp;
  table.dp_stride_ = degrees.tp * degrees.cp;
  table.pp_stride_ = degrees.tp * degrees.cp * degrees.dp;
  for (size_t at = 0; at < ranks.size(); ++at) {
    if (!grid.Contains(ranks[at])) {
      return absl::InvalidArgumentError(absl::StrCat("it is lowered onto rank ", ranks[at].value,
                                                     ", which is none of its module"));
    }
    if (!table.position_of_.try_emplace(ranks[at], static_cast<int32_t>(at)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("it is lowered onto rank ", ranks[at].value, " twice"));
    }
  }
  table.seats_ = std::move(ranks);
  table.Summarise();
  RETURN_IF_ERROR(table.EnterOrder(order));
  return table;
}

absl::Status ReplicaTable::EnterChanges(absl::Span<const SlotChange> changes) {
  const auto twice = [](Rank rank) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank.value, " is in two slots"));
  };
  for (const SlotChange& change : changes) {
    if (!changes_.try_emplace({change.dp, change.pp}, change.ranks).second) {
      return absl::InvalidArgumentError(absl::StrCat(SlotName(change), " is changed twice"));
    }
    const int32_t width = static_cast<int32_t>(change.ranks.size()) / cp_;
    int32_t index = 0;
    for (Rank rank : change.ranks) {
      const Position position = {.tp = index % width,
                                 .cp = index / width,
                                 .dp = change.dp,
                                 .pp = change.pp,
                                 .width = width};
      if (!changed_ranks_.try_emplace(rank, position).second) return twice(rank);
      ++index;
    }
  }
  for (const auto& [rank, position] : changed_ranks_) {
    const Position healthy = HealthyPositionOf(rank);
    if (ChangeOf(healthy.dp, healthy.pp) == nullptr) return twice(rank);
  }
  return absl::OkStatus();
}

void ReplicaTable::Summarise() {
  for (const auto& [slot, ranks] : changes_) {
    if (ranks.empty()) absent_.insert(slot.first);
  }
  widths_.resize(static_cast<size_t>(stages_));
  const auto add = [this](int32_t pp, int32_t width, int32_t slots) {
    StageWidths& widths = widths_[static_cast<size_t>(pp)];
    widths.narrowest = widths.narrowest == 0 ? width : std::min(widths.narrowest, width);
    widths.widest = std::max(widths.widest, width);
    widths.ranks += width * cp_ * slots;
  };
  std::vector<int32_t> healthy(static_cast<size_t>(stages_), present_replicas());
  for (const auto& [slot, ranks] : changes_) {
    const auto [dp, pp] = slot;
    if (!Present(dp)) continue;
    --healthy[static_cast<size_t>(pp)];
    add(pp, Width(dp, pp), 1);
  }
  for (int32_t pp = 0; pp < stages_; ++pp) {
    const int32_t slots = healthy[static_cast<size_t>(pp)];
    if (slots > 0) add(pp, tp_, slots);
  }
}

absl::Status ReplicaTable::EnterOrder(absl::Span<const int32_t> order) {
  if (order.empty()) {
    order_.reserve(static_cast<size_t>(present_replicas()));
    for (int32_t dp = 0; dp < replicas_; ++dp) {
      if (Present(dp)) order_.push_back(dp);
    }
    return absl::OkStatus();
  }
  if (order.size() != static_cast<size_t>(present_replicas())) {
    return absl::InvalidArgumentError(
        absl::StrCat("its order has ", order.size(), " replicas; there are ", present_replicas()));
  }
  std::vector<bool> seen(static_cast<size_t>(replicas_), false);
  for (const int32_t dp : order) {
    if (dp < 0 || dp >= replicas_ || !Present(dp)) {
      return absl::InvalidArgumentError(
          absl::StrCat("its order has replica ", dp, ", which is not there"));
    }
    if (seen[static_cast<size_t>(dp)]) {
      return absl::InvalidArgumentError(absl::StrCat("its order has replica ", dp, " twice"));
    }
    seen[static_cast<size_t>(dp)] = true;
  }
  order_.assign(order.begin(), order.end());
  return absl::OkStatus();
}

RankList ReplicaTable::Ranks(int32_t dp, int32_t pp, int32_t cp) const {
  const int32_t width = Width(dp, pp);
  RankList ranks;
  ranks.reserve(static_cast<size_t>(width));
  for (int32_t tp = 0; tp < width; ++tp) ranks.push_back(At(dp, pp, cp, tp));
  return ranks;
}

int32_t ReplicaTable::FirstPresent() const {
  for (int32_t dp = 0; dp < replicas_; ++dp) {
    if (Present(dp)) return dp;
  }
  return -1;
}

ReplicaTable::Position ReplicaTable::PositionAt(int32_t at) const {
  return {.tp = at / tp_stride_ % tp_,
          .cp = at / cp_stride_ % cp_,
          .dp = at / dp_stride_ % replicas_,
          .pp = at / pp_stride_ % stages_,
          .width = tp_};
}

std::optional<ReplicaTable::Position> ReplicaTable::PositionOf(Rank rank) const {
  if (rank.value < base_ || rank.value - base_ >= size_) return std::nullopt;
  if (!seats_.empty()) {
    const auto seat = position_of_.find(rank);
    if (seat == position_of_.end()) return std::nullopt;
    return PositionAt(seat->second);
  }
  Position position = HealthyPositionOf(rank);
  if (const auto changed = changed_ranks_.find(rank); changed != changed_ranks_.end()) {
    position = changed->second;
  } else if (ChangeOf(position.dp, position.pp) != nullptr) {
    return std::nullopt;
  }
  if (!Present(position.dp)) return std::nullopt;
  return position;
}

bool ReplicaTable::SharesRanksWith(const ReplicaTable& other) const {
  const int32_t first = std::max(base_, other.base_);
  const int32_t end = std::min(base_ + size_, other.base_ + other.size_);
  const auto is_whole = [](const ReplicaTable& table) {
    return table.changes_.empty() && table.seats_.empty();
  };
  if (is_whole(*this) && is_whole(other)) return first < end;
  for (Rank rank{first}; rank.value < end; ++rank.value) {
    if (PositionOf(rank).has_value() && other.PositionOf(rank).has_value()) return true;
  }
  return false;
}

}  // namespace phalanx::plan
