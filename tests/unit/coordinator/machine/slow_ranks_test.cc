#include "coordinator/machine/slow_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/prng.h"

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

// With fewer samples its steps have become shorter, and so is what it exceeds the others by.
TEST_F(SlowRanksTest, PresumedRankOfShortSteps_IsSlowAsLongAsItIs) {
  slow_.Presume(1, 1.4);
  const auto train = [&](double per_gflop) {
    std::vector<std::string> changes;
    for (int round = 0; round < 20; ++round) {
      step_ += 10;
      for (int32_t rank = 0; rank < 2; ++rank) {
        for (const SlowRanks::Change& change :
             slow_.Add({rank, kSame, step_, 0.009, rank == 1 ? per_gflop : 1}))
          changes.push_back(absl::StrCat(change.rank, change.verdict.slow ? " slow" : " over"));
      }
    }
    return changes;
  };
  EXPECT_THAT(train(1.4), IsEmpty()) << "2.6 ms a step";
  EXPECT_THAT(train(1), ElementsAre("1 over"));
}

class UnequalSamplesTest : public testing::Test {
 protected:
  // Each rank says what `steps` steps of its samples took, where one of `work` takes
  // fixed + seconds * work, `slowness` times as long on rank 1. Returns who becomes slow, or is not
  // any more.
  std::vector<std::string> Train(int64_t rounds, double slowness = 1) {
    std::vector<std::string> changes;
    for (int64_t i = 0; i < rounds; ++i) {
      step_ += kSteps;
      for (int32_t rank = 0; rank < 2; ++rank) {
        std::vector<double> seconds, per_gflop;
        for (int64_t step = 0; step < kSteps; ++step) {
          double work = 0;
          for (int sample = 0; sample < samples_[static_cast<size_t>(rank)]; ++sample)
            work += Length();
          seconds.push_back((rank == 1 ? slowness : 1) * (fixed_ + work));
          per_gflop.push_back(seconds.back() / work);
        }
        const auto median = [](std::vector<double> values) {
          std::sort(values.begin(), values.end());
          return (values[kSteps / 2 - 1] + values[kSteps / 2]) / 2;
        };
        for (const SlowRanks::Change& change :
             slow_.Add({rank, kSame, step_, median(seconds), median(per_gflop)}))
          changes.push_back(absl::StrCat(change.rank, change.verdict.slow ? " slow" : " over"));
      }
    }
    return changes;
  }
  // Of a sample: some twofold, log-normal.
  double Length() {
    double sum = 0;  // of twelve, about normal
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(prng_.Below(1'000'001)) / 1e6;
    return std::exp(0.6 * (sum - 6));
  }

  static constexpr int64_t kSteps = 16;
  Prng prng_{7};
  double fixed_ = 0;
  std::vector<int> samples_ = {1, 1};
  SlowRanks slow_;
  int64_t step_ = 0;
};

// By the time of a step alone some sound rank would be named every few hundred steps.
TEST_F(UnequalSamplesTest, LengthsNameNobody) {
  for (const double fixed : {0.0, 0.1, 1.0, 10.0}) {
    fixed_ = fixed;
    EXPECT_THAT(Train(5000), IsEmpty()) << "beside " << fixed << " that depend on no sample";
  }
}

TEST_F(UnequalSamplesTest, NumbersNameNobody) {
  samples_ = {1, 3};
  fixed_ = 0.5;
  EXPECT_THAT(Train(5000), IsEmpty());
}

TEST_F(UnequalSamplesTest, DeviceThatIsSlow_IsNamedAllTheSame) {
  fixed_ = 0.1;
  EXPECT_THAT(Train(20), IsEmpty());
  EXPECT_THAT(Train(100, 3), ElementsAre("1 slow"));
  EXPECT_THAT(Train(100), ElementsAre("1 over"));
}

// It works as long as the other one, or less: what it is given is what is less.
TEST_F(UnequalSamplesTest, PresumedRank_IsSlowAsLongAsItsOperationsTakeLonger) {
  slow_.Presume(1, 3);
  samples_ = {6, 2};
  fixed_ = 0.5;
  EXPECT_THAT(Train(100, 3), IsEmpty());
  ASSERT_TRUE(slow_.slow().contains(1));
  EXPECT_NEAR(slow_.slow().at(1).ratio(), 3, 1.2);
  EXPECT_THAT(Train(100, 1), ElementsAre("1 over"));
  EXPECT_THAT(slow_.slow(), IsEmpty());
}

}  // namespace
}  // namespace phalanx::coordinator
