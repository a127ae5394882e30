#include "core/posix/beside.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

namespace phalanx {
namespace {

using ::testing::Each;

TEST(BesideTest, RunsEachOnAThreadOfItsOwn_TheFirstOnTheCallers) {
  std::vector<std::thread::id> ran(5);
  std::vector<int> times(5, 0);
  RunBeside(5, [&](size_t i) {
    ran[i] = std::this_thread::get_id();
    ++times[i];
  });
  EXPECT_THAT(times, Each(1));
  EXPECT_EQ(ran[0], std::this_thread::get_id());
  EXPECT_EQ(std::set<std::thread::id>(ran.begin(), ran.end()).size(), 5u);
}

TEST(BesideTest, OfOneOrNone_RunsTheFirstAlone) {
  for (const size_t count : {0, 1}) {
    int times = 0;
    RunBeside(count, [&](size_t i) {
      EXPECT_EQ(i, 0u);
      ++times;
    });
    EXPECT_EQ(times, 1);
  }
}

}  // namespace
}  // namespace phalanx
