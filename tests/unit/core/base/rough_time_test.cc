#include "core/base/rough_time.h"

#include "gtest/gtest.h"

namespace phalanx {
namespace {

Instant TimeOf(const char* text) {
  Instant time;
  EXPECT_TRUE(absl::ParseTime(absl::RFC3339_full, text, &time, nullptr));
  return time;
}

TEST(RoughTimeTest, FartherAway_IsLessPrecise) {
  const Instant now = TimeOf("2026-01-31T12:00:20Z");
  EXPECT_EQ(RoughTime(now, now + absl::Milliseconds(1)), TimeOf("2026-01-31T12:01:00Z"));
  EXPECT_EQ(RoughTime(now, now + absl::Seconds(40)), TimeOf("2026-01-31T12:01:00Z"));
  EXPECT_EQ(RoughTime(now, now + absl::Minutes(99)), TimeOf("2026-01-31T13:40:00Z"));
  EXPECT_EQ(RoughTime(now, now + absl::Minutes(101)), TimeOf("2026-01-31T13:50:00Z"));
  EXPECT_EQ(RoughTime(now, now + absl::Hours(47)), TimeOf("2026-02-02T11:10:00Z"));
  EXPECT_EQ(RoughTime(now, now + absl::Hours(48)), TimeOf("2026-02-02T13:00:00Z"));
}

TEST(RoughTextTest, HasOneUnit) {
  EXPECT_EQ(RoughText(absl::Seconds(-5)), "1 min");
  EXPECT_EQ(RoughText(absl::Seconds(89)), "1 min");
  EXPECT_EQ(RoughText(absl::Seconds(90)), "2 min");
  EXPECT_EQ(RoughText(absl::Minutes(99)), "99 min");
  EXPECT_EQ(RoughText(absl::Minutes(100)), "2 h");
  EXPECT_EQ(RoughText(absl::Hours(47)), "47 h");
  EXPECT_EQ(RoughText(absl::Hours(48)), "2 d");
  EXPECT_EQ(RoughText(absl::Hours(24 * 30)), "30 d");
}

TEST(MillisecondsTextTest, OfLessThanOne_HasTwoDigits) {
  EXPECT_EQ(MillisecondsText(0.61563), "615.6 ms");
  EXPECT_EQ(MillisecondsText(0.00104), "1.0 ms");
  EXPECT_EQ(MillisecondsText(0.00034), "0.34 ms");
  EXPECT_EQ(MillisecondsText(0.0000421), "0.042 ms");
  EXPECT_EQ(MillisecondsText(0.00000421), "0.0042 ms");
  EXPECT_EQ(MillisecondsText(1e-12), "0.000000 ms");
  EXPECT_EQ(MillisecondsText(0), "0.0 ms");
}

}  // namespace
}  // namespace phalanx
