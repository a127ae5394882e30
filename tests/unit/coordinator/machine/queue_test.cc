// Who of those that wait goes first: priorities, reservations and those that go ahead meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "core/base/rough_time.h"
#include "tests/unit/coordinator/machine/harness.h"

namespace phalanx::coordinator {
namespace {

using job::JobPhase;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

JobRequestPtr Asking(const std::string& name, int32_t devices, int32_t priority,
                     absl::Duration limit = absl::InfiniteDuration()) {
  JobRequest request = *AJob(name, devices);
  request.priority = priority;
  request.time_limit = limit;
  return std::make_shared<const JobRequest>(std::move(request));
}

class QueueTest : public testing::Test {
 protected:
  QueueTest() : h_(PatientOptions()), node_(h_.Open("n", 4)) {}

  JobId Submit(const std::string& name, int32_t devices, int32_t priority = 0,
               absl::Duration limit = absl::InfiniteDuration()) {
    return h_.Submit(Asking(name, devices, priority, limit));
  }
  JobId Run(const std::string& name, int32_t devices,
            absl::Duration limit = absl::InfiniteDuration()) {
    return h_.Run(node_, Asking(name, devices, 0, limit));
  }
  void End(JobId job) {
    ASSERT_TRUE(h_.Cancel(job).ok());
    h_.Answer<StopRanks>(node_);
  }
  bool Waits(JobId job) const { return h_.Phase(job) == JobPhase::kQueued; }
  QueueSpot Spot(JobId job) {
    h_.Feed(QueueRequested{Token{1}, {job}});
    return h_.spots[job];
  }
  // One that trains, of a hundred steps.
  static JobRequestPtr Long(const std::string& name, int32_t devices, int32_t priority = 0) {
    JobRequest request = *Asking(name, devices, priority);
    request.steps = 100;
    request.checkpoints = request.preemptible = true;
    return std::make_shared<const JobRequest>(std::move(request));
  }
  void Train(JobId job, int64_t first, int64_t last, absl::Duration each = absl::Minutes(1)) {
    for (int64_t step = first; step <= last; ++step) {
      h_.Advance(each);
      h_.Report(
          node_, job, 0,
          StepReport{.step = step, .seconds = absl::ToDoubleSeconds(each), .epoch = Epoch{1}});
    }
  }
  // Its ranks end at the step, with a checkpoint of it, and are gone.
  void Save(JobId job, int64_t step) {
    const int32_t ranks = h_.State(job).request->devices;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      h_.Report(node_, job, rank,
                RankCheckpointPart{step, {.file = absl::StrCat("rank-", rank), .digest = "d"}});
      h_.Report(node_, job, rank, RankSucceeded{.step = step, .early = true});
    }
    h_.Report(node_, job, 0, RankCheckpointPublished{step, absl::StrCat("/c/", step), ""});
    h_.Answer<StopRanks>(node_);
  }

  Harness h_;
  SessionId node_;
};

TEST_F(QueueTest, LargerPriority_GoesFirst) {
  const JobId running = Run("runs", 4);
  const JobId low = Submit("low", 4, -5), middle = Submit("middle", 4), high = Submit("high", 4, 3);
  End(running);
  EXPECT_FALSE(Waits(high));
  EXPECT_TRUE(Waits(middle));
  ASSERT_TRUE(h_.Cancel(high).ok());
  EXPECT_FALSE(Waits(middle));
  EXPECT_TRUE(Waits(low));
}

TEST_F(QueueTest, LargerPriority_HoldsThoseBeforeItUp) {
  Run("runs", 2);
  const JobId first = Submit("first", 3);
  const JobId high = Submit("high", 4, 1);
  EXPECT_THAT(h_.Explain(first), Contains("job-3 (high) has priority 1 and waits for 4"));
  EXPECT_THAT(h_.Explain(first), Contains("it is number 2 of those that wait for such devices"));
  EXPECT_THAT(h_.Explain(high), Not(Contains(HasSubstr("job-2"))));
  EXPECT_TRUE(Waits(Submit("small", 1))) << "it would use a device that the others wait for";
}

TEST_F(QueueTest, Priority_HoldsOverARestart) {
  const JobId running = Run("runs", 4);
  const JobId low = Submit("low", 4, 1), high = Submit("high", 4, 2);
  h_.Restart();
  node_ = h_.Open("n", 4, 1, {{running, Epoch{1}}}, 2);
  End(running);
  EXPECT_FALSE(Waits(high));
  EXPECT_TRUE(Waits(low));
}

TEST_F(QueueTest, JobThatEndsBeforeTheFirstCanStart_GoesAhead) {
  Run("runs", 2, absl::Hours(2));
  const JobId large = Submit("large", 4);
  ASSERT_TRUE(Waits(large));
  EXPECT_TRUE(Waits(Submit("no limit", 1)));
  EXPECT_TRUE(Waits(Submit("too long", 1, 0, absl::Hours(2))));
  EXPECT_FALSE(Waits(Submit("short", 1, 0, absl::Hours(1))));
}

TEST_F(QueueTest, JobOfSmallerPriority_GoesAheadTooIfItDelaysNobody) {
  Run("runs", 2, absl::Hours(2));
  Submit("large", 4, 7);
  EXPECT_FALSE(Waits(Submit("short", 2, -7, absl::Minutes(10))));
}

TEST_F(QueueTest, WhereNobodyKnowsWhenTheFirstStarts_NobodyGoesAhead) {
  Run("runs", 2);
  Submit("large", 4);
  EXPECT_TRUE(Waits(Submit("short", 1, 0, absl::Seconds(1))));
}

TEST_F(QueueTest, DevicesOfAJobWithoutALimit_AreNotWaitedForWhereOthersAreEnough) {
  Run("no limit", 1);
  Run("runs", 2, absl::Hours(2));
  Submit("middle", 3);
  EXPECT_FALSE(Waits(Submit("short", 1, 0, absl::Hours(1))));
}

TEST_F(QueueTest, DevicesOfAJobThatHasEnded_AreReckonedWithSoon) {
  Run("runs", 2, absl::Hours(2));
  const JobId ends = Run("ends", 1, absl::Hours(2));
  ASSERT_TRUE(Waits(Submit("first", 2)));
  ASSERT_TRUE(h_.Cancel(ends).ok());
  EXPECT_TRUE(Waits(Submit("short", 1, 0, absl::Hours(1)))) << "it would delay the first";
}

TEST_F(QueueTest, WhoWentAhead_IsGoneWhenTheFirstCanStart) {
  const JobId running = Run("runs", 2, absl::Hours(2));
  const JobId large = Submit("large", 4);
  const JobId ahead = Submit("short", 2, 0, absl::Minutes(100));
  ASSERT_FALSE(Waits(ahead));
  const Instant latest = h_.now() + absl::Hours(2) + Harness::Options().end_grace +
                         Harness::Options().cancel_grace + absl::Seconds(30);
  h_.Prepare(node_);
  h_.Ready(node_, ahead, 0, 2);
  for (const JobId job : {ahead, running}) {
    while (h_.Phase(job) == JobPhase::kRunning) h_.Advance(absl::Minutes(1));
    h_.Answer<StopRanks>(node_);
  }
  EXPECT_FALSE(Waits(large));
  EXPECT_LE(h_.now(), latest);
}

TEST_F(QueueTest, PlaceInTheQueue_IsToldOfThoseThatWait) {
  const JobId running = Run("runs", 4, absl::Hours(1));
  const JobId second = Submit("second", 1), first = Submit("first", 4, 1, absl::Hours(1));
  h_.Feed(QueueRequested{Token{1}, {running, second, first, JobId{99}}});
  ASSERT_THAT(h_.spots, SizeIs(2));
  EXPECT_EQ(h_.spots[first].number, 1);
  EXPECT_EQ(h_.spots[second].number, 2);
  ASSERT_TRUE(h_.spots[first].starts_by.has_value());
  ASSERT_TRUE(h_.spots[second].starts_by.has_value());
  EXPECT_LT(*h_.spots[first].starts_by, *h_.spots[second].starts_by);
}

TEST_F(QueueTest, StartThatIsKnown_IsTold) {
  Run("runs", 4, absl::Hours(1));
  const JobId first = Submit("first", 4, 0, absl::Hours(1)), second = Submit("second", 1);
  const auto by = [&](absl::Duration delay) {
    return HasSubstr(
        absl::StrCat("it starts by ",
                     absl::FormatTime("%Y-%m-%dT%H:%M", h_.now() + delay, absl::UTCTimeZone())));
  };
  // Each with what its end and its plan may take.
  EXPECT_THAT(h_.Explain(first), Contains(by(absl::Hours(1) + absl::Seconds(160))));
  EXPECT_THAT(h_.Explain(second), Contains(by(absl::Hours(2) + absl::Seconds(350))));
}

TEST_F(QueueTest, StartThatWasTold_IsKeptWhereJobsTakeAllTheirTime) {
  const JobId running = Run("runs", 4, absl::Hours(1));
  const JobId waits = Submit("waits", 4);
  h_.Feed(QueueRequested{Token{1}, {waits}});
  ASSERT_TRUE(h_.spots[waits].starts_by.has_value());
  const Instant by = *h_.spots[waits].starts_by;
  EXPECT_GT(by, h_.now() + absl::Hours(1));
  EXPECT_LT(by, h_.now() + absl::Hours(1) + absl::Minutes(5)) << "it says something";
  while (h_.Phase(running) == JobPhase::kRunning) h_.Advance(absl::Minutes(1));
  h_.Answer<StopRanks>(node_);
  EXPECT_FALSE(Waits(waits));
  EXPECT_LE(h_.now(), by);
}

TEST_F(QueueTest, StartThatNobodyKnows_IsNotTold) {
  Run("runs", 4);
  const JobId waits = Submit("waits", 4);
  EXPECT_THAT(h_.Explain(waits), Not(Contains(HasSubstr("it starts"))));
  EXPECT_EQ(Spot(waits).number, 1);
  EXPECT_EQ(Spot(waits).starts_by, std::nullopt);
}

TEST_F(QueueTest, Start_IsGuessedOnceTheHolderHasTrainedAWhile) {
  const JobId running = h_.Run(node_, Long("runs", 4));
  const JobId waits = Submit("waits", 4);
  Train(running, 1, 8);
  EXPECT_EQ(Spot(waits).starts_about, std::nullopt) << "too few steps to tell";
  Train(running, 9, 9);
  EXPECT_EQ(Spot(waits).starts_about, RoughTime(h_.now(), h_.now() + absl::Minutes(91)));
  EXPECT_EQ(Spot(waits).starts_by, std::nullopt) << "it is no promise";
  EXPECT_THAT(h_.Explain(waits),
              Contains("it starts in about 92 min, if the jobs before it train on as they did "
                       "last"));
  const Instant before = *Spot(waits).starts_about;
  h_.Advance(absl::Seconds(59));
  EXPECT_EQ(Spot(waits).starts_about, before) << "the step goes on meanwhile";
}

TEST_F(QueueTest, JobBeforeItInTheQueueThatHasTrained_CountsAsItDid) {
  const JobId victim = h_.Run(node_, Long("victim", 4));
  Train(victim, 1, 40);
  const JobId high = h_.Submit(Long("high", 4, 1));
  ASSERT_TRUE(Waits(high));
  EXPECT_EQ(Spot(high).starts_about, std::nullopt) << "how long its checkpoint takes nobody knows";
  Save(victim, 41);
  ASSERT_TRUE(Waits(victim));
  ASSERT_FALSE(Waits(high));
  h_.Prepare(node_);
  h_.Ready(node_, high, 0, 4);
  const JobId low = Submit("low", 4, -1);
  EXPECT_EQ(Spot(low).starts_about, std::nullopt);
  Train(high, 1, 90);
  EXPECT_EQ(Spot(victim).starts_about, RoughTime(h_.now(), h_.now() + absl::Minutes(10)));
  EXPECT_EQ(Spot(low).starts_about, RoughTime(h_.now(), h_.now() + absl::Minutes(10 + 59)));
}

}  // namespace
}  // namespace phalanx::coordinator
