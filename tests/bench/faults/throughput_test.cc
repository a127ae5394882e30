#include "tests/bench/faults/throughput.h"

#include <gtest/gtest.h>

#include <vector>

namespace phalanx::e2e {
namespace {

// Pairs of steps of 1 s before, and of so many seconds after.
Throughput Of(const std::vector<double>& after) {
  Throughput all;
  for (const double seconds : after) all.Add({1, 1, 9}, {seconds, 0, 9});
  return all;
}

TEST(ThroughputTest, FewPairs_TellNothing) {
  const Throughput few = Of({2, 2, 2, 2, 2});
  EXPECT_TRUE(few.IsBack());
  EXPECT_TRUE(few.ToJson()["high"].is_null());
  EXPECT_EQ(few.ToJson()["ratio"], 0.5);
  EXPECT_EQ(few.ToJson()["steps"], 30);
  EXPECT_FALSE(few.Tells());
  EXPECT_EQ(few.ToWords(), "50.0 % of the throughput (5 pairs)");
  EXPECT_FALSE(Of({2, 2, 2, 2, 2, 2}).IsBack()) << "six are enough";
  EXPECT_TRUE(Of({2, 2, 2, 2, 2, 2}).Tells());
  EXPECT_EQ(Throughput().ToWords(), "throughput: no pairs");
}

TEST(ThroughputTest, SlowTimesOfTheMachine_AreNotTakenForALoss) {
  EXPECT_TRUE(Of({2, 2, 2, 2, 2, 2, 2, 1}).IsBack()) << "one of eight may be by chance";
  EXPECT_FALSE(Of({2, 2, 2, 2, 2, 2, 2, 2, 1}).IsBack());
  const Throughput mixed = Of({0.5, 0.8, 1, 1, 1, 1, 1.25, 2});
  EXPECT_TRUE(mixed.IsBack());
  EXPECT_EQ(mixed.ToJson()["ratio"], 1);
  EXPECT_EQ(mixed.ToJson()["low"], 0.5);
  EXPECT_EQ(mixed.ToJson()["high"], 2);
  EXPECT_EQ(mixed.ToWords(), "100.0 % of the throughput (50.0 to 200.0, 8 pairs)");
}

TEST(ThroughputTest, PairsOfSeveralLayouts_AreJudgedTogether) {
  Throughput all = Of({2, 2, 2});
  all.Add(Of({2, 2, 2}));
  EXPECT_FALSE(all.IsBack());
  EXPECT_EQ(all.HealthyStep(), 2000);
}

}  // namespace
}  // namespace phalanx::e2e
