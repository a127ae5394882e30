#include "coordinator/runtime/curve.h"

#include <gtest/gtest.h>

namespace phalanx::coordinator {
namespace {

StepReport At(int64_t step, double loss = 1) {
  return {.step = step, .loss = loss, .tokens = 100, .seconds = 0.5};
}

TEST(CurveTest, FewSteps_AreAllThere) {
  Curve curve;
  for (int64_t step = 1; step <= 512; ++step) curve.Add(At(step));
  ASSERT_EQ(curve.points().size(), 512u);
  EXPECT_EQ(curve.points()[6].step, 7);
  EXPECT_EQ(curve.points()[6].tokens_per_second, 200);
}

TEST(CurveTest, ManySteps_AreThinnedEvenly) {
  Curve curve;
  for (int64_t step = 1; step <= 100'000; ++step) {
    curve.Add(At(step));
    ASSERT_LE(curve.points().size(), Curve::kPointsMax);
  }
  ASSERT_GT(curve.points().size(), Curve::kPointsMax / 4);
  const int64_t stride = curve.points()[0].step;
  for (size_t i = 0; i < curve.points().size(); ++i) {
    EXPECT_EQ(curve.points()[i].step, static_cast<int64_t>(i + 1) * stride);
  }
  EXPECT_GT(curve.points().back().step, 100'000 - stride);
}

TEST(CurveTest, WhatIsThinnedForTheStore_IsEvenAndGoesOnWhereItWas) {
  Curve curve;
  for (int64_t step = 1; step <= 500; ++step) curve.Add(At(step));
  const std::vector<CurvePoint> stored = curve.Thinned(128);
  ASSERT_EQ(stored.size(), 125u);
  for (size_t i = 0; i < stored.size(); ++i)
    EXPECT_EQ(stored[i].step, static_cast<int64_t>(i + 1) * 4);
  Curve next;
  for (const CurvePoint& point : stored) next.Add(point);
  EXPECT_EQ(next.points(), stored);
  for (int64_t step = 501; step <= 1000; ++step) next.Add(At(step));
  EXPECT_LE(next.points().size(), Curve::kPointsMax);
  EXPECT_EQ(next.points().front(), stored.front());
  EXPECT_GE(next.points().back().step, 998);
}

TEST(CurveTest, FewPoints_AreStoredAsTheyAre) {
  Curve curve;
  for (int64_t step = 1; step <= 128; ++step) curve.Add(At(step));
  EXPECT_EQ(curve.Thinned(128), curve.points());
}

TEST(CurveTest, StepsDoneAgain_ReplaceWhatTheyWere) {
  Curve curve;
  for (int64_t step = 1; step <= 10; ++step) curve.Add(At(step, 1));
  curve.Add(At(8, 2));
  ASSERT_EQ(curve.points().size(), 8u);
  EXPECT_EQ(curve.points()[6].loss, 1);
  EXPECT_EQ(curve.points()[7].loss, 2);
}

TEST(CurveTest, StepThatTookNoTime_HasNoThroughput) {
  Curve curve;
  curve.Add({.step = 1, .tokens = 10});
  EXPECT_EQ(curve.points().at(0).tokens_per_second, 0);
}

}  // namespace
}  // namespace phalanx::coordinator
