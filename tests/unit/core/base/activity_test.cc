#include "core/base/activity.h"

#include "gtest/gtest.h"

namespace phalanx {
namespace {

TEST(ActivityTest, Work_ShowsAndChangesWithEachPiece) {
  std::atomic<uint64_t> word = 0;
  const ActivityOfThread shown(&word);
  {
    Working working;
    const uint64_t first = word;
    EXPECT_TRUE(ShowsWork(first));
    working.Next();
    EXPECT_TRUE(ShowsWork(word));
    EXPECT_NE(word, first);
  }
  EXPECT_FALSE(ShowsWork(word));
}

TEST(ActivityTest, Wait_InterruptsWorkAndNothingElse) {
  std::atomic<uint64_t> word = 0;
  const ActivityOfThread shown(&word);
  {
    const Waiting waiting;
    EXPECT_EQ(word, 0);
  }
  EXPECT_EQ(word, 0);
  const Working working;
  const uint64_t before = word;
  {
    const Waiting waiting;
    const Waiting inner;
    EXPECT_FALSE(ShowsWork(word));
  }
  EXPECT_TRUE(ShowsWork(word));
  EXPECT_NE(word, before) << "the work behind a wait is another piece";
}

TEST(ActivityTest, ThreadThatNobodyWatches_ShowsNothing) {
  std::atomic<uint64_t> word = 0;
  {
    const ActivityOfThread shown(&word);
    const Working working;
  }
  Working working;
  working.Next();
  const Waiting waiting;
  EXPECT_EQ(word, 2);
}

TEST(ActivityTest, ThreadThatEndsAtWork_DoesNotHang) {
  std::atomic<uint64_t> word = 0;
  {
    const ActivityOfThread shown(nullptr);
    const Working working;
  }
  EXPECT_FALSE(ShowsWork(word));
}

}  // namespace
}  // namespace phalanx
