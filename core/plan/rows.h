// core/plan/rows.h: how the rows of some samples lie on the ranks of a tensor group.
//
// Either every rank has them all, or rank t of R has slice t: `SliceRows` rows, a multiple of 8, so
// the last slices may be short or empty. Where two groups cut the same rows into slices, each cut
// is an interval, and what one rank gives another is the intersection of two intervals. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/plan/units.h"

namespace phalanx::plan {

inline constexpr int64_t kSliceQuantum = 8;  // rows

// Rows of a slice that is not cut short.
constexpr int64_t SliceRows(int64_t rows, int32_t slices) {
  return slices == 1 ? rows : kSliceQuantum * BlockCount(rows, kSliceQuantum * slices);
}

// Slice `index` of `slices`; all rows if there is one.
constexpr UnitRange SliceOf(int64_t rows, int32_t slices, int32_t index) {
  const int64_t each = SliceRows(rows, slices);
  const int64_t first = std::min(rows, index * each);
  return {first, std::min(rows - first, each)};
}

// Where nothing is in both, it is empty.
constexpr UnitRange Intersection(const UnitRange& a, const UnitRange& b) {
  const int64_t first = std::max(a.first, b.first);
  return {first, std::max<int64_t>(0, std::min(a.end(), b.end()) - first)};
}

}  // namespace phalanx::plan
