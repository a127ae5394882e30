#include "core/plan/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/support/specs.h"

namespace phalanx::plan {
namespace {

using support::Llama;

TEST(UnitsTest, EvenSplit_OfAnyCount_IsContiguousWithTheRemainderFirst) {
  for (int64_t count = 0; count <= 40; ++count) {
    for (int64_t parts = 1; parts <= 9; ++parts) {
      int64_t next = 0;
      for (int64_t part = 0; part < parts; ++part) {
        const UnitRange range = EvenSplit(count, parts, part);
        EXPECT_EQ(range.first, next);
        EXPECT_EQ(range.count, count / parts + (part < count % parts ? 1 : 0));
        for (int64_t item = range.first; item < range.end(); ++item) {
          EXPECT_EQ(SplitIndexOf(count, parts, item), part)
              << count << "/" << parts << " item " << item;
        }
        next = range.end();
      }
      EXPECT_EQ(next, count);
    }
  }
}

TEST(UnitsTest, CountUnits_WithShortLastBlocks_CountsThem) {
  const UnitCounts units = CountUnits(Llama({.mlp_size = 65, .block = 8, .vocabulary = 97}));
  EXPECT_EQ(units.query_heads, 8);
  EXPECT_EQ(units.kv_heads, 2);
  EXPECT_EQ(units.mlp_blocks, 9);
  EXPECT_EQ(units.vocabulary_blocks, 13);
}

// 8 query heads over 2 KV heads on 3 ranks: 3, 3 and 2 query heads; the second rank has both KV
// heads.
TEST(UnitsTest, TensorUnitsOf_ThreeRanksWithTwoKvHeads_SharesThem) {
  const job::Architecture llama = Llama();
  EXPECT_EQ(TensorUnitsOf(llama, 3, 0).query_heads, (UnitRange{0, 3}));
  EXPECT_EQ(TensorUnitsOf(llama, 3, 0).kv_heads, (UnitRange{0, 1}));
  EXPECT_EQ(TensorUnitsOf(llama, 3, 1).query_heads, (UnitRange{3, 3}));
  EXPECT_EQ(TensorUnitsOf(llama, 3, 1).kv_heads, (UnitRange{0, 2}));
  EXPECT_EQ(TensorUnitsOf(llama, 3, 2).query_heads, (UnitRange{6, 2}));
  EXPECT_EQ(TensorUnitsOf(llama, 3, 2).kv_heads, (UnitRange{1, 1}));
  EXPECT_EQ(HoldersOfKvHead(llama, 3, 0), (UnitRange{0, 2}));
  EXPECT_EQ(HoldersOfKvHead(llama, 3, 1), (UnitRange{1, 2}));
}

TEST(UnitsTest, KvHeads_OfEveryWidth_AreHeldExactlyWhereTheirQueryHeadsAre) {
  for (int32_t kv_heads : {1, 2, 4, 8, 16}) {
    job::Architecture llama = Llama({.hidden_size = 64, .heads = 16, .kv_heads = kv_heads});
    for (int32_t width = 1; width <= 16; ++width) {
      for (int64_t head = 0; head < kv_heads; ++head) {
        const UnitRange holders = HoldersOfKvHead(llama, width, head);
        for (int32_t rank = 0; rank < width; ++rank) {
          const TensorUnits units = TensorUnitsOf(llama, width, rank);
          bool queries = false;
          for (int64_t q = units.query_heads.first; q < units.query_heads.end(); ++q) {
            queries = queries || q * kv_heads / 16 == head;
          }
          const bool holds = units.kv_heads.first <= head && head < units.kv_heads.end();
          EXPECT_EQ(holds, queries)
              << kv_heads << " KV heads, width " << width << ", rank " << rank;
          EXPECT_EQ(holders.first <= rank && rank < holders.end(), queries);
        }
      }
    }
  }
}

// The figures of 8 KV heads with 32 query heads at widths 7, 6, 5 (largest share over the ideal).
TEST(UnitsTest, QueryHeadUnits_AtOddWidths_StayNearTheIdeal) {
  const job::Architecture llama = Llama({.hidden_size = 256, .heads = 32, .kv_heads = 8});
  for (int32_t width : {7, 6, 5}) {
    const double largest = static_cast<double>(TensorUnitsOf(llama, width, 0).query_heads.count);
    EXPECT_LE(largest / (32.0 / width), 1.13) << width;
  }
}

}  // namespace
}  // namespace phalanx::plan
