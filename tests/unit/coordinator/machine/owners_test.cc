// What owners have used, what their quotas keep, and whose turn it is.
#include "coordinator/machine/owners.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace phalanx::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Instant kToday = absl::FromUnixSeconds(1'700'000'000);
constexpr absl::Duration kDay = absl::Hours(24);

JobRequest RequestOf(const std::string& owner, int32_t devices) {
  return {.devices = devices, .owner = owner};
}

absl::Status CheckOf(const Owners& owners, const JobRequest& request) {
  return owners.CheckSubmit(request, /*any_priority=*/false);
}

TEST(DeviceTime, OfAHalfLifeAgo_CountsHalf) {
  DeviceTime time;
  time.Restore(kToday, 1000);
  EXPECT_DOUBLE_EQ(time.At(kToday, kDay), 1000);
  EXPECT_DOUBLE_EQ(time.At(kToday + kDay, kDay), 500);
  EXPECT_DOUBLE_EQ(time.At(kToday + 3 * kDay, kDay), 125);
}

TEST(DeviceTime, OfAShortTime_IsDevicesTimesSeconds) {
  DeviceTime time;
  time.Have(kToday, 4, kDay);
  EXPECT_NEAR(time.At(kToday + absl::Seconds(10), kDay), 40, 0.01);
  time.Have(kToday + absl::Seconds(10), 1, kDay);
  EXPECT_NEAR(time.At(kToday + absl::Seconds(20), kDay), 50, 0.01);
}

TEST(DeviceTime, LookedAtOftenOrOnce_IsTheSame) {
  DeviceTime once, often;
  once.Have(kToday, 3, kDay);
  for (int hour = 0; hour < 50; ++hour) often.Have(kToday + absl::Hours(hour), 3, kDay);
  EXPECT_NEAR(once.At(kToday + absl::Hours(50), kDay), often.At(kToday + absl::Hours(50), kDay),
              1e-3);
}

TEST(DeviceTime, AddedLater_IsAsIfItHadBeenCountedThen) {
  DeviceTime counted, added;
  counted.Have(kToday, 2, kDay);
  added.Add(kToday, kToday + kDay, 2, kDay);
  EXPECT_NEAR(counted.At(kToday + kDay, kDay), added.At(kToday + kDay, kDay), 1e-6);
}

TEST(Owners, JobThatNeverFits_IsRefused) {
  const Owners owners({.owners = {{"alice", {.devices_max = 4}}, {"bob", {.jobs_max = 0}}}}, kDay);
  EXPECT_TRUE(CheckOf(owners, RequestOf("alice", 4)).ok());
  EXPECT_TRUE(CheckOf(owners, RequestOf("carol", 5)).ok());
  const absl::Status large = CheckOf(owners, RequestOf("alice", 5)),
                     none = CheckOf(owners, RequestOf("bob", 1));
  EXPECT_EQ(large.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(
      large.message(),
      "it needs 5 devices, and the quota of alice is 4 (devices_max): make it smaller, or ask "
      "whoever keeps the quotas");
  EXPECT_THAT(none.message(), HasSubstr("the quota of bob lets no job run (jobs_max: 0)"));
}

TEST(Owners, PriorityAboveTheOwners_IsRefused_UnlessItMayBeAny) {
  const Owners owners({.others = {.priority_max = 10}, .owners = {{"alice", {}}}}, kDay);
  const auto of = [](const std::string& owner, int32_t priority) {
    return JobRequest{.priority = priority, .devices = 1, .owner = owner};
  };
  EXPECT_TRUE(CheckOf(owners, of("bob", 10)).ok());
  EXPECT_TRUE(CheckOf(owners, of("alice", 1000)).ok());
  const absl::Status refused = CheckOf(owners, of("bob", 11));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(),
            "spec.priority: 11: must be at most 10, the priority_max of bob's quota; lower it, or "
            "ask an operator");
  EXPECT_TRUE(owners.CheckSubmit(of("bob", 11), /*any_priority=*/true).ok());
}

TEST(Owners, TooManyThatWait_AreRefused) {
  Owners owners({.others = {.queued_max = 2}}, kDay);
  owners.Queued("alice", 2);
  const absl::Status full = CheckOf(owners, RequestOf("alice", 1));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(full.message(), HasSubstr("2 jobs of alice wait, and its quota is 2 (queued_max)"));
  EXPECT_TRUE(CheckOf(owners, RequestOf("bob", 1)).ok());
  owners.Queued("alice", -1);
  EXPECT_TRUE(CheckOf(owners, RequestOf("alice", 1)).ok());
}

TEST(Owners, WithoutAQuota_OnePersonHasSoManyThatWait_AndNobodyAnyNumber) {
  Owners owners({}, kDay);
  for (const char* owner : {"alice", ""}) owners.Queued(owner, kQueuedMax - 1);
  EXPECT_TRUE(CheckOf(owners, RequestOf("alice", 1)).ok());
  for (const char* owner : {"alice", ""}) owners.Queued(owner, 1);
  EXPECT_EQ(CheckOf(owners, RequestOf("alice", 1)).message(),
            "1000 jobs of alice wait, and its quota is 1000 (queued_max): submit again when one of "
            "them has started, or cancel one");
  EXPECT_TRUE(CheckOf(owners, RequestOf("", 1)).ok());
}

TEST(Owners, JobOverTheQuota_WaitsAndHoldsItsOwnersOthersUp) {
  Owners owners({.others = {.devices_max = 4, .jobs_max = 3}}, kDay);
  owners.Charge("alice", 3, true, kToday);
  owners.BeginLook();
  EXPECT_EQ(
      owners.WhyWaits(JobId{2}, RequestOf("alice", 2)),
      "the quota of alice is used up: its jobs have 3 of 4 devices (devices_max), and this one "
      "needs 2");
  EXPECT_EQ(owners.WhyWaits(JobId{3}, RequestOf("alice", 1)),
            "job-2 of alice is before it and waits for their quota");
  EXPECT_THAT(owners.WhyWaits(JobId{4}, RequestOf("bob", 4)), IsEmpty());
  owners.Charge("alice", 3, false, kToday);
  owners.BeginLook();
  EXPECT_THAT(owners.WhyWaits(JobId{2}, RequestOf("alice", 2)), IsEmpty());
}

TEST(Owners, JobThatNeverFits_HoldsNobodyUp) {
  Owners owners({.others = {.devices_max = 4}}, kDay);
  EXPECT_THAT(owners.WhyWaits(JobId{1}, RequestOf("alice", 5)), HasSubstr("it needs 5 devices"));
  EXPECT_THAT(owners.WhyWaits(JobId{2}, RequestOf("alice", 1)), IsEmpty());
}

TEST(Owners, WhatAJobWithAReservationNeedsOfTheQuota_IsKeptForIt) {
  Owners owners({.others = {.devices_max = 4}}, kDay);
  ASSERT_THAT(owners.WhyWaits(JobId{1}, RequestOf("alice", 3)), IsEmpty());
  owners.Reserve(JobId{1}, RequestOf("alice", 3));
  EXPECT_EQ(owners.WhyWaits(JobId{2}, RequestOf("alice", 2)),
            "job-1 of alice is before it, waits for devices and needs what is left of their quota");
  EXPECT_THAT(owners.WhyWaits(JobId{3}, RequestOf("alice", 1)), IsEmpty());
}

TEST(Owners, ShareIsWhatWasUsed_ByWeight) {
  Owners owners({.owners = {{"alice", {.weight = 2}}}}, kDay);
  for (const char* owner : {"alice", "bob"}) owners.Charge(owner, 2, true, kToday);
  const Instant later = kToday + absl::Hours(1);
  EXPECT_NEAR(owners.ShareOf("bob", later), 2 * owners.ShareOf("alice", later), 1e-6);
  EXPECT_EQ(owners.ShareOf("carol", later), 0);
}

TEST(Owners, RestoredTime_IsNotCountedTwice) {
  Owners before({}, kDay);
  before.Charge("alice", 1, true, kToday);
  before.Charge("alice", 2, true, kToday);
  // The first ends after an hour; the other one goes on.
  const Instant hour = kToday + absl::Hours(1), end = kToday + absl::Hours(3);
  const std::optional<DeviceTimeUsed> stored = before.Charge("alice", 1, false, hour);
  ASSERT_TRUE(stored.has_value());
  Owners after({}, kDay);
  after.Restore(*stored, hour);
  after.Charge("alice", 2, true, end);
  after.HadBefore("alice", 2, kToday, end);
  EXPECT_NEAR(after.ShareOf("alice", end), before.ShareOf("alice", end), 1e-3);
}

TEST(TakeTurns, OwnerWithTheSmallestShare_GoesFirst_AndItsShareIsAskedForAnew) {
  std::map<std::string, double> shares = {{"alice", 1}, {"bob", 0}, {"carol", 2.5}};
  std::vector<int64_t> order;
  const std::vector<OwnedJob> jobs = {{JobId{1}, "alice"}, {JobId{2}, "alice"}, {JobId{3}, "bob"},
                                      {JobId{4}, "bob"},   {JobId{5}, "carol"}, {JobId{6}, "bob"}};
  TakeTurns(
      jobs, [&](const std::string& owner) { return shares.at(owner); },
      [&](size_t place) {
        order.push_back(jobs[place].job.value);
        shares.at(std::string(jobs[place].owner)) += 1;  // it starts
        return true;
      });
  // Of equal shares the older job.
  EXPECT_THAT(order, ElementsAre(3, 1, 4, 2, 6, 5));
}

}  // namespace
}  // namespace phalanx::coordinator
