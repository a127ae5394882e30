#include "core/posix/activity.h"

#include <atomic>
#include <chrono>

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

TEST(ActivityTest, Need_ShowsInWorkAlone) {
  std::atomic<uint64_t> word = 0;
  const ActivityOfThread shown(&word);
  {
    const Waiting waiting(Waiting::kNeed);
    EXPECT_EQ(word, 0);
  }
  const Working working;
  EXPECT_FALSE(ShowsNeed(word));
  {
    const Waiting waiting(Waiting::kNeed);
    EXPECT_TRUE(ShowsNeed(word));
    EXPECT_FALSE(ShowsWork(word));
  }
  EXPECT_FALSE(ShowsNeed(word));
  EXPECT_TRUE(ShowsWork(word));
  const Waiting for_anything;
  EXPECT_FALSE(ShowsNeed(word)) << "such as data, which nobody owes it";
}

// Each is a word of its own, so that two short waits do not look like one long one.
TEST(ActivityTest, WaitInAWait_CountsUntilItEnds) {
  std::atomic<uint64_t> word = 0;
  const ActivityOfThread shown(&word);
  const Working working;
  const Waiting for_anything;
  uint64_t first = 0;
  {
    const Waiting for_device(Waiting::kNeed);
    first = word;
    EXPECT_TRUE(ShowsNeed(first));
  }
  EXPECT_FALSE(ShowsNeed(word));
  EXPECT_FALSE(ShowsWork(word));
  const Waiting for_device(Waiting::kNeed);
  EXPECT_TRUE(ShowsNeed(word));
  EXPECT_NE(word, first);
}

double WaitForAWhile() {
  const Waiting for_anything;
  const Waiting for_device(Waiting::kNeed);
  const auto begin = std::chrono::steady_clock::now();
  std::chrono::duration<double> passed{};
  while (passed < std::chrono::milliseconds(2)) passed = std::chrono::steady_clock::now() - begin;
  return passed.count();
}

TEST(ActivityTest, SecondsWaited_AreOfWaitsInWorkEachOnce) {
  std::atomic<uint64_t> word = 0;
  const ActivityOfThread shown(&word);
  WaitForAWhile();
  EXPECT_EQ(SecondsWaited(), 0) << "it did not work";
  const auto begin = std::chrono::steady_clock::now();
  const Working working;
  const double passed = WaitForAWhile() + WaitForAWhile();
  EXPECT_GE(SecondsWaited(), passed);
  EXPECT_LE(SecondsWaited(),
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}

TEST(ActivityTest, ThreadThatNobodyWatches_ShowsNothing) {
  std::atomic<uint64_t> word = 0;
  {
    const ActivityOfThread shown(&word);
    const Working working;
  }
  const uint64_t before = word;
  Working working;
  working.Next();
  const Waiting waiting(Waiting::kNeed);
  EXPECT_EQ(word, before);
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
