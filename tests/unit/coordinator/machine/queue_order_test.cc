// The order of the queue, and what follows from it for those who wait.
#include "coordinator/machine/queue_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "core/base/prng.h"

namespace phalanx::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const Instant kNow = absl::FromUnixSeconds(1'700'000'000);
const Instant kNobodyKnows = absl::InfiniteFuture();

Instant In(int64_t minutes) { return kNow + absl::Minutes(minutes); }

TEST(QueuePlace, LargerPriority_IsFirst_ThenTheOlderJob) {
  const std::set<QueuePlace> queue = {
      {0, JobId{1}}, {5, JobId{3}}, {-1, JobId{4}}, {5, JobId{2}}, {0, JobId{5}}};
  std::vector<int64_t> jobs;
  for (const QueuePlace& place : queue) jobs.push_back(place.job.value);
  EXPECT_THAT(jobs, ElementsAre(2, 3, 1, 5, 4));
}

TEST(EnoughFreeAt, FreeDevices_AreEnoughNow) {
  EXPECT_EQ(EnoughFreeAt(kNow, 4, {{8, kNobodyKnows}}, 4), kNow);
}

TEST(EnoughFreeAt, HeldDevices_CountFromWhenTheyAreFree) {
  const std::vector<HeldDevices> held = {{2, In(30)}, {2, In(10)}, {4, kNobodyKnows}};
  EXPECT_EQ(EnoughFreeAt(kNow, 1, held, 3), In(10));
  EXPECT_EQ(EnoughFreeAt(kNow, 1, held, 4), In(30));
  EXPECT_EQ(EnoughFreeAt(kNow, 1, held, 5), In(30));
  EXPECT_EQ(EnoughFreeAt(kNow, 1, held, 6), kNobodyKnows);
  EXPECT_EQ(EnoughFreeAt(kNow, 1, held, 10), kNobodyKnows) << "there are not so many";
}

TEST(EnoughFreeAt, WhatIsOverdue_IsExpectedNow) {
  EXPECT_EQ(EnoughFreeAt(kNow, 0, {{2, In(-5)}}, 2), kNow);
}

TEST(LastStartAt, EachWaitsForThoseBeforeIt) {
  const std::vector<HeldDevices> held = {{4, In(10)}};
  const Demand large{4, absl::Minutes(20)}, small{2, absl::Minutes(5)}, open{2};
  EXPECT_EQ(LastStartAt(kNow, 0, held, {large}), In(10));
  EXPECT_EQ(LastStartAt(kNow, 0, held, {large, small}), In(30));
  EXPECT_EQ(LastStartAt(kNow, 0, held, {large, small, small}), In(30));
  EXPECT_EQ(LastStartAt(kNow, 0, held, {large, small, small, large}), In(35));
  EXPECT_EQ(LastStartAt(kNow, 0, held, {open, open}), In(10));
  EXPECT_EQ(LastStartAt(kNow, 0, held, {open, open, small}), kNobodyKnows);
}

TEST(LastStartAt, NobodyOvertakes) {
  // Two are free at once, and the second needs no more.
  EXPECT_EQ(LastStartAt(kNow, 2, {{2, In(10)}}, {{4, absl::Minutes(1)}, {2, absl::Minutes(1)}}),
            In(11));
}

// The same device by device: each job takes those that are free first.
Instant PlainLastStart(int64_t free, const std::vector<HeldDevices>& held,
                       const std::vector<Demand>& queue) {
  std::vector<Instant> free_at(static_cast<size_t>(free), kNow);
  for (const HeldDevices& devices : held)
    free_at.insert(free_at.end(), static_cast<size_t>(devices.count), devices.until);
  Instant start = kNow;
  for (const Demand& demand : queue) {
    const auto count = static_cast<size_t>(demand.devices);
    if (count > free_at.size()) return kNobodyKnows;
    std::sort(free_at.begin(), free_at.end());
    start = std::max(start, free_at[count - 1]);
    std::fill_n(free_at.begin(), count, start + demand.run);
  }
  return start;
}

TEST(LastStartAt, RandomQueues_AreReplayedAsDeviceByDevice) {
  int64_t at_once = 0, later = 0, unknown = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Prng prng(seed);
    const auto below = [&prng](int64_t bound) {
      return static_cast<int64_t>(prng.Below(static_cast<uint64_t>(bound)));
    };
    const int64_t free = below(4);
    int64_t devices = free;
    std::vector<HeldDevices> held;  // some are overdue, and of some nobody knows
    for (int64_t holders = below(6); holders > 0; --holders) {
      held.push_back({1 + below(4), below(6) == 0 ? kNobodyKnows : In(below(40) - 5)});
      devices += held.back().count;
    }
    const int64_t usual = std::clamp<int64_t>(devices, 1, 6);
    std::map<QueuePlace, Demand> waiting;  // seldom more than there is
    for (int64_t job = 1 + below(12); job > 0; --job) {
      const auto priority = static_cast<int32_t>(below(3));
      Demand& demand = waiting[{priority, JobId{job}}];
      demand.devices = 1 + below(below(10) == 0 ? devices + 1 : usual);
      if (below(12) != 0) demand.run = absl::Minutes(below(30));
    }
    std::vector<Demand> queue;
    for (const auto& [place, demand] : waiting) {
      queue.push_back(demand);
      const Instant start = PlainLastStart(free, held, queue);
      ASSERT_EQ(LastStartAt(kNow, free, held, queue), start)
          << "seed " << seed << ", " << queue.size() << " jobs";
      ++(start == kNow ? at_once : start < kNobodyKnows ? later : unknown);
    }
  }
  EXPECT_GT(at_once, 1000);
  EXPECT_GT(later, 1000);
  EXPECT_GT(unknown, 1000);
}

TEST(WhoLeaves, LastOfTheOrder_GoesFirst) {
  const Preemptible low{{-1, JobId{1}}, 2}, older{{0, JobId{2}}, 2}, newer{{0, JobId{3}}, 2};
  EXPECT_THAT(WhoLeaves(1, {older, low, newer}), ElementsAre(JobId{1}));
  EXPECT_THAT(WhoLeaves(3, {older, low, newer}), ElementsAre(JobId{1}, JobId{3}));
  EXPECT_THAT(WhoLeaves(6, {older, low, newer}), ElementsAre(JobId{1}, JobId{2}, JobId{3}));
}

TEST(WhoLeaves, TooFew_NobodyLeavesInVain) {
  EXPECT_THAT(WhoLeaves(3, {{{0, JobId{1}}, 2}}), IsEmpty());
  EXPECT_THAT(WhoLeaves(1, {}), IsEmpty());
}

TEST(WhoLeaves, WhoIsNotNeeded_Stays) {
  EXPECT_THAT(WhoLeaves(4, {{{0, JobId{1}}, 1}, {{1, JobId{2}}, 4}}), ElementsAre(JobId{2}))
      << "one device more would be freed for nothing";
}

}  // namespace
}  // namespace phalanx::coordinator
