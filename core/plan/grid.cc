#include "core/plan/grid.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/plan/check.h"

namespace phalanx::plan {
namespace {

std::string ShowGroups(const std::vector<RankList>& groups) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < groups.size() && i < kShown; ++i) {
    absl::StrAppend(
        &text, "[",
        absl::StrJoin(groups[i], ",",
                      [](std::string* out, Rank rank) { absl::StrAppend(out, rank.value); }),
        "]");
  }
  if (groups.size() > kShown) absl::StrAppend(&text, "...");
  return text;
}

// The number of ranks that the axes span.
absl::StatusOr<int64_t> CheckAxes(int32_t offset, const std::vector<AxisSize>& axes) {
  if (axes.empty()) return absl::InvalidArgumentError("a grid needs at least one axis");
  if (offset < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the grid starts at rank ", offset, "; it must be at least 0"));
  }
  int64_t size = 1;
  std::set<Axis> seen;
  for (const AxisSize& axis : axes) {
    if (!seen.insert(axis.axis).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("axis ", AxisName(axis.axis), " is named twice"));
    }
    if (axis.size < 1) {
      return absl::InvalidArgumentError(absl::StrCat("axis ", AxisName(axis.axis), " has size ",
                                                     axis.size, "; it must be at least 1"));
    }
    size *= axis.size;
    if (offset + size > kWorldMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("the grid ends beyond rank ", kWorldMax, ", the largest world"));
    }
  }
  return size;
}

}  // namespace

absl::string_view AxisName(Axis axis) {
  constexpr absl::string_view kNames[] = {"tp", "cp", "dp", "pp", "expt_tp", "ep", "expt_dp"};
  return kNames[static_cast<size_t>(axis)];
}

absl::StatusOr<Grid> Grid::Create(int32_t offset, std::vector<AxisSize> axes) {
  ASSIGN_OR_RETURN(const int64_t size, CheckAxes(offset, axes));
  const auto stride = static_cast<int32_t>(size / axes.back().size);
  return Grid(offset, static_cast<int32_t>(size), stride, std::move(axes));
}

absl::StatusOr<Grid> Grid::CreateView(int32_t offset, std::vector<AxisSize> axes, AxisSize shared,
                                      int32_t stride) {
  axes.push_back(std::move(shared));
  ASSIGN_OR_RETURN(const int64_t size, CheckAxes(offset, axes));
  const int64_t others = size / axes.back().size;
  if (stride < 1 || others % stride != 0) {
    return absl::InvalidArgumentError(absl::StrCat("axis ", AxisName(axes.back().axis),
                                                   " has stride ", stride,
                                                   ", which does not divide ", others));
  }
  return Grid(offset, static_cast<int32_t>(size), stride, std::move(axes));
}

int32_t Grid::AxisLength(Axis axis) const {
  for (const AxisSize& candidate : axes_) {
    if (candidate.axis == axis) return candidate.size;
  }
  return 1;
}

int32_t Grid::AxisStride(Axis axis) const {
  if (axes_.back().axis == axis) return shared_stride_;
  int32_t stride = 1;
  for (const AxisSize& candidate : axes_) {
    if (candidate.axis == axis) return stride;
    stride *= candidate.size;
  }
  return 0;
}

std::vector<int32_t> Grid::CoordinatesOf(Rank rank) const {
  PHALANX_CHECK(Contains(rank), "rank outside its grid");
  const int32_t relative = rank.value - offset_;
  const int32_t shared = axes_.back().size;
  // The position among the ranks with the same coordinate of the last axis.
  int32_t rest = relative / (shared_stride_ * shared) * shared_stride_ + relative % shared_stride_;
  std::vector<int32_t> coordinates(axes_.size());
  for (size_t i = 0; i + 1 < axes_.size(); ++i) {
    coordinates[i] = rest % axes_[i].size;
    rest /= axes_[i].size;
  }
  coordinates.back() = relative / shared_stride_ % shared;
  return coordinates;
}

int32_t Grid::Coordinate(Rank rank, Axis axis) const {
  const std::vector<int32_t> coordinates = CoordinatesOf(rank);
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].axis == axis) return coordinates[i];
  }
  return 0;
}

Rank Grid::RankAt(absl::Span<const int32_t> coordinates) const {
  PHALANX_CHECK(coordinates.size() == axes_.size(), "one coordinate an axis");
  int32_t rest = 0;
  int32_t stride = 1;
  for (size_t i = 0; i < axes_.size(); ++i) {
    PHALANX_CHECK(coordinates[i] >= 0 && coordinates[i] < axes_[i].size,
                  "coordinate outside its axis");
    if (i + 1 == axes_.size()) break;
    rest += coordinates[i] * stride;
    stride *= axes_[i].size;
  }
  return Rank{offset_ + rest / shared_stride_ * shared_stride_ * axes_.back().size +
              coordinates.back() * shared_stride_ + rest % shared_stride_};
}

absl::StatusOr<std::vector<size_t>> Grid::Positions(absl::Span<const Axis> axes) const {
  std::vector<size_t> positions;
  for (Axis wanted : axes) {
    const auto found = std::find_if(axes_.begin(), axes_.end(),
                                    [wanted](const AxisSize& axis) { return axis.axis == wanted; });
    if (found == axes_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown axis ", AxisName(wanted), "; the grid has ",
                       absl::StrJoin(axes_, ", ", [](std::string* out, const AxisSize& axis) {
                         absl::StrAppend(out, AxisName(axis.axis));
                       })));
    }
    const auto position = static_cast<size_t>(found - axes_.begin());
    if (std::find(positions.begin(), positions.end(), position) != positions.end()) {
      return absl::InvalidArgumentError(absl::StrCat("axis ", AxisName(wanted), " is named twice"));
    }
    positions.push_back(position);
  }
  return positions;
}

absl::StatusOr<std::vector<RankList>> Grid::Enumerate(absl::Span<const Axis> axes,
                                                      Listing listing) const {
  ASSIGN_OR_RETURN(std::vector<size_t> inner, Positions(axes));
  if (listing == Listing::kCanonical) std::sort(inner.rbegin(), inner.rend());
  std::vector<size_t> loops;  // outermost first
  for (size_t i = axes_.size(); i-- > 0;) {
    if (std::find(inner.begin(), inner.end(), i) == inner.end()) loops.push_back(i);
  }
  loops.insert(loops.end(), inner.begin(), inner.end());
  int32_t group_size = 1;
  for (size_t i : inner) group_size *= axes_[i].size;

  std::vector<RankList> groups(static_cast<size_t>(size_ / group_size));
  std::vector<int32_t> coordinates(axes_.size(), 0);
  for (int32_t n = 0; n < size_; ++n) {
    groups[static_cast<size_t>(n / group_size)].push_back(RankAt(coordinates));
    for (size_t loop = loops.size(); loop-- > 0;) {
      int32_t& coordinate = coordinates[loops[loop]];
      if (++coordinate < axes_[loops[loop]].size) break;
      coordinate = 0;
    }
  }
  if (listing == Listing::kCanonical) {
    for (RankList& group : groups) std::sort(group.begin(), group.end());
  }
  return groups;
}

absl::StatusOr<std::vector<RankList>> Grid::Groups(absl::Span<const Axis> axes) const {
  return Enumerate(axes, Listing::kCanonical);
}

absl::StatusOr<std::vector<RankList>> Grid::ListedGroups(absl::Span<const Axis> axes) const {
  return Enumerate(axes, Listing::kListed);
}

absl::StatusOr<RankList> Grid::GroupOf(Rank rank, absl::Span<const Axis> axes) const {
  ASSIGN_OR_RETURN(const std::vector<size_t> inner, Positions(axes));
  std::vector<int32_t> coordinates = CoordinatesOf(rank);
  for (size_t i : inner) coordinates[i] = 0;
  RankList group;
  while (true) {
    group.push_back(RankAt(coordinates));
    size_t loop = 0;
    for (; loop < inner.size(); ++loop) {
      if (++coordinates[inner[loop]] < axes_[inner[loop]].size) break;
      coordinates[inner[loop]] = 0;
    }
    if (loop == inner.size()) break;
  }
  std::sort(group.begin(), group.end());
  return group;
}

std::string Grid::GroupName(absl::Span<const Axis> axes) const {
  std::vector<absl::string_view> names;
  for (size_t i = axes_.size(); i-- > 0;) {
    const Axis axis = axes_[i].axis;
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) names.push_back(AxisName(axis));
  }
  return absl::StrJoin(names, "-");
}

absl::Status Grid::CheckView(const Grid& view, absl::Span<const Axis> shared_axes) const {
  if (view.offset_ != offset_ || view.size_ != size_) {
    return absl::InvalidArgumentError(absl::StrCat("the view spans [", view.offset_, ", ",
                                                   view.offset_ + view.size_, "), the grid [",
                                                   offset_, ", ", offset_ + size_, ")"));
  }
  std::vector<std::vector<Axis>> requests;
  for (Axis axis : shared_axes) requests.push_back({axis});
  if (shared_axes.size() > 1) requests.emplace_back(shared_axes.begin(), shared_axes.end());
  for (const std::vector<Axis>& request : requests) {
    ASSIGN_OR_RETURN(const std::vector<RankList> ours, Groups(request));
    ASSIGN_OR_RETURN(const std::vector<RankList> theirs, view.Groups(request));
    if (ours != theirs) {
      return absl::InvalidArgumentError(absl::StrCat("shared axis ", GroupName(request),
                                                     ": the grid has ", ShowGroups(ours),
                                                     ", the view ", ShowGroups(theirs)));
    }
  }
  return absl::OkStatus();
}

}  // namespace phalanx::plan
