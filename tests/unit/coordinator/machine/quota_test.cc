// Quotas and shares of owners in the machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "tests/unit/coordinator/machine/harness.h"

namespace phalanx::coordinator {
namespace {

using job::JobPhase;
using ::testing::Contains;
using ::testing::HasSubstr;

JobRequestPtr AskingAs(const std::string& owner, const std::string& name, int32_t devices,
                       int32_t priority = 0, absl::Duration limit = absl::InfiniteDuration()) {
  JobRequest request = *AJob(name, devices);
  request.owner = owner;
  request.priority = priority;
  request.time_limit = limit;
  return std::make_shared<const JobRequest>(std::move(request));
}

CoordinatorOptions With(Quotas quotas) {
  CoordinatorOptions options = PatientOptions();
  options.quotas = std::move(quotas);
  return options;
}

class QuotaTest : public testing::Test {
 protected:
  explicit QuotaTest(Quotas quotas = {.owners = {{"alice", {.devices_max = 4, .jobs_max = 2}}}})
      : h_(With(std::move(quotas))), node_(h_.Open("n", 8)) {}

  JobId Submit(const std::string& owner, const std::string& name, int32_t devices,
               int32_t priority = 0) {
    return h_.Submit(AskingAs(owner, name, devices, priority));
  }
  JobId Run(const std::string& owner, const std::string& name, int32_t devices) {
    return h_.Run(node_, AskingAs(owner, name, devices));
  }
  void End(JobId job) {
    ASSERT_TRUE(h_.Cancel(job).ok());
    h_.Answer<StopRanks>(node_);
  }
  bool Waits(JobId job) const { return h_.Phase(job) == JobPhase::kQueued; }

  Harness h_;
  SessionId node_;
};

TEST_F(QuotaTest, JobOverTheQuota_WaitsThoughDevicesAreFree_AndSaysWhy) {
  const JobId runs = Run("alice", "a", 3);
  const JobId waits = Submit("alice", "b", 2);
  EXPECT_TRUE(Waits(waits));
  EXPECT_THAT(h_.Explain(waits),
              Contains(HasSubstr("the quota of alice is used up: its jobs have 3 "
                                 "of 4 devices (devices_max), and this one needs 2")));
  EXPECT_THAT(h_.views[waits]->reason, HasSubstr("waits: the quota of alice is used up"));
  EXPECT_FALSE(Waits(Submit("bob", "c", 4))) << "whose quota is not used up";
  End(runs);
  EXPECT_FALSE(Waits(waits));
}

TEST_F(QuotaTest, JobsThatHaveDevices_AreCounted) {
  const JobId first = Run("alice", "a", 1);
  Run("alice", "b", 1);
  const JobId third = Submit("alice", "c", 1);
  EXPECT_TRUE(Waits(third));
  EXPECT_THAT(h_.Explain(third), Contains(HasSubstr("2 of 2 jobs have devices (jobs_max)")));
  End(first);
  EXPECT_FALSE(Waits(third));
}

TEST_F(QuotaTest, JobThatTheQuotaKeeps_HoldsOthersOfItsOwnerUp_AndNobodyElse) {
  Run("alice", "a", 3);
  const JobId large = Submit("alice", "b", 4);
  EXPECT_TRUE(Waits(Submit("alice", "c", 1))) << "it would use what b waits for";
  EXPECT_FALSE(Waits(Submit("bob", "d", 4))) << "b waits for its quota, not for devices";
  ASSERT_TRUE(h_.Cancel(large).ok());
  EXPECT_FALSE(Waits(JobId{3}));
}

TEST_F(QuotaTest, JobThatGoesAhead_LeavesOfTheQuotaWhatTheOneBeforeItNeeds) {
  const JobId runs = h_.Run(node_, AskingAs("bob", "a", 6, 0, absl::Hours(2)));
  const JobId first = Submit("alice", "b", 3);
  ASSERT_TRUE(Waits(first)) << "for devices";
  const auto short_one = [this](const std::string& name, int32_t devices) {
    return h_.Submit(AskingAs("alice", name, devices, 0, absl::Minutes(10)));
  };
  const JobId large = short_one("c", 2);
  EXPECT_TRUE(Waits(large)) << "b could not start when devices are free";
  EXPECT_THAT(h_.Explain(large), Contains(HasSubstr("job-2 of alice is before it, waits for "
                                                    "devices and needs what is left")));
  EXPECT_FALSE(Waits(short_one("d", 1)));
  EXPECT_TRUE(Waits(short_one("e", 1))) << "a third job (jobs_max)";
  End(runs);
  EXPECT_FALSE(Waits(first));
}

TEST_F(QuotaTest, JobThatNeverFits_IsRefused) {
  EXPECT_EQ(Submit("alice", "a", 5), JobId{});
  EXPECT_FALSE(Waits(Submit("bob", "a", 5)));
}

TEST_F(QuotaTest, QuotaThatGrows_LetsJobsStart_AndOneThatShrinksKeepsThemWaiting) {
  Run("alice", "a", 3);
  const JobId waits = Submit("alice", "b", 2);
  h_.Feed(QuotasChanged{{.owners = {{"alice", {.devices_max = 5}}}}});
  EXPECT_FALSE(Waits(waits));
  h_.Feed(QuotasChanged{{.others = {.devices_max = 1}}});
  EXPECT_EQ(h_.Phase(JobId{1}), JobPhase::kRunning);
  EXPECT_EQ(Submit("alice", "c", 2), JobId{});
  EXPECT_TRUE(Waits(Submit("alice", "d", 1)));
}

TEST_F(QuotaTest, QuotaThatShrinksBelowAJobThatWaits_SaysSoAndHoldsNobodyUp) {
  Run("alice", "a", 4);
  const JobId waits = Submit("alice", "b", 4);
  h_.Feed(QuotasChanged{{.owners = {{"alice", {.devices_max = 3}}}}});
  EXPECT_THAT(h_.views[waits]->reason,
              HasSubstr("it needs 4 devices, and the quota of alice is 3"));
}

TEST_F(QuotaTest, WhatRunsAfterARestart_IsCounted) {
  const JobId runs = Run("alice", "a", 3);
  const JobId waits = Submit("alice", "b", 2);
  h_.Restart();
  node_ = h_.Open("n", 8, 1, {{runs, Epoch{1}}}, 2);
  EXPECT_TRUE(Waits(waits));
  End(runs);
  EXPECT_FALSE(Waits(waits));
}

TEST_F(QuotaTest, TooManyThatWait_AreRefused) {
  h_.Feed(QuotasChanged{{.others = {.jobs_max = 1, .queued_max = 1}}});
  Run("carol", "a", 1);
  EXPECT_TRUE(Waits(Submit("carol", "b", 1)));
  EXPECT_EQ(Submit("carol", "c", 1), JobId{});
}

TEST_F(QuotaTest, SuspendedJobs_AreAmongThoseThatWait) {
  const Quotas quotas{.others = {.queued_max = 1}};
  h_.Feed(QuotasChanged{quotas});
  Run("bob", "a", 8);
  const JobId suspended = Submit("carol", "b", 1);
  h_.Feed(SuspensionRequested{Token{100}, suspended, true});
  EXPECT_EQ(Submit("carol", "c", 1), JobId{});
  h_.Restart();
  h_.Feed(QuotasChanged{quotas});
  EXPECT_EQ(Submit("carol", "d", 1), JobId{});
  ASSERT_TRUE(h_.Cancel(suspended).ok());
  EXPECT_TRUE(Waits(Submit("carol", "e", 1)));
}

// One owner's leave room for those of others.
TEST(DocumentsTest, OfOneOwner_AreBoundedInBytes_AlsoBehindARestart) {
  CoordinatorOptions options = PatientOptions();
  options.owner_request_bytes_max = 30'000;
  Harness h(options);
  const auto submit = [&h](const std::string& owner, const std::string& name) {
    JobRequest request = *AJob(name, 1, std::string(20'000, 'x'));
    request.owner = owner;
    return h.Submit(std::make_shared<const JobRequest>(std::move(request)));
  };
  const JobId first = submit("alice", "a");
  EXPECT_NE(first, JobId{});
  EXPECT_EQ(submit("alice", "b"), JobId{});
  const absl::Status refused = h.answers.rbegin()->second.status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the documents of alice's jobs"));
  EXPECT_NE(submit("bob", "c"), JobId{});
  for (const char* name : {"d", "e"}) EXPECT_NE(submit("", name), JobId{}) << "of nobody";
  h.Restart();
  EXPECT_EQ(submit("alice", "b"), JobId{});
  ASSERT_TRUE(h.Cancel(first).ok());
  EXPECT_NE(submit("alice", "b"), JobId{});
}

class ShareTest : public QuotaTest {
 protected:
  ShareTest() : QuotaTest({}) {}
};

TEST_F(ShareTest, OwnerWhoHasUsedLess_GoesFirst) {
  const JobId used = Run("alice", "a", 8);
  h_.Advance(absl::Hours(1));
  const JobId hers = Submit("alice", "b", 8), his = Submit("bob", "c", 8);
  EXPECT_THAT(h_.Explain(hers),
              Contains("job-3 (c) is of an owner with a smaller share and waits for 8"));
  End(used);
  EXPECT_FALSE(Waits(his));
  EXPECT_TRUE(Waits(hers));
}

TEST_F(ShareTest, Priority_GoesBeforeShares) {
  const JobId used = Run("alice", "a", 8);
  h_.Advance(absl::Hours(1));
  const JobId hers = Submit("alice", "b", 8, 1);
  Submit("bob", "c", 8);
  End(used);
  EXPECT_FALSE(Waits(hers));
}

TEST_F(ShareTest, OwnersWithEqualShares_TakeTurns) {
  const JobId used = Run("carol", "a", 8);
  std::vector<JobId> hers, his;
  for (const char* name : {"b", "c", "d", "e"}) hers.push_back(Submit("alice", name, 2));
  for (const char* name : {"f", "g", "h", "i"}) his.push_back(Submit("bob", name, 2));
  End(used);
  const auto started = [this](const std::vector<JobId>& jobs) {
    return std::count_if(jobs.begin(), jobs.end(), [this](JobId job) { return !Waits(job); });
  };
  EXPECT_EQ(started(hers), 2);
  EXPECT_EQ(started(his), 2);
}

TEST_F(ShareTest, WhatWasUsed_IsRememberedOverARestart) {
  const JobId used = Run("alice", "a", 8);
  h_.Advance(absl::Hours(1));
  End(used);
  const JobId runs = Run("carol", "b", 8);
  const JobId hers = Submit("alice", "c", 8), his = Submit("bob", "d", 8);
  h_.Restart();
  node_ = h_.Open("n", 8, 1, {{runs, Epoch{1}}}, 5);
  End(runs);
  EXPECT_FALSE(Waits(his));
  EXPECT_TRUE(Waits(hers));
}

TEST(ShareOffTest, WithoutAHalfLife_TheOlderJobGoesFirst) {
  CoordinatorOptions options = PatientOptions();
  options.share_half_life = absl::ZeroDuration();
  Harness h(options);
  const SessionId node = h.Open("n", 8);
  const JobId used = h.Run(node, AskingAs("alice", "a", 8));
  h.Advance(absl::Hours(1));
  const JobId hers = h.Submit(AskingAs("alice", "b", 8));
  h.Submit(AskingAs("bob", "c", 8));
  ASSERT_TRUE(h.Cancel(used).ok());
  h.Answer<StopRanks>(node);
  EXPECT_NE(h.Phase(hers), JobPhase::kQueued);
}

}  // namespace
}  // namespace phalanx::coordinator
