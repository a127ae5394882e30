// Corrupt samples are counted, each once, against data.corrupt_max.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/coordinator/machine/harness.h"

namespace phalanx::coordinator {
namespace {

using job::JobPhase;
using testing::HasSubstr;

JobRequestPtr Allowing(int64_t corrupt_max) {
  JobRequest request = *AJob("j", 2);
  request.corrupt_max = corrupt_max;
  return std::make_shared<const JobRequest>(std::move(request));
}

int64_t EventCount(const Harness& h, JobId job, const std::string& type) {
  int64_t count = 0;
  for (const JobEvent& event : h.events.at(job)) count += event.type == type;
  return count;
}

TEST(CorruptTest, SampleFoundByTwoRanks_IsOne) {
  Harness h;
  const SessionId node = h.Open("a", 2);
  const JobId job = h.Run(node, Allowing(1));
  h.Report(node, job, 0, RankEvent{"CorruptSample", "a.tar: 7: no PNG"});
  h.Report(node, job, 1, RankEvent{"CorruptSample", "a.tar: 7: no PNG"});
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
  EXPECT_EQ(EventCount(h, job, "CorruptSample"), 1);
}

TEST(CorruptTest, OneSampleTooMany_FailsTheJobWithCountLimitAndNames) {
  Harness h;
  const SessionId node = h.Open("a", 2);
  const JobId job = h.Run(node, Allowing(1));
  h.Report(node, job, 0, RankEvent{"CorruptSample", "a.tar: 7: no PNG"});
  h.Report(node, job, 1, RankEvent{"CorruptSample", "a.tar: 8: no PNG"});
  EXPECT_EQ(h.Published(job), JobPhase::kFailed);
  EXPECT_EQ(h.State(job).failure->kind, job::FailureKind::kDataCorrupt);
  EXPECT_EQ(h.State(job).failure->node, "a");
  EXPECT_EQ(h.State(job).failure->rank, -1);
  EXPECT_EQ(
      h.State(job).failure->message,
      "2 corrupt samples; spec.data.corrupt_max allows 1\na.tar: 7: no PNG\na.tar: 8: no PNG");
  EXPECT_EQ(h.Commands<StopRanks>(node).size(), 1u);
}

TEST(CorruptTest, MoreThanTheEventsOfAJob_AreCountedOnceEachAndNotNamed) {
  CoordinatorOptions options = Harness::Options();
  options.rank_events_max = 3;
  Harness h(options);
  const SessionId node = h.Open("a", 2);
  const JobId job = h.Run(node, Allowing(8));
  for (int i = 0; i < 10; ++i) h.Report(node, job, 0, RankEvent{"Noise", "message"});
  for (int pass = 0; pass < 3; ++pass) {
    for (int sample = 1; sample <= 8; ++sample) {
      h.Report(node, job, pass % 2, RankEvent{"CorruptSample", absl::StrCat("a.tar: ", sample)});
    }
  }
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
  EXPECT_EQ(EventCount(h, job, "CorruptSample"), 3);
  EXPECT_EQ(EventCount(h, job, "EventsDropped"), 2) << "of the noise, and of the samples";
  h.Report(node, job, 0, RankEvent{"CorruptSample", "a.tar: 9"});
  EXPECT_EQ(h.Phase(job), JobPhase::kFailed);
  EXPECT_THAT(h.State(job).failure->message, HasSubstr("9 corrupt samples"));
}

TEST(CorruptTest, NamesOfManyBytes_AreBoundedAndTheSamplesStillCounted) {
  CoordinatorOptions options = Harness::Options();
  options.corrupt_bytes_max = 1000;
  Harness h(options);
  const SessionId node = h.Open("a", 2);
  const JobId job = h.Submit(Allowing(9));
  const auto name = [](int sample) { return absl::StrCat(sample, std::string(299, 'x')); };
  h.Answer<PrepareData>(node, {.data_digest = "d",
                               .corrupt_samples = 4,
                               .corrupt_messages = {name(1), name(2), name(3), name(4)}});
  EXPECT_EQ(h.Phase(job), JobPhase::kStarting);
  EXPECT_EQ(EventCount(h, job, "CorruptSample"), 3);
  h.Answer<Assign>(node);
  h.Ready(node, job, 0, 2);
  for (int sample = 4; sample <= 9; ++sample) {
    h.Report(node, job, 0, RankEvent{"CorruptSample", name(sample)});
  }
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
  EXPECT_EQ(EventCount(h, job, "CorruptSample"), 3);
  EXPECT_LE(h.State(job).corrupt_bytes, 1000);
  for (int sample = 10; sample <= 12; ++sample) {
    h.Report(node, job, 0, RankEvent{"CorruptSample", absl::StrCat(sample, name(0))});
  }
  EXPECT_EQ(h.Phase(job), JobPhase::kFailed);
}

TEST(CorruptTest, CountOutlivesTheCoordinator_AndIndexedOnesAreIncluded) {
  Harness h;
  SessionId node = h.Open("a", 2);
  const JobId job = h.Submit(Allowing(2));
  h.Answer<PrepareData>(
      node,
      {.data_digest = "d", .corrupt_samples = 1, .corrupt_messages = {"a.tar: 1: has no text"}});
  h.Answer<Assign>(node);
  h.Ready(node, job, 0, 2);
  h.Report(node, job, 0, RankEvent{"CorruptSample", "a.tar: 7: no PNG"});
  h.Restart();
  node = h.Open("a", 2, 1, {{job, Epoch{1}}}, 2);
  h.Report(node, job, 0, RankEvent{"CorruptSample", "a.tar: 7: no PNG"});
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
  h.Report(node, job, 0, RankEvent{"CorruptSample", "a.tar: 8: no PNG"});
  EXPECT_EQ(h.State(job).failure->kind, job::FailureKind::kDataCorrupt);
}

TEST(CorruptTest, MoreThanAllowedWhileIndexing_FailsBeforeAnyRank_UnnamedOnesToo) {
  Harness h;
  const SessionId node = h.Open("a", 2);
  const JobId job = h.Submit(Allowing(16));
  h.Answer<PrepareData>(node,
                        {.data_digest = "d",
                         .corrupt_samples = 17,
                         .corrupt_messages = {"a.tar: 1: has no text", "a.tar: 2: has no text"}});
  EXPECT_EQ(h.State(job).failure->kind, job::FailureKind::kDataCorrupt);
  EXPECT_THAT(h.State(job).failure->message,
              HasSubstr("17 corrupt samples; spec.data.corrupt_max allows 16"));
  EXPECT_TRUE(h.Commands<Assign>(node).empty());
  EXPECT_EQ(h.Free("a"), 2);
}

TEST(CorruptTest, TwoNodesThatIndexTheSameData_CountItOnce) {
  Harness h;
  const SessionId a = h.Open("a", 1), b = h.Open("b", 1);
  const JobId job = h.Submit(Allowing(1));
  for (const SessionId node : {a, b}) {
    h.Answer<PrepareData>(
        node,
        {.data_digest = "d", .corrupt_samples = 1, .corrupt_messages = {"a.tar: 1: has no text"}});
  }
  EXPECT_EQ(h.Phase(job), JobPhase::kStarting);
  EXPECT_EQ(h.Commands<Assign>(a).size(), 1u);
}

}  // namespace
}  // namespace phalanx::coordinator
