// How fast a rank may write its log.
#include "worker/agent/log_budget.h"

#include <chrono>

#include "gtest/gtest.h"

namespace phalanx::agent {
namespace {

using std::chrono::milliseconds;

constexpr LogBudget::SteadyTime kStart{std::chrono::hours(1)};

TEST(LogBudgetTest, ManyBytesAtOnce_ThenTheRate) {
  LogBudget budget(100, kStart);
  EXPECT_TRUE(budget.Take(800, kStart));
  EXPECT_FALSE(budget.Take(1, kStart)) << "nothing is left";
  EXPECT_TRUE(budget.Take(100, kStart + milliseconds(1000)));
}

TEST(LogBudgetTest, OnceSomethingIsDropped_ASecondsWorthGathersFirst) {
  LogBudget budget(100, kStart);
  EXPECT_TRUE(budget.Take(800, kStart));
  EXPECT_FALSE(budget.Take(10, kStart + milliseconds(50)));
  EXPECT_FALSE(budget.Take(10, kStart + milliseconds(500))) << "there would be room";
  EXPECT_TRUE(budget.Take(10, kStart + milliseconds(1000)));
  EXPECT_TRUE(budget.Take(10, kStart + milliseconds(1000)));
}

TEST(LogBudgetTest, SteadyRate_DropsNothing_HoweverSmallTheWrites) {
  LogBudget budget(1000, kStart);
  for (int i = 0; i < 100'000; ++i) ASSERT_TRUE(budget.Take(1, kStart + milliseconds(i))) << i;
}

TEST(LogBudgetTest, WriteLargerThanEverything_FitsOnceAllHasFilled) {
  LogBudget budget(100, kStart);
  EXPECT_TRUE(budget.Take(10'000, kStart));
  EXPECT_FALSE(budget.Take(10'000, kStart + milliseconds(7000)));
  EXPECT_TRUE(budget.Take(10'000, kStart + milliseconds(8000)));
}

TEST(LogBudgetTest, RateOfZero_IsNoLimit) {
  LogBudget budget(0, kStart);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(budget.Take(int64_t{1} << 40, kStart));
}

}  // namespace
}  // namespace phalanx::agent
