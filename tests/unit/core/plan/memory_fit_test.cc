#include "core/plan/memory_fit.h"

#include <string>
#include <vector>

#include "core/base/violation.h"
#include "core/plan/loss.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/specs.h"

namespace phalanx::plan {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;

TEST(MemoryFitTest, RankBeyondItsDevice_IsNamedWithItsLargestTerm) {
  const std::vector<MemoryEstimate> needs = {{.parameters = kGib},
                                             {.parameters = 10 * kGib,
                                              .gradients = 20 * kGib,
                                              .optimizer = 61 * kGib,
                                              .activations = 5 * kGib}};
  EXPECT_EQ(
      MemoryShortage(needs, {80 * kGib, 80 * kGib}),
      "rank 1 needs 96.0 GiB (optimizer 61.0 GiB is the largest term), device has 80.0 GiB for it");
}

TEST(MemoryFitTest, OfSeveral_TheOneThatLacksMostIsNamed) {
  const std::vector<MemoryEstimate> needs(3, {.activations = 2048});
  EXPECT_EQ(MemoryShortage(needs, {2047, 1024, 1500}),
            "rank 1 needs 2.0 KiB (activations 2.0 KiB is the largest term), device has 1.0 KiB "
            "for it; 2 "
            "other ranks do not fit either");
  EXPECT_EQ(
      MemoryShortage(needs, {2047, 4096, 1000}),
      "rank 2 needs 2.0 KiB (activations 2.0 KiB is the largest term), device has 1000 B for it; "
      "another rank does not fit either");
}

TEST(MemoryFitTest, WhatFitsToTheByte_AndWhatIsUnknown_Passes) {
  const std::vector<MemoryEstimate> needs(2, {.gradients = 2048});
  EXPECT_EQ(MemoryShortage(needs, {2048, 2048}), std::nullopt);
  EXPECT_EQ(MemoryShortage(needs, {0, 2048}), std::nullopt);
  EXPECT_EQ(MemoryShortage(needs, {}), std::nullopt);
  EXPECT_EQ(MemoryShortage({}, {2048}), std::nullopt);
}

TEST(MemoryFitTest, Plan_IsCheckedAgainstEachRanksOwnDevice) {
  const Plan plan =
      *MakePlan(support::AJob().Module("language", support::Llama(), {.tp = 2}).Batch(4, 2),
                MakeCluster(1, 2), Epoch{1});
  const int64_t need = EstimateMemory(plan, Rank{1}).total();
  EXPECT_TRUE(CheckMemory(plan, {}).ok());
  EXPECT_TRUE(CheckMemory(plan, {.devices = {0, 0}}).ok());
  EXPECT_TRUE(CheckMemory(plan, {.devices = {0, need}}).ok());
  const std::vector<Violation> violations =
      ViolationsOf(CheckMemory(plan, {.devices = {0, need - 1}}));
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_EQ(violations[0].field, "spec.modules");
  EXPECT_THAT(violations[0].rule, ::testing::StartsWith("rank 1 needs "));
}

// Two nodes of two devices; what one rank takes of its host.
Plan OnTwoNodes(job::StateHome home) {
  support::AJob job = support::AJob().Module("language", support::Llama(), {.tp = 4}).Batch(4, 2);
  job.spec().recovery.state_home = home;
  return *MakePlan(job, MakeCluster(2, 2), Epoch{1});
}
std::vector<MemoryEstimate> Each(const HostEstimate& host) {
  return std::vector<MemoryEstimate>(4, {.host = host});
}
std::vector<std::string> Lines(const absl::Status& status) {
  std::vector<std::string> lines;
  for (const Violation& violation : ViolationsOf(status)) lines.push_back(ToString(violation));
  return lines;
}

TEST(HostMemoryTest, RanksOfANode_AreSummed) {
  const Plan plan = OnTwoNodes(job::StateHome::kHost);
  std::vector<MemoryEstimate> needs = Each({.copies = 10, .snapshot = 1});
  needs[3].host.copies = 5;
  const std::vector<HostEstimate> nodes = HostMemoryOf(plan, needs);
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[0].copies, 20);
  EXPECT_EQ(nodes[1].copies, 15);
  EXPECT_EQ(nodes[1].snapshot, 2);
}

TEST(HostMemoryTest, WhatFitsToTheByte_AndWhatIsUnknown_Passes) {
  const Plan plan = OnTwoNodes(job::StateHome::kHost);
  const std::vector<MemoryEstimate> needs = Each({.copies = kGib, .snapshot = kGib});
  EXPECT_TRUE(CheckHostMemory(plan, needs, {4 * kGib, 4 * kGib}).ok());
  EXPECT_TRUE(CheckHostMemory(plan, needs, {0, 4 * kGib}).ok());
  EXPECT_TRUE(CheckHostMemory(plan, needs, {}).ok());
  EXPECT_TRUE(CheckHostMemory(plan, {}, {1, 1}).ok());
}

TEST(HostMemoryTest, SecondHomesThatTheJobAsksFor_AreRefusedByNode) {
  const std::vector<MemoryEstimate> needs = Each({.copies = kGib});
  EXPECT_THAT(Lines(CheckHostMemory(OnTwoNodes(job::StateHome::kHost), needs, {2 * kGib, kGib})),
              ::testing::ElementsAre(
                  "spec.recovery.state_home: host: node-1 needs 2.0 GiB of host memory for second "
                  "homes of optimizer state and has 1.0 GiB"));
  EXPECT_TRUE(CheckHostMemory(OnTwoNodes(job::StateHome::kAuto), needs, {2 * kGib, kGib}).ok())
      << "it can do without them";
}

TEST(HostMemoryTest, Checkpoints_AreRefusedWhateverTheHomes) {
  const std::vector<MemoryEstimate> needs = Each({.snapshot = kGib});
  for (const auto home : {job::StateHome::kHost, job::StateHome::kAuto}) {
    EXPECT_THAT(
        Lines(CheckHostMemory(OnTwoNodes(home), needs, {1, kGib})),
        ::testing::ElementsAre(
            "spec.checkpoint: node-0 needs 2.0 GiB of host memory for the copy that "
            "checkpoints are written from and has 1 B; another node has not enough either"));
  }
}

TEST(HostMemoryTest, SecondHomesBesideCheckpoints_SayWhatThoseTake) {
  const std::vector<MemoryEstimate> needs = Each({.copies = 2 * kGib, .snapshot = kGib});
  EXPECT_THAT(
      Lines(CheckHostMemory(OnTwoNodes(job::StateHome::kHost), needs, {6 * kGib, 5 * kGib})),
      ::testing::ElementsAre(
          "spec.recovery.state_home: host: node-1 needs 4.0 GiB of host memory for second homes of "
          "optimizer state, beside 2.0 GiB for checkpoints, and has 5.0 GiB"));
}

TEST(HostMemoryTest, WhatIsLeftOfAPlan_IsRefusedWithWhatIsLost) {
  const Plan left = *PlanWithout(OnTwoNodes(job::StateHome::kHost), {Rank{1}});
  EXPECT_THAT(Lines(CheckMemory(left, {.nodes = {1, 0}})),
              ::testing::ElementsAre(::testing::StartsWith(
                  "spec.recovery.state_home: host: without rank 1, node-0 needs ")));
}

}  // namespace
}  // namespace phalanx::plan
