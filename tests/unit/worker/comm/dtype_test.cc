#include "worker/comm/dtype.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace phalanx::comm {
namespace {

TEST(Bf16Test, EveryValue_RoundTripsThroughFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = Bf16ToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(value))));
    } else {
      EXPECT_EQ(FloatToBf16(value), bits);
    }
  }
}

TEST(Bf16Test, Rounding_IsToNearestWithTiesToEven) {
  EXPECT_EQ(FloatToBf16(1.0f + 0x1p-9f), FloatToBf16(1.0f));                // below half: down
  EXPECT_EQ(FloatToBf16(1.0f + 0x1p-8f), FloatToBf16(1.0f));                // half: to even, down
  EXPECT_EQ(FloatToBf16(1.0f + 3 * 0x1p-8f), FloatToBf16(1.0f + 0x1p-6f));  // half: to even, up
  EXPECT_EQ(FloatToBf16(1.0f + 0x1p-8f + 0x1p-20f), FloatToBf16(1.0f + 0x1p-7f));
  EXPECT_TRUE(std::isinf(Bf16ToFloat(FloatToBf16(std::numeric_limits<float>::max()))));
}

TEST(AccumulatorTest, Bf16_IsSummedInFloatAndRoundedOnce) {
  // 256 + 1 is not a bf16, so sums rounded after each addition would stay at 256.
  const std::vector<uint16_t> big = {FloatToBf16(256.0f)}, one = {FloatToBf16(1.0f)};
  Accumulator sum;
  sum.Reset(DType::kBf16, 1);
  sum.Add(big.data());
  for (int i = 0; i < 4; ++i) sum.Add(one.data());
  uint16_t out = 0;
  sum.Store(&out);
  EXPECT_EQ(Bf16ToFloat(out), 260.0f);
}

TEST(AccumulatorTest, Int64_Wraps) {
  const int64_t largest = std::numeric_limits<int64_t>::max(), one = 1;
  Accumulator sum;
  sum.Reset(DType::kInt64, 1);
  sum.Add(&largest);
  sum.Add(&one);
  int64_t out = 0;
  sum.Store(&out);
  EXPECT_EQ(out, std::numeric_limits<int64_t>::min());
}

}  // namespace
}  // namespace phalanx::comm
