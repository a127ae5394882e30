// Plans that are being made, and who waits for that.
#include "coordinator/machine/plan_orders.h"

#include <gtest/gtest.h>

namespace phalanx::coordinator {
namespace {

TEST(PlanOrdersTest, Answer_IsOfTheJobThatItWasOrderedFor) {
  PlanOrders plans(4);
  const uint64_t first = plans.AddFor(JobId{7}), second = plans.AddFor(JobId{8});
  EXPECT_NE(first, second);
  EXPECT_EQ(plans.JobOf(first), JobId{7});
  EXPECT_EQ(plans.JobOf(second), JobId{8});
  EXPECT_EQ(plans.JobOf(plans.Add()), JobId{});
}

TEST(PlanOrdersTest, PlanThatNobodyHasUseFor_CountsUntilItIsAnswered) {
  PlanOrders plans(4);
  const uint64_t number = plans.AddFor(JobId{7});
  plans.EndFor(number);
  EXPECT_EQ(plans.JobOf(number), JobId{});
  EXPECT_EQ(plans.count(), 1u);
  plans.Answer(number);
  EXPECT_EQ(plans.count(), 0u);
}

TEST(PlanOrdersTest, OnceOneIsRefused_NoneBeginsBeforeHalfOfThemAreAnswered) {
  PlanOrders plans(4);
  for (int64_t job = 1; job <= 4; ++job) {
    EXPECT_TRUE(plans.MayBegin());
    plans.AddFor(JobId{job});
  }
  EXPECT_FALSE(plans.refuses()) << "nobody has asked";
  EXPECT_FALSE(plans.MayBegin());
  EXPECT_TRUE(plans.refuses());
  EXPECT_FALSE(plans.Answer(1));
  EXPECT_FALSE(plans.MayBegin());
  EXPECT_TRUE(plans.Answer(2));
  EXPECT_FALSE(plans.refuses());
  EXPECT_TRUE(plans.MayBegin());
  EXPECT_FALSE(plans.Answer(3)) << "nobody was refused since";
}

TEST(PlanOrdersTest, WhereNobodyAsksWhileTheyAreTooMany_NobodyWaits) {
  PlanOrders plans(2);
  plans.Add();
  plans.Add();
  EXPECT_FALSE(plans.Answer(1));
  EXPECT_TRUE(plans.MayBegin());
}

TEST(PlanOrdersTest, HalfOfThem_AreMany) {
  PlanOrders plans(4);
  plans.Add();
  EXPECT_FALSE(plans.AreMany());
  plans.Add();
  EXPECT_TRUE(plans.AreMany());
}

}  // namespace
}  // namespace phalanx::coordinator
