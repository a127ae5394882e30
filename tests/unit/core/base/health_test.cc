#include "core/base/health.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx {
namespace {

const Instant kStart = absl::UnixEpoch() + absl::Hours(1);

TEST(PulseTest, Silence_IsToldOnceItIsTooLong) {
  Pulse pulse("the driver", absl::Seconds(30), kStart);
  EXPECT_TRUE(pulse.Alive(kStart + absl::Seconds(30)).ok());
  const absl::Status dead = pulse.Alive(kStart + absl::Milliseconds(31'900));
  EXPECT_EQ(dead, absl::UnavailableError("the driver has not run for 31s"));
}

TEST(PulseTest, Beat_BringsItBack) {
  Pulse pulse("the driver", absl::Seconds(30), kStart);
  pulse.Beat(kStart + absl::Seconds(60));
  EXPECT_TRUE(pulse.Alive(kStart + absl::Seconds(80)).ok());
}

// The clocks of two threads are read one after the other.
TEST(PulseTest, BeatAfterTheQuestion_IsNoSilence) {
  const Pulse pulse("the driver", absl::Seconds(30), kStart);
  EXPECT_TRUE(pulse.Alive(kStart - absl::Seconds(1)).ok());
}

}  // namespace
}  // namespace phalanx
