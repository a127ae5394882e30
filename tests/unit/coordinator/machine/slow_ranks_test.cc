#include "coordinator/machine/slow_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace phalanx::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kSame = 7;

class SlowRanksTest : public testing::Test {
 protected:
  // Every rank, from 0 on, says once how long it works, at the step that follows after `steps`.
  std::vector<std::string> Round(const std::vector<double>& seconds, int64_t steps = 10) {
    step_ += steps;
    std::vector<std::string> changes;
    for (size_t rank = 0; rank < seconds.size(); ++rank)
      Say(static_cast<int32_t>(rank), kSame, seconds[rank], changes);
    return changes;
  }
  void Say(int32_t rank, uint64_t equal, double seconds, std::vector<std::string>& changes) {
    for (const SlowRanks::Change& change : slow_.Add({rank, equal, step_, seconds}))
      changes.push_back(absl::StrCat(change.rank, change.verdict.slow ? " slow " : " over ",
                                     change.verdict.ratio(), " of ", change.verdict.others));
  }
  std::vector<std::string> Rounds(int count, const std::vector<double>& seconds,
                                  int64_t steps = 10) {
    std::vector<std::string> all;
    for (int i = 0; i < count; ++i) {
      for (std::string& change : Round(seconds, steps)) all.push_back(std::move(change));
    }
    return all;
  }

  SlowRanks slow_;
  int64_t step_ = 100;
};

TEST_F(SlowRanksTest, RankThatTakesLongerForLong_IsNamedOnce) {
  Round({1, 1, 1, 1});
  EXPECT_THAT(Rounds(SlowRanks::kRounds - 1, {1, 1, 3, 1}), IsEmpty());
  EXPECT_THAT(slow_.slow(), IsEmpty());
  EXPECT_THAT(Round({1, 1, 3, 1}), ElementsAre("2 slow 3 of 3"));
  EXPECT_THAT(Rounds(10, {1, 1, 4, 1}), IsEmpty());
  ASSERT_THAT(slow_.slow(), SizeIs(1));
  EXPECT_EQ(slow_.slow().at(2).ratio(), 4);
}

TEST_F(SlowRanksTest, Hiccup_NamesNobody) {
  Round({1, 1});
  for (int i = 0; i < 20; ++i) {
    EXPECT_THAT(Rounds(SlowRanks::kRounds - 1, {1, 9}), IsEmpty());
    EXPECT_THAT(Round({1, 1}), IsEmpty());
  }
}

TEST_F(SlowRanksTest, StepsThatStandStill_NameNobody) {
  Round({1, 1});
  EXPECT_THAT(Rounds(100, {1, 3}, 0), IsEmpty());
  EXPECT_THAT(Rounds(1, {1, 3}, SlowRanks::kSteps - 1), IsEmpty());
  EXPECT_THAT(Round({1, 3}, 1), ElementsAre("1 slow 3 of 1"));
}

TEST_F(SlowRanksTest, LongSteps_AreCountedAndNotRoundsAlone) {
  Round({1, 1});
  EXPECT_THAT(Rounds(SlowRanks::kSteps, {1, 3}, 1), IsEmpty());
  EXPECT_THAT(Round({1, 3}, 1), ElementsAre("1 slow 3 of 1"));
}

TEST_F(SlowRanksTest, LessThanTheRatio_OrALittleMoreOfShortSteps_IsNotSlow) {
  EXPECT_THAT(Rounds(20, {1, 1, 1.29}), IsEmpty());
  EXPECT_THAT(Rounds(20, {0.002, 0.0069, 0.002}), IsEmpty());
  EXPECT_THAT(Rounds(20, {0.002, 0.0071, 0.002}), SizeIs(1));
}

TEST_F(SlowRanksTest, OnceNamed_ItIsSoUntilItKeepsUpForLong) {
  Round({1, 1, 1});
  EXPECT_THAT(Rounds(3, {1, 1, 3}), SizeIs(1));
  EXPECT_THAT(Rounds(20, {1, 1, 1.2}), IsEmpty());  // between the two ratios
  EXPECT_THAT(slow_.slow(), SizeIs(1));
  EXPECT_THAT(Rounds(SlowRanks::kRounds - 1, {1, 1, 1}), IsEmpty());
  EXPECT_THAT(Round({1, 1, 3}), IsEmpty());  // counts anew
  EXPECT_THAT(Rounds(SlowRanks::kRounds - 1, {1, 1, 1}), IsEmpty());
  EXPECT_THAT(Round({1, 1, 1}), ElementsAre("2 over 1 of 2"));
  EXPECT_THAT(slow_.slow(), IsEmpty());
  EXPECT_THAT(Rounds(3, {1, 1, 3}), ElementsAre("2 slow 3 of 2"));
}

TEST_F(SlowRanksTest, WhileRanksSpeakForTheFirstTime_NobodyIsJudged) {
  std::vector<std::string> changes;
  for (int32_t rank = 0; rank < 100; ++rank) {
    step_ += 10;
    Say(rank, kSame, rank % 2 == 0 ? 1 : 3, changes);
  }
  EXPECT_THAT(changes, IsEmpty());
}

TEST_F(SlowRanksTest, RankAlone_AndRanksOfOtherWork_AreNotCompared) {
  std::vector<std::string> changes;
  for (int round = 0; round < 20; ++round) {
    step_ += 10;
    Say(0, 1, 1, changes);
    Say(1, 2, 3, changes);
    Say(2, 3, 1, changes);
    Say(3, 3, 1, changes);
  }
  EXPECT_THAT(changes, IsEmpty());
}

TEST_F(SlowRanksTest, HalfOfTheRanks_AreNamedIfOthersAreFaster) {
  Round({1, 1, 1, 1});
  EXPECT_THAT(Rounds(3, {1, 3, 1, 3}), ElementsAre("1 slow 3 of 3", "3 slow 3 of 3"));
}

TEST_F(SlowRanksTest, AllRanksThatBecomeSlow_AreNot) {
  Rounds(10, {1, 1, 1});
  EXPECT_THAT(Rounds(20, {3, 3, 3}), IsEmpty());
}

TEST_F(SlowRanksTest, OneThatFallsSilent_IsJudgedByNoNewStepOfItsOwn) {
  Rounds(5, {1, 1, 1});
  std::vector<std::string> changes;
  Say(2, kSame, 3, changes);
  for (int round = 0; round < 20; ++round) {
    step_ += 10;
    for (int32_t rank = 0; rank < 2; ++rank) Say(rank, kSame, 1, changes);
  }
  EXPECT_THAT(changes, IsEmpty());
}

TEST_F(SlowRanksTest, WorkThatChangesWithinAnEpoch_IsNotBelieved) {
  Rounds(5, {1, 1});
  std::vector<std::string> changes;
  for (int round = 0; round < 20; ++round) Say(1, kSame + 1, 100, changes);
  EXPECT_THAT(changes, IsEmpty());
  EXPECT_THAT(Rounds(5, {1, 1}), IsEmpty());
}

}  // namespace
}  // namespace phalanx::coordinator
