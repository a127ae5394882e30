// core/plan/grid.h: ranks of one module factored into axes, and the groups that follow.
//
// The first axis varies fastest: rank = offset + sum of coordinate(axis) * stride(axis), the
// stride of an axis being the product of the sizes before it.
//
// One rule gives every group. For a set D of axes: the axes outside D, slowest first, are the outer
// loops (the order of groups); inside a group the axes of D are listed slowest first
// (*canonical*: ranks ascend) or in the caller's order, its first axis outermost (*listed*). The
// canonical order is the order of ranks in a communicator.
//
// Pure. Words: an *axis* is a dimension of the mesh, a *dim* one of a tensor.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/ids.h"

namespace phalanx::plan {

inline constexpr int32_t kWorldMax = 1 << 20;

// tp, cp, dp, pp; expt_tp, ep and expt_dp of the expert view, which has pp too.
enum class Axis : uint8_t {
  kTensor,
  kContext,
  kData,
  kPipeline,
  kExpertTensor,
  kExpert,
  kExpertData
};
absl::string_view AxisName(Axis axis);  // "tp", ...

struct AxisSize {
  Axis axis = Axis::kTensor;
  int32_t size = 1;
  friend bool operator==(const AxisSize&, const AxisSize&) = default;
};

using RankList = std::vector<Rank>;

// Immutable; safe to read from any thread.
class Grid {
 public:
  // Errors: InvalidArgument for no axes, an axis twice, a size below 1, a negative offset, or an
  // end beyond kWorldMax.
  static absl::StatusOr<Grid> Create(int32_t offset, std::vector<AxisSize> axes);
  // A view whose slowest axis `shared` has the ranks of an axis of another grid: `stride` is
  // its stride there. The other axes factor what is left, the ranks with one coordinate of
  // `shared` in ascending order, and need not line up with `stride`.
  // Errors: as Create, and for a stride that does not divide the ranks of one coordinate.
  static absl::StatusOr<Grid> CreateView(int32_t offset, std::vector<AxisSize> axes,
                                         AxisSize shared, int32_t stride);

  int32_t offset() const { return offset_; }
  int32_t size() const { return size_; }
  const std::vector<AxisSize>& axes() const { return axes_; }  // fastest first
  bool Contains(Rank rank) const { return rank.value >= offset_ && rank.value < offset_ + size_; }
  // 1 for an axis that the grid does not have.
  int32_t AxisLength(Axis axis) const;
  // Distance in ranks between neighbours along `axis`; 0 for an axis that the grid does not have.
  // In a view only the shared axis has one distance throughout; the others give that of the ranks
  // with one shared coordinate.
  int32_t AxisStride(Axis axis) const;

  // Coordinates in the order of axes(); RankAt(CoordinatesOf(r)) == r. A rank outside the grid is a
  // caller's bug and ends the process.
  std::vector<int32_t> CoordinatesOf(Rank rank) const;
  int32_t Coordinate(Rank rank, Axis axis) const;
  Rank RankAt(absl::Span<const int32_t> coordinates) const;

  // Every group along `axes`, each rank of the grid in exactly one. Errors: InvalidArgument for a
  // repeated axis or one that the grid does not have.
  absl::StatusOr<std::vector<RankList>> Groups(absl::Span<const Axis> axes) const;
  absl::StatusOr<std::vector<RankList>> ListedGroups(absl::Span<const Axis> axes) const;
  // The canonical group of `rank`.
  absl::StatusOr<RankList> GroupOf(Rank rank, absl::Span<const Axis> axes) const;
  // Names joined by '-', slowest first: "dp-tp".
  std::string GroupName(absl::Span<const Axis> axes) const;

  // Checks that `view` factors the same ranks and enumerates each of `shared_axes`, and all of them
  // together, exactly as this grid does. Errors: InvalidArgument naming both enumerations.
  absl::Status CheckView(const Grid& view, absl::Span<const Axis> shared_axes) const;

 private:
  Grid(int32_t offset, int32_t size, int32_t shared_stride, std::vector<AxisSize> axes)
      : offset_(offset), size_(size), shared_stride_(shared_stride), axes_(std::move(axes)) {}

  enum class Listing { kCanonical, kListed };
  absl::StatusOr<std::vector<RankList>> Enumerate(absl::Span<const Axis> axes,
                                                  Listing listing) const;
  // Positions in axes(). Errors as Groups.
  absl::StatusOr<std::vector<size_t>> Positions(absl::Span<const Axis> axes) const;

  int32_t offset_;
  int32_t size_;
  int32_t shared_stride_;  // of the last axis; in a plain grid the product of the sizes before it
  std::vector<AxisSize> axes_;
};

}  // namespace phalanx::plan
