// The order of the queue, and what follows from it for those who wait.
#include "coordinator/machine/queue_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

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
