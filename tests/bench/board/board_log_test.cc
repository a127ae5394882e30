#include "tests/bench/board/board_log.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace phalanx::bench {
namespace {

// One a second, of 40 steps.
const std::vector<BoardSample> kSamples = {
    {.step = 0, .seconds = 1, .mhz = 300, .degrees = 30, .joules = 1000},
    {.step = 9, .seconds = 2, .mhz = 1980, .degrees = 40, .joules = 1500},
    {.step = 10, .seconds = 3, .mhz = 1900, .degrees = 50, .joules = 2500},
    {.step = 20, .seconds = 4, .mhz = 1800, .degrees = 60, .joules = 3800},
    {.step = 39, .seconds = 5, .mhz = 1700, .degrees = 70, .joules = 5100},
    {.step = 40, .seconds = 6, .mhz = 300, .degrees = 60, .joules = 5200}};

TEST(BoardLogTest, Means_AreOfTheStepsThatCount) {
  const std::optional<BoardMeans> means = MeansOf(kSamples, 10, 40);
  ASSERT_TRUE(means.has_value());
  EXPECT_EQ(means->mhz, 1800);
  EXPECT_EQ(means->degrees, 60);
  EXPECT_EQ(means->watts, 1300);
}

TEST(BoardLogTest, FewerThanTwoSamples_TellNothing) {
  EXPECT_FALSE(MeansOf({}, 10, 40).has_value());
  EXPECT_FALSE(MeansOf(kSamples, 11, 39).has_value());
  EXPECT_FALSE(MeansOf(kSamples, 41, 50).has_value());
}

TEST(BoardLogTest, OfNoBoards_StopsAtOnce) {
  BoardLog log({}, [] { return int64_t{7}; });
  for (const BoardSample& sample : log.Stop()) EXPECT_EQ(sample.step, 7);
}

}  // namespace
}  // namespace phalanx::bench
