#include "tests/bench/faults/throughput.h"

#include <gtest/gtest.h>

#include <vector>

namespace phalanx::e2e {
namespace {

using Verdict = Throughput::Verdict;

// Pairs of steps of 1 s before, and of so many seconds after.
Throughput Of(const std::vector<double>& after) {
  Throughput all;
  for (const double seconds : after) all.Add({1, 1, 9}, {seconds, 0, 9});
  return all;
}

TEST(ThroughputTest, FewPairs_TellNothing) {
  const Throughput few = Of({2, 2, 2, 2, 2});
  EXPECT_EQ(few.IsBack(), Verdict::kNeither);
  EXPECT_TRUE(few.ToJson()["high"].is_null());
  EXPECT_EQ(few.ToJson()["ratio"], 0.5);
  EXPECT_EQ(few.ToJson()["steps"], 30);
  EXPECT_FALSE(few.Tells());
  EXPECT_EQ(few.ToWords(), "50.0 % of the throughput (5 pairs)");
  EXPECT_TRUE(Of({2, 2, 2, 2, 2, 2}).IsRuledOut()) << "six are enough";
  EXPECT_TRUE(Of({2, 2, 2, 2, 2, 2}).Tells());
  EXPECT_EQ(Throughput().ToWords(), "throughput: no pairs");
}

TEST(ThroughputTest, SlowTimesOfTheMachine_AreNotTakenForALoss) {
  EXPECT_FALSE(Of({2, 2, 2, 2, 2, 2, 2, 1}).IsRuledOut()) << "one of eight may be by chance";
  EXPECT_TRUE(Of({2, 2, 2, 2, 2, 2, 2, 2, 1}).IsRuledOut());
  const Throughput mixed = Of({0.5, 0.8, 1, 1, 1, 1, 1.25, 2});
  EXPECT_EQ(mixed.IsBack(), Verdict::kNeither);
  EXPECT_EQ(mixed.ToJson()["ratio"], 1);
  EXPECT_EQ(mixed.ToJson()["low"], 0.5);
  EXPECT_EQ(mixed.ToJson()["high"], 2);
  EXPECT_EQ(mixed.ToWords(), "100.0 % of the throughput (50.0 to 200.0, 8 pairs)");
}

// Whatever is not ruled out is not shown by that.
TEST(ThroughputTest, Back_IsShownWhereAllOfTheIntervalIsEnough) {
  const Throughput same = Of({1, 1, 1, 1.005, 1.005, 1});
  EXPECT_EQ(same.IsBack(), Verdict::kShown);
  EXPECT_EQ(same.ToJson()["back"], "shown");
  EXPECT_EQ(same.VerdictWords(), "that 99 % are back is shown");
  const Throughput apart = Of({1, 1, 1, 1, 1, 1.05});
  EXPECT_EQ(apart.IsBack(), Verdict::kNeither) << "of six pairs the last one counts";
  EXPECT_EQ(apart.ToJson()["back"], "neither");
  EXPECT_EQ(apart.VerdictWords(), "that 99 % are back is neither shown nor ruled out");
  EXPECT_EQ(Of({2, 2, 2, 2, 2, 2}).VerdictWords(), "that 99 % are back is ruled out");
  EXPECT_EQ(Throughput().IsBack(), Verdict::kNeither);
}

TEST(ThroughputTest, PairsOfSeveralLayouts_AreJudgedTogether) {
  Throughput all = Of({2, 2, 2});
  all.Add(Of({2, 2, 2}));
  EXPECT_TRUE(all.IsRuledOut());
  EXPECT_EQ(all.HealthyStep(), 2000);
}

}  // namespace
}  // namespace phalanx::e2e
