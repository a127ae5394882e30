#include "core/plan/rows.h"

#include <gtest/gtest.h>

namespace phalanx::plan {
namespace {

TEST(RowsTest, SliceOf_OneOfOne_IsAllRows) {
  EXPECT_EQ(SliceOf(13, 1, 0), (UnitRange{0, 13}));
  EXPECT_EQ(SliceOf(0, 1, 0), (UnitRange{0, 0}));
}

TEST(RowsTest, SliceOf_FewRows_LeavesTheLastOnesEmpty) {
  EXPECT_EQ(SliceRows(17, 4), 8);
  EXPECT_EQ(SliceOf(17, 4, 1), (UnitRange{8, 8}));
  EXPECT_EQ(SliceOf(17, 4, 2), (UnitRange{16, 1}));
  EXPECT_EQ(SliceOf(17, 4, 3), (UnitRange{17, 0}));
}

TEST(RowsTest, Slices_OfAnyRows_AreIntervalsInOrderThatCoverThem) {
  for (int64_t rows = 0; rows <= 300; ++rows) {
    for (int32_t slices = 1; slices <= 9; ++slices) {
      int64_t end = 0;
      for (int32_t index = 0; index < slices; ++index) {
        const UnitRange slice = SliceOf(rows, slices, index);
        EXPECT_EQ(slice.first, end);
        EXPECT_GE(slice.count, 0);
        EXPECT_LE(slice.count, SliceRows(rows, slices));
        end = slice.end();
      }
      EXPECT_EQ(end, rows);
      EXPECT_TRUE(slices == 1 || SliceRows(rows, slices) % kSliceQuantum == 0);
      EXPECT_GE(SliceRows(rows, slices) * slices, rows);
    }
  }
}

TEST(RowsTest, Intersection_OfWhatDoesNotMeet_IsEmpty) {
  EXPECT_EQ(Intersection({0, 8}, {4, 8}), (UnitRange{4, 4}));
  EXPECT_EQ(Intersection({0, 4}, {8, 8}).count, 0);
  EXPECT_EQ(Intersection({3, 0}, {0, 8}).count, 0);
}

}  // namespace
}  // namespace phalanx::plan
