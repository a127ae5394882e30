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

TEST(StepTimesTest, MeanOfTooFewSteps_IsNotKnown) {
  StepTimes times;
  for (int64_t step = 1; step <= StepTimes::kMeanMin; ++step) {
    times.Reached(At(100.0 + 2.0 * static_cast<double>(step)), step);
    EXPECT_EQ(times.Mean(), std::nullopt);
  }
  times.Reached(At(118), 9);
  EXPECT_EQ(times.Mean(), absl::Seconds(2)) << "the first counts from nowhere";
  times.BeginEpoch();
  EXPECT_EQ(times.Mean(), std::nullopt);
}

TEST(StepTimesTest, Mean_HasWhatHappensBesideSteps_AndStepsToldTogether) {
  StepTimes times;
  times.Reached(At(0), 1, absl::Seconds(1));
  times.Reached(At(4), 5, absl::Seconds(1));
  times.Reached(At(16), 9, absl::Seconds(1));  // a checkpoint between them
  EXPECT_EQ(times.Mean(), absl::Seconds(2));
}

TEST(StepTimesTest, MeanOfStepsThatWereKeptAndComeAtOnce_IsWhatTheySay) {
  StepTimes times;
  for (int64_t step = 1; step <= 200; ++step) times.Reached(At(1000), step, absl::Seconds(12));
  EXPECT_EQ(times.Mean(), absl::Seconds(12));
}

TEST(StepTimesTest, TimeInWhichNobodyListened_CountsOnce) {
  StepTimes times;
  for (int64_t step = 1; step <= 9; ++step)
    times.Reached(At(static_cast<double>(step)), step, absl::Seconds(1));
  for (int64_t step = 10; step <= 69; ++step) times.Reached(At(69), step, absl::Seconds(1));
  EXPECT_EQ(times.Mean(), absl::Seconds(1));
}

TEST(StepTimesTest, StepThatStoodStill_BeginsTheMeanAnew) {
  StepTimes times;
  Instant now = absl::UnixEpoch();
  int64_t step = 0;
  const auto reach = [&](int64_t steps, absl::Duration each) {
    for (; steps > 0; --steps) times.Reached(now += each, ++step);
  };
  reach(20, absl::Seconds(1));
  reach(1, absl::Hours(1));
  EXPECT_EQ(times.Mean(), std::nullopt);
  reach(StepTimes::kMeanMin, absl::Seconds(1));
  EXPECT_EQ(times.Mean(), absl::Seconds(1));
  // What was kept while nobody listened is no stop.
  times.Reached(now += absl::Seconds(600), step += 600);
  EXPECT_EQ(times.Mean(), absl::Seconds(1));
}

TEST(StepTimesTest, WhoTakesMoreThanTenSteps_AndThanAMinute_StandsStill) {
  StepTimes slow, fast;
  for (int64_t step = 1; step <= 20; ++step) {
    slow.Reached(At(60.0 * static_cast<double>(step)), step);
    fast.Reached(At(static_cast<double>(step)), step);
  }
  EXPECT_FALSE(slow.StandsStill(absl::Minutes(10)));
  EXPECT_TRUE(slow.StandsStill(absl::Minutes(10) + absl::Seconds(1)));
  EXPECT_FALSE(fast.StandsStill(absl::Minutes(1)));
  EXPECT_TRUE(fast.StandsStill(absl::Minutes(1) + absl::Seconds(1)));
}

TEST(StepTimesTest, WhereTheMeanIsNotKnown_NobodyStandsStill) {
  StepTimes times;
  EXPECT_FALSE(times.StandsStill(absl::Hours(100)));
  for (int64_t step = 1; step <= StepTimes::kMeanMin; ++step)
    times.Reached(At(static_cast<double>(step)), step);
  EXPECT_FALSE(times.StandsStill(absl::Hours(100)));
  times.Reached(At(9), 9);
  EXPECT_TRUE(times.StandsStill(absl::Hours(100)));
  times.BeginEpoch();
  EXPECT_FALSE(times.StandsStill(absl::Hours(100))) << "another epoch takes another time";
}

TEST(StepTimesTest, Mean_IsOfTheNewestSteps) {
  StepTimes times;
  double now = 0;
  for (int64_t step = 1; step <= 400; ++step)
    times.Reached(At(now += step < 200 ? 10 : 1), step, absl::Seconds(step < 200 ? 10 : 1));
  EXPECT_EQ(times.Mean(), absl::Seconds(1));
}

}  // namespace
}  // namespace phalanx
