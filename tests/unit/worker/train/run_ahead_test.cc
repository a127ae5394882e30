#include "worker/train/run_ahead.h"

#include "gtest/gtest.h"

namespace phalanx::train {
namespace {

TEST(RunAheadTest, UnknownWork_CountsAsAQuarterOfTheBound) {
  RunAhead ahead;
  for (int32_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(ahead.Admits(i));
    ahead.Enqueued(i);
  }
  EXPECT_FALSE(ahead.Admits(4));
}

TEST(RunAheadTest, KnownWork_IsAdmittedUpToTheBound) {
  RunAhead ahead;
  ahead.Learn(0, 0.0625);
  int admitted = 0;
  while (ahead.Admits(0)) {
    ahead.Enqueued(0);
    ++admitted;
  }
  EXPECT_EQ(admitted, 3);  // a fourth would make a quarter of a second
}

TEST(RunAheadTest, FinishedWork_MakesRoom) {
  RunAhead ahead;
  ahead.Learn(0, RunAhead::kSecondsMax);
  const int64_t first = ahead.Enqueued(0);
  EXPECT_FALSE(ahead.Admits(0));
  ahead.Finished(first - 1);
  EXPECT_FALSE(ahead.Admits(0));
  ahead.Finished(first);
  EXPECT_TRUE(ahead.Admits(0));
}

// A pass longer than the bound is enqueued no further ahead than its layers fit.
TEST(RunAheadTest, Layers_AreAdmittedOneByOne) {
  RunAhead ahead;
  ahead.Learn(0, 0.5);
  ahead.Split(0, 8);  // 62.5 ms each
  int64_t last = 0;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(ahead.Admits(0));
    last = ahead.Enqueued(0);
  }
  EXPECT_FALSE(ahead.Admits(0));
  ahead.Finished(last - 2);
  EXPECT_TRUE(ahead.Admits(0));
}

// However short they are: a stream holds only so many kernels.
TEST(RunAheadTest, Layers_AreBoundedInNumber) {
  RunAhead ahead;
  ahead.Learn(0, 1e-6);
  int64_t last = 0;
  for (size_t i = 0; i < RunAhead::kLayersMax; ++i) {
    ASSERT_TRUE(ahead.Admits(0));
    last = ahead.Enqueued(0);
  }
  EXPECT_FALSE(ahead.Admits(0));
  ahead.Finished(last);
  EXPECT_TRUE(ahead.Admits(0));
}

// The counter that the device advances outlives epochs.
TEST(RunAheadTest, NumbersGoOnFromThoseOfTheEpochBefore) {
  RunAhead ahead(500);
  ahead.Learn(0, RunAhead::kSecondsMax);
  EXPECT_EQ(ahead.Enqueued(0), 501);
  ahead.Finished(500);
  EXPECT_FALSE(ahead.Admits(0));
}

TEST(RunAheadTest, WorkLongerThanTheBound_RunsAlone) {
  RunAhead ahead;
  ahead.Learn(0, 5.0);
  EXPECT_TRUE(ahead.Admits(0));
  ahead.Finished(ahead.Enqueued(0));
  ahead.Learn(1, 0.001);
  ahead.Enqueued(1);
  EXPECT_FALSE(ahead.Admits(0));
  EXPECT_TRUE(ahead.Admits(1));
}

}  // namespace
}  // namespace phalanx::train
