#include "core/base/step_times.h"

#include "gtest/gtest.h"

namespace phalanx {
namespace {

Instant At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(StepTimesTest, WithoutTwoSteps_NothingIsKnown) {
  StepTimes times;
  EXPECT_EQ(times.Slow(), std::nullopt);
  times.Reached(At(1), 1);
  EXPECT_EQ(times.Slow(), std::nullopt);
}

TEST(StepTimesTest, StepsToldTogether_AreEquallyLong) {
  StepTimes times;
  times.Reached(At(1), 1);
  times.Reached(At(2), 5);
  EXPECT_EQ(times.Slow(), absl::Milliseconds(250));
  times.Reached(At(9), 5);
  EXPECT_EQ(times.Slow(), absl::Milliseconds(250)) << "no step was done";
}

TEST(StepTimesTest, StepsThatWereKeptAndComeAtOnce_AreAsLongAsTheySay) {
  StepTimes times;
  for (int64_t step = 1; step <= 200; ++step) times.Reached(At(1000), step, absl::Seconds(12));
  EXPECT_EQ(times.Slow(), absl::Seconds(12));
  times.Reached(At(1020), 201, absl::Seconds(12));
  times.Reached(At(1040), 202, absl::Seconds(12));
  times.Reached(At(1060), 203, absl::Seconds(12));
  EXPECT_EQ(times.Slow(), absl::Seconds(20)) << "nor less than what is between them";
}

TEST(StepTimesTest, SlowestOfAHundredOrMore_DoesNotCount) {
  StepTimes times;
  times.Reached(At(0), 1);
  times.Reached(At(60), 2);
  EXPECT_EQ(times.Slow(), absl::Seconds(60));
  for (int64_t step = 3; step <= 110; ++step)
    times.Reached(At(60.0 + static_cast<double>(step)), step);
  EXPECT_LT(*times.Slow(), absl::Seconds(4));
}

TEST(StepTimesTest, OldSteps_AreForgotten) {
  StepTimes times;
  double now = 0;
  for (int64_t step = 1; step <= 400; ++step) times.Reached(At(now += step < 200 ? 10 : 1), step);
  EXPECT_EQ(times.Slow(), absl::Seconds(1));
}

}  // namespace
}  // namespace phalanx
