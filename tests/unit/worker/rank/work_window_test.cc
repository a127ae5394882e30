#include "worker/rank/work_window.h"

#include <gtest/gtest.h>

namespace phalanx::rank {
namespace {

void AddSteps(WorkWindow& window, int64_t count, double seconds) {
  for (int64_t i = 0; i < count; ++i) window.Add(seconds, 0, false);
}

TEST(WorkWindowTest, FirstStepsOfAnEpoch_CountInNothing) {
  WorkWindow window;
  AddSteps(window, WorkWindow::kFirstSteps, 100);
  AddSteps(window, WorkWindow::kSteps - 1, 2);
  EXPECT_EQ(window.Median(), 0);
  AddSteps(window, 1, 2);
  EXPECT_EQ(window.Median(), 2);
}

TEST(WorkWindowTest, MedianIsOfTheNewest) {
  WorkWindow window;
  AddSteps(window, WorkWindow::kFirstSteps + WorkWindow::kSteps, 2);
  AddSteps(window, WorkWindow::kSteps / 2 - 1, 100);
  EXPECT_EQ(window.Median(), 2);
  AddSteps(window, 2, 100);
  EXPECT_EQ(window.Median(), 100);
}

TEST(WorkWindowTest, StepsThatAreDisturbedOrNotKnown_AreLeftOut) {
  WorkWindow window;
  AddSteps(window, WorkWindow::kFirstSteps + WorkWindow::kSteps, 2);
  for (size_t i = 0; i < WorkWindow::kSteps; ++i) {
    window.Add(100, 0, true);
    window.Add(0, 0, false);
  }
  EXPECT_EQ(window.Median(), 2);
}

TEST(WorkWindowTest, SecondsForOperations_AreOfEachStep) {
  WorkWindow window;
  AddSteps(window, WorkWindow::kFirstSteps, 100);
  for (size_t i = 0; i < WorkWindow::kSteps; ++i) {
    const double flops = (i % 2 == 0 ? 1 : 4) * 1e9;
    EXPECT_EQ(window.MedianPerGflop(), 0);
    window.Add(3 * flops / 1e9, flops, false);
  }
  EXPECT_EQ(window.MedianPerGflop(), 3);
  EXPECT_EQ(window.Median(), 7.5);
}

// An encoder has nothing to compute in a step none of whose samples has an item for it.
TEST(WorkWindowTest, StepsWithoutOperations_SayNothingOfSecondsForOne) {
  WorkWindow window;
  AddSteps(window, WorkWindow::kFirstSteps, 100);
  for (size_t i = 0; i < WorkWindow::kSteps; ++i)
    window.Add(i % 4 == 0 ? 1 : 3, i % 4 == 0 ? 0 : 1e9, false);
  EXPECT_EQ(window.MedianPerGflop(), 3);
  for (size_t i = 0; i < WorkWindow::kSteps; ++i) window.Add(1, 0, false);
  EXPECT_EQ(window.MedianPerGflop(), 0) << "none of them had any";
}

}  // namespace
}  // namespace phalanx::rank
