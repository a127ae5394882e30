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

}  // namespace
}  // namespace phalanx
