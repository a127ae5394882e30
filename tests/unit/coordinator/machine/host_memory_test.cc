// Memory of hosts that plans are charged for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/machine/harness.h"

namespace phalanx::coordinator {
namespace {

using job::JobPhase;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kOnHosts[] = "needs 60 bytes of each host";

TEST(HostMemoryTest, SecondJob_HasWhatTheFirstOneLeaves_AndAllOfItOnceThatIsGone) {
  Harness h;
  const SessionId node = h.Open("n", 3, 1, {}, 0, {}, 100);
  const JobId first = h.Run(node, AJob("a", 1, kOnHosts));
  EXPECT_EQ(h.Phase(first), JobPhase::kRunning);
  EXPECT_THAT(h.NodeNamed("n").charged, ElementsAre(std::pair{first, 60}));
  const JobId second = h.Submit(AJob("b", 1, kOnHosts));
  EXPECT_EQ(h.Phase(second), JobPhase::kFailed);
  EXPECT_EQ(h.State(second).failure->kind, job::FailureKind::kPlanInvalid);
  EXPECT_EQ(h.State(second).failure->message, "n needs 60 B and has 40 B");
  EXPECT_EQ(h.Phase(h.Submit(AJob("c", 1))), JobPhase::kStarting) << "it takes none";
  ASSERT_TRUE(h.Cancel(first).ok());
  EXPECT_THAT(h.NodeNamed("n").charged, ElementsAre(std::pair{first, 60}))
      << "its ranks are still there";
  h.Answer<StopRanks>(node);
  EXPECT_THAT(h.NodeNamed("n").charged, IsEmpty());
  EXPECT_EQ(h.Phase(h.Submit(AJob("d", 1, kOnHosts))), JobPhase::kStarting);
}

TEST(HostMemoryTest, NodeOfWhichNothingIsLeft_IsNotOfUnknownMemory) {
  Harness h;
  h.Run(h.Open("n", 2, 1, {}, 0, {}, 60), AJob("a", 1, kOnHosts));
  const JobId second = h.Submit(AJob("b", 1, kOnHosts));
  EXPECT_EQ(h.State(second).failure->message, "n needs 60 B and has 1 B");
}

TEST(HostMemoryTest, NodeOfUnknownMemory_TakesAnyJob) {
  Harness h;
  const SessionId node = h.Open("n", 2);
  h.Run(node, AJob("a", 1, kOnHosts));
  EXPECT_EQ(h.Phase(h.Submit(AJob("b", 1, kOnHosts))), JobPhase::kStarting);
}

TEST(HostMemoryTest, EachNodeOfThePlacement_IsChargedForItself) {
  Harness h;
  h.Open("large", 2, 1, {}, 0, {}, 100);
  h.Open("small", 1, 2, {}, 0, {}, 60);
  const JobId job = h.Submit(AJob("a", 3, kOnHosts));
  EXPECT_EQ(h.Phase(job), JobPhase::kStarting);
  EXPECT_THAT(h.NodeNamed("large").charged, ElementsAre(std::pair{job, 60}));
  EXPECT_THAT(h.NodeNamed("small").charged, ElementsAre(std::pair{job, 60}));
  ASSERT_TRUE(h.Cancel(job).ok());
  EXPECT_THAT(h.NodeNamed("large").charged, IsEmpty());
  EXPECT_THAT(h.NodeNamed("small").charged, IsEmpty());
}

TEST(HostMemoryTest, CoordinatorThatRestarts_KeepsTheCharge) {
  Harness h;
  const JobId first = h.Run(h.Open("n", 2, 1, {}, 0, {}, 100), AJob("a", 1, kOnHosts));
  h.Restart();
  EXPECT_THAT(h.NodeNamed("n").charged, ElementsAre(std::pair{first, 60}));
  h.Open("n", 2, 1, {{first, Epoch{1}}}, 0, {}, 100);
  const JobId second = h.Submit(AJob("b", 1, kOnHosts));
  EXPECT_EQ(h.State(second).failure->message, "n needs 60 B and has 40 B");
  EXPECT_EQ(h.Phase(first), JobPhase::kRunning);
}

// Both plans were ordered while nobody was charged.
TEST(HostMemoryTest, PlanThatAnotherOvertakes_IsMadeAnewWithWhatIsLeft) {
  Harness h;
  h.Open("n", 2, 1, {}, 0, {}, 100);
  h.plans_held = true;
  const JobId first = h.Submit(AJob("a", 1, kOnHosts)), second = h.Submit(AJob("b", 1, kOnHosts));
  ASSERT_EQ(h.plans.size(), 2u);
  h.AnswerPlans(2);
  EXPECT_EQ(h.Phase(first), JobPhase::kStarting);
  EXPECT_EQ(h.Phase(second), JobPhase::kQueued);
  ASSERT_EQ(h.plans.size(), 1u);
  EXPECT_THAT(h.plans.front().limits.nodes, ElementsAre(40));
  h.AnswerPlans();
  EXPECT_EQ(h.Phase(second), JobPhase::kFailed);
}

// The next epoch of a job has what it was charged for itself.
TEST(HostMemoryTest, NextEpoch_IsNotInTheWayOfItself) {
  Harness h;
  h.Open("n", 1, 1, {}, 0, {}, 100);
  const JobId job = h.Submit(AJob("a", 1, kOnHosts));
  h.Prepare(h.NodeNamed("n").session);
  h.Restart();
  h.plans_held = true;
  // Its assignment was lost with the coordinator before this one.
  h.Open("n", 1, 1, {}, 0, {}, 100);
  h.Advance(Harness::Options().report_grace);
  ASSERT_EQ(h.plans.size(), 1u);
  EXPECT_THAT(h.plans.front().limits.nodes, ElementsAre(100));
  h.AnswerPlans();
  EXPECT_EQ(h.State(job).epoch, Epoch{2});
  EXPECT_THAT(h.NodeNamed("n").charged, ElementsAre(std::pair{job, 60}));
}

}  // namespace
}  // namespace phalanx::coordinator
