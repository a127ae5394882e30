#include "core/schedule/process_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "core/plan/memory_estimate.h"
#include "core/plan/preparation.h"
#include "tests/unit/core/schedule/plans.h"

namespace phalanx::schedule {
namespace {

using support::AJob;
using support::Layout;
using support::Llama;

// Each count is a digit.
constexpr CommunicatorsBytes kBytes = {
    .library = 1'000'000, .messages = {100'000, 10'000}, .control = {10, 1}, .wide = {1000, 100}};

AJob JobOf(const Layout& layout) {
  AJob job = AJob().Module("language", Llama(), layout).Batch(12, 1);
  job.spec().resources.device = job::DeviceKind::kGpu;
  return job;
}

plan::Plan OnOneNode(const job::JobSpec& spec) {
  auto plan = plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : plan::Plan();
}

DeviceProfile WithProcess(const std::optional<CommunicatorsBytes>& communicators) {
  DeviceProfile profile = NominalProfile();
  profile.process = ProcessBytes{.context = 500, .communicators = communicators};
  profile.unestimated_bytes = 77;
  return profile;
}

TEST(ProcessMemoryTest, Communicators_AreCountedByUseAndPeers) {
  const auto bytes = [](AJob job) { return BytesOfCommunicators(OnOneNode(job), Rank{0}, kBytes); };
  EXPECT_EQ(bytes(JobOf({})), 0);
  AJob without_mirrors = JobOf({.dp = 2});
  without_mirrors.spec().recovery.state_copies = 1;
  EXPECT_EQ(bytes(without_mirrors), 10 + 1000);
  EXPECT_EQ(bytes(JobOf({.dp = 2})), 10 + 1000) << "one collective brings either all sums";
  EXPECT_EQ(bytes(JobOf({.dp = 3})), 10 + 1000 + 2 * 100) << "mirrors are sent by messages";
  // A pipeline has messages both ways, and no group of its own.
  EXPECT_EQ(bytes(JobOf({.pp = 2})), 10 + 2 * (100'000 + 10'000));
}

TEST(ProcessMemoryTest, BesideEstimates_IsContextAndCommunicators_AndNoLessThanWasMeasured) {
  const plan::Plan plan = OnOneNode(JobOf({.tp = 2, .dp = 3, .pp = 2}));
  const auto beside = [&plan](const DeviceProfile& profile) {
    plan::PartSizes sizes;
    return BesideOfRanks(plan, BesideOf(profile), sizes);
  };
  std::vector<int64_t> expected;
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    expected.push_back(500 + kBytes.library + BytesOfCommunicators(plan, Rank{rank}, kBytes));
    EXPECT_GT(expected.back(), 500 + kBytes.library);
  }
  DeviceProfile profile = WithProcess(kBytes);
  EXPECT_EQ(beside(profile), expected);
  profile.unestimated_bytes = 10'000'000;
  EXPECT_EQ(beside(profile), std::vector<int64_t>(12, 10'000'000));
  EXPECT_EQ(beside(WithProcess(std::nullopt)), std::vector<int64_t>(12, 500));
  profile.process.reset();
  EXPECT_EQ(beside(profile), std::vector<int64_t>(12, 10'000'000));
}

TEST(ProcessMemoryTest, OfAProfileWithoutParts_HasTheirSum) {
  DeviceProfile profile = NominalProfile();
  profile.unestimated_bytes = 77;
  const ProcessMemory memory = MostMemory(OnOneNode(JobOf({.dp = 2})), profile);
  EXPECT_EQ(memory.unestimated, 77);
  EXPECT_FALSE(memory.context.has_value());
  EXPECT_FALSE(memory.communicators.has_value());
  EXPECT_EQ(memory.total(), memory.peak.total() + 77);
}

TEST(ProcessMemoryTest, OfAProfileWithParts_HasContextCommunicatorsAndStandby) {
  const plan::Plan plan = OnOneNode(JobOf({.dp = 3}));
  const ProcessMemory memory = MostMemory(plan, WithProcess(kBytes));
  EXPECT_EQ(memory.unestimated, 0);
  EXPECT_EQ(memory.context, 500);
  EXPECT_EQ(memory.communicators, kBytes.library + BytesOfCommunicators(plan, memory.rank, kBytes));
  // For the loss of either other rank: two that are connected for their state.
  EXPECT_EQ(memory.standby, 2 * (10 + 1 + 1000));
  EXPECT_EQ(memory.total(),
            memory.peak.total() + *memory.context + *memory.communicators + *memory.standby);
}

TEST(ProcessMemoryTest, OfCommunicatorsThatWereNotMeasured_SaysSo) {
  const ProcessMemory memory = MostMemory(OnOneNode(JobOf({.dp = 3})), WithProcess(std::nullopt));
  EXPECT_EQ(memory.context, 500);
  EXPECT_FALSE(memory.communicators.has_value());
  EXPECT_FALSE(memory.standby.has_value());
}

TEST(ProcessMemoryTest, WhatADeviceHasNoRoomFor_IsLeftOut) {
  const plan::Plan mirrored = OnOneNode(JobOf({.tp = 2, .dp = 2}));
  const DeviceProfile profile = WithProcess(kBytes);
  const ProcessMemory all = MostMemory(mirrored, profile);
  ASSERT_GT(*all.standby, 0);
  ASSERT_GT(all.peak.tried_beyond(), 0);
  const int64_t beside = *all.context + *all.communicators;
  const ProcessMemory steps = MostMemory(mirrored, profile, {}, beside + all.peak.step.total());
  EXPECT_EQ(steps.standby, 0);
  EXPECT_EQ(steps.peak.tried_beyond(), 0);
  EXPECT_EQ(steps.total(), *steps.context + *steps.communicators + steps.peak.step.total());
  const ProcessMemory large =
      MostMemory(mirrored, profile, {}, all.total() + 2 * plan::kPreparedRoom);
  EXPECT_EQ(large.total(), all.total());
  // Of the layouts that are tried those that fit are counted.
  const int64_t fits = all.peak.tried() - 1;
  const ProcessMemory smaller = MostMemory(mirrored, profile, {}, beside + fits);
  EXPECT_GT(smaller.peak.tried(), 0);
  EXPECT_LE(smaller.peak.tried(), fits);
  // Room for state that is taken over goes the same way.
  const plan::Plan to_host = OnOneNode(JobOf({.tp = 2}));
  const ProcessMemory taken = MostMemory(to_host, profile);
  ASSERT_GT(taken.peak.to_take_over, 0);
  EXPECT_EQ(MostMemory(to_host, profile, {}, plan::kPreparedRoom).peak.to_take_over, 0);
}

// What has most to take over where there is room may not be what takes most where there is none.
TEST(ProcessMemoryTest, OfALargerJob_IsOfTheRankThatTakesMostOfWhatHasRoom) {
  AJob job = AJob()
                 .Module("vision", support::LargeClipVision(), {.recompute = job::Recompute::kFull})
                 .Module("language", support::LargeLlama({.layers = 8}), {.dp = 2, .pp = 4})
                 .Edge("vision", "language", {.projector = 4096})
                 .Batch(12, 1);
  job.spec().resources.device = job::DeviceKind::kGpu;
  job.spec().recovery.state_home = job::StateHome::kHost;
  const plan::Plan to_host = OnOneNode(job);
  ASSERT_GT(to_host.world, plan::kPreparedDevicesMax);
  const std::vector<MemoryPeak> peaks = EstimatePeaks(to_host);
  const auto most = std::max_element(peaks.begin(), peaks.end(), [](const auto& a, const auto& b) {
    return a.step.total() < b.step.total();
  });
  const auto with_room =
      std::max_element(peaks.begin(), peaks.end(),
                       [](const auto& a, const auto& b) { return a.total() < b.total(); });
  ASSERT_LT(with_room->step.total(), most->step.total());
  const DeviceProfile profile = WithProcess(std::nullopt);
  EXPECT_EQ(MostMemory(to_host, profile).peak.total(), with_room->total());
  const ProcessMemory without = MostMemory(to_host, profile, {}, most->step.total() + 500);
  EXPECT_EQ(without.peak.total(), most->step.total());
}

// As a rank that looks for room before it makes them.
TEST(ProcessMemoryTest, StandbyForALayoutThatTakesMore_NeedsRoomForThatToo) {
  const plan::Plan plan = OnOneNode(JobOf({.dp = 3}));
  const DeviceProfile profile = WithProcess(kBytes);
  const ProcessMemory all = MostMemory(plan, profile);
  const auto narrow = plan::PlanBehindLoss(plan, Rank{1});
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  const int64_t more =
      plan::EstimateMemory(*narrow, Rank{0}).total() - plan::EstimateMemory(plan, Rank{0}).total();
  ASSERT_GT(more, 4 * *all.standby);
  const int64_t rest =
      *all.context + *all.communicators + std::max(all.peak.step.total(), all.peak.tried());
  const auto standby = [&](int64_t left) {
    return *MostMemory(plan, profile, {}, rest + plan::kPreparedRoom + left).standby;
  };
  EXPECT_EQ(standby(more / 2), 0);
  EXPECT_EQ(standby(2 * more), *all.standby);
}

}  // namespace
}  // namespace phalanx::schedule
