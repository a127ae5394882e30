// Replicas of devices that stay slow are dealt fewer samples.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/coordinator/machine/recovering.h"

namespace phalanx::coordinator {
namespace {

using job::JobPhase;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr int64_t kThird = (plan::kPaceOfOthers + 1) / 3;

class PaceTest : public RecoveringTest {
 protected:
  PaceTest() : RecoveringTest(PatientOptions()) {}

  JobId TrainRelieved(const std::string& document = "", bool relieves = true) {
    node_ = h_.Open("n", 3);
    JobRequest request = *AJobThatRecovers("a", 3);
    request.relieves = relieves;
    request.steps = 1'000'000;
    if (!document.empty()) request.document.text = document;
    const JobId job = h_.Run(node_, std::make_shared<const JobRequest>(std::move(request)));
    h_.commands.clear();
    return job;
  }
  // So many seconds in which ranks 0, 1, ... work so long for a step, and for 10^9 operations.
  void Train(int seconds, JobId job, const std::vector<double>& works, int64_t epoch = 1,
             std::vector<double> per_gflop = {}) {
    if (per_gflop.empty()) per_gflop = works;
    for (int i = 0; i < seconds; ++i) {
      Step(job, step_ += 10, epoch);
      Progress progress{.job = job, .epoch = Epoch{epoch}, .step = step_};
      for (size_t rank = 0; rank < works.size(); ++rank)
        progress.work.push_back({static_cast<int32_t>(rank), works[rank], 7, per_gflop[rank], 8});
      h_.Advance(absl::Seconds(1));
      h_.Feed(HeartbeatReceived{.session = node_, .progress = {std::move(progress)}});
    }
  }
  // All leave `epoch` and are ready in the next one.
  void GoOver(JobId job, int64_t epoch) {
    for (const int32_t rank : {0, 1, 2}) h_.Report(node_, job, rank, Quiet(step_, rank), epoch);
    for (const int32_t rank : {0, 1, 2}) h_.Report(node_, job, rank, RankReady{}, epoch + 1);
  }
  // Ranks of `epoch` do not find each other, as one of them says; all have left `from`.
  // Returns how long it takes until they try again.
  absl::Duration DoNotConnect(JobId job, int64_t from, int64_t epoch, int32_t accused = -1) {
    for (const int32_t rank : {0, 1, 2}) h_.Report(node_, job, rank, Quiet(step_, rank), from);
    h_.Report(node_, job, 0,
              RankError{.kind = job::FailureKind::kPeerLost, .accused = accused, .message = "who"},
              epoch);
    absl::Duration waited;
    for (; h_.State(job).epoch == Epoch{epoch} && waited < absl::Minutes(1);
         waited += absl::Milliseconds(100))
      h_.Advance(absl::Milliseconds(100));
    return waited;
  }
  const plan::SlowPlaces& Slow(JobId job) { return h_.State(job).layout->slow; }

  const std::vector<double> kSound = {0.1, 0.1, 0.1}, kSlow = {0.1, 0.1, 0.3};
  int64_t step_ = 30;
};

TEST_F(PaceTest, DeviceThatStaysSlow_HasItsReplicaDealtFewerSamples_BesideTraining) {
  const JobId job = TrainRelieved();
  Train(20, job, kSound);
  Train(20, job, kSlow);
  ASSERT_THAT(Events(job, "SlowDevice"), SizeIs(1));
  ASSERT_EQ(h_.State(job).epoch, Epoch{1}) << "it has not been slow for long";
  Train(20, job, kSlow);
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  EXPECT_THAT(Slow(job), ElementsAre(plan::SlowPlace{Rank{2}, kThird}));
  EXPECT_THAT(Events(job, "SamplesMoved"),
              ElementsAre("device 2 of node n (rank 2) takes 3.00 times as long for its work as "
                          "others; from epoch 2 on dealt anew with 1 slow"));
  const Assign assigned = h_.Commands<Assign>(node_).back().second;
  EXPECT_TRUE(assigned.goes_on);
  EXPECT_TRUE(assigned.beside) << "they train on until all are connected";
  EXPECT_THAT(h_.Explain(job), Contains(HasSubstr("samples are dealt by which devices are slow")));
  Train(10, job, kSlow);
  EXPECT_THAT(BegunBehind(), IsEmpty());
  GoOver(job, 1);
  EXPECT_THAT(BegunBehind(), ElementsAre(step_));
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
  EXPECT_THAT(h_.State(job).incidents, IsEmpty());
  EXPECT_THAT(h_.State(job).recoveries, IsEmpty()) << "it counts in no budget";
}

// In its layout it works as long as the others, so it shows by its operations alone.
TEST_F(PaceTest, OnceItKeepsUp_SamplesAreDealtAsBefore) {
  const JobId job = TrainRelieved();
  Train(60, job, kSlow);
  GoOver(job, 1);
  Train(100, job, {0.1, 0.1, 0.1}, 2, kSlow);
  EXPECT_EQ(h_.State(job).epoch, Epoch{2});
  EXPECT_THAT(Events(job, "SlowDevice"), SizeIs(1)) << "it is the same slowness";
  ASSERT_THAT(*h_.views.at(job)->slow_devices, SizeIs(1));
  EXPECT_DOUBLE_EQ(h_.views.at(job)->slow_devices->front().ratio(), 3);
  EXPECT_THAT(h_.Explain(job),
              Contains(HasSubstr("; its replica is dealt fewer samples for that")));
  Train(20, job, {0.1, 0.1, 0.04}, 2, {0.1, 0.1, 0.12});
  ASSERT_THAT(Events(job, "SlowDeviceOver"), SizeIs(1));
  EXPECT_EQ(h_.State(job).epoch, Epoch{2}) << "it has not kept up for long";
  EXPECT_THAT(h_.Explain(job), Contains(HasSubstr("since then it has kept up")));
  Train(20, job, {0.1, 0.1, 0.04}, 2, {0.1, 0.1, 0.12});
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_THAT(Slow(job), IsEmpty());
  EXPECT_THAT(Events(job, "SamplesMoved").back(),
              StartsWith("device 2 of node n (rank 2) keeps up again; from epoch 3 on"));
}

TEST_F(PaceTest, UnlessTheJobSaysSo_NothingIsDealtAnew) {
  const JobId job = TrainRelieved("", /*relieves=*/false);
  Train(200, job, kSlow);
  EXPECT_THAT(Events(job, "SlowDevice"), SizeIs(1));
  EXPECT_EQ(h_.State(job).epoch, Epoch{1});
}

TEST_F(PaceTest, SlowNowAndThen_IsNotForLong) {
  const JobId job = TrainRelieved();
  for (int i = 0; i < 10; ++i) {
    Train(25, job, kSlow);
    Train(25, job, kSound);
  }
  EXPECT_GE(Events(job, "SlowDevice").size(), 10u);
  EXPECT_EQ(h_.State(job).epoch, Epoch{1});
}

TEST_F(PaceTest, ChangesOfAnHourAreBounded) {
  const JobId job = TrainRelieved();
  int64_t epoch = 1;
  for (int i = 0; i < 20; ++i) {
    Train(80, job, i % 2 == 0 ? kSlow : kSound, epoch);
    if (h_.State(job).epoch == Epoch{epoch}) continue;
    GoOver(job, epoch++);
  }
  EXPECT_EQ(epoch, 1 + PatientOptions().pace_changes_max);
  h_.Advance(absl::Hours(1));
  Train(80, job, kSlow, epoch);
  EXPECT_EQ(h_.State(job).epoch, Epoch{epoch + 1});
}

TEST_F(PaceTest, WhereNoReplicaWouldHaveOtherSamples_ThatIsSaidOnce) {
  const JobId job = TrainRelieved("one replica");
  Train(200, job, kSlow);
  EXPECT_THAT(Events(job, "SamplesStay"),
              ElementsAre(HasSubstr("no replica would have other ones")));
  EXPECT_EQ(h_.State(job).epoch, Epoch{1});
}

TEST_F(PaceTest, AnotherThatIsSlowInTheSameEpoch_IsConsideredAnew) {
  const JobId job = TrainRelieved("one replica");
  Train(100, job, kSlow);
  ASSERT_THAT(Events(job, "SamplesStay"), SizeIs(1));
  Train(200, job, {0.1, 0.3, 0.3});
  ASSERT_THAT(Events(job, "SamplesStay"), SizeIs(2)) << "once for those two";
  EXPECT_THAT(Events(job, "SamplesStay").back(), HasSubstr("device 1 of node n (rank 1)"));
}

// Its pace is that of a round in which it is slow.
TEST_F(PaceTest, ThatKeepsUpForARoundWhenItIsDue_IsDealtByWhatItIsElse) {
  const JobId job = TrainRelieved();
  for (int i = 0; i < 20 && Events(job, "SlowDevice").empty(); ++i) Train(1, job, kSlow);
  ASSERT_THAT(Events(job, "SlowDevice"), SizeIs(1));
  Train(29, job, kSlow);
  ASSERT_EQ(h_.State(job).epoch, Epoch{1});
  Train(1, job, kSound);
  EXPECT_EQ(h_.State(job).epoch, Epoch{1});
  Train(1, job, kSlow);
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  EXPECT_THAT(Slow(job), ElementsAre(plan::SlowPlace{Rank{2}, kThird}));
}

TEST_F(PaceTest, WhoSuspendsItMeanwhile_IsNotToldOfALoss) {
  node_ = h_.Open("n", 3);
  JobRequest request = *AJobThatRecovers("a", 3);
  request.relieves = request.checkpoints = true;
  request.steps = 1'000'000;
  const JobId job = h_.Run(node_, std::make_shared<const JobRequest>(std::move(request)));
  Train(60, job, kSlow);
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  h_.Feed(SuspensionRequested{Token{77}, job, true});
  EXPECT_THAT(std::string(h_.answers.at(77).status().message()),
              HasSubstr("goes over to another layout; suspend it when it trains again"));
}

TEST_F(PaceTest, LossMeanwhile_GoesFirst) {
  const JobId job = TrainRelieved();
  h_.plans_held = true;
  Train(60, job, kSlow);
  ASSERT_THAT(h_.plans, SizeIs(1));
  ASSERT_TRUE(h_.plans[0].slow.has_value());
  h_.Report(node_, job, 1, kKilled);
  EXPECT_THAT(h_.dropped_plans, ElementsAre(h_.plans[0].number));
  ASSERT_THAT(h_.plans, SizeIs(2));
  EXPECT_FALSE(h_.plans[1].slow.has_value());
  h_.plans_held = false;
  h_.AnswerPlans();
  h_.Commit();
  EXPECT_EQ(h_.State(job).epoch, Epoch{2});
  EXPECT_THAT(h_.State(job).layout->lost, ElementsAre(Rank{1}));
  EXPECT_THAT(Slow(job), IsEmpty());
}

TEST_F(PaceTest, LossWhileTheyConnect_StopsEverybody_AndItStaysSlow) {
  const JobId job = TrainRelieved();
  Train(60, job, kSlow);
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  h_.Report(node_, job, 1, kKilled);
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_FALSE(h_.Commands<Assign>(node_).back().second.beside);
  EXPECT_THAT(Slow(job), ElementsAre(plan::SlowPlace{Rank{2}, kThird}));
  EXPECT_THAT(h_.State(job).incidents, SizeIs(1));
  EXPECT_THAT(h_.State(job).recoveries, SizeIs(1)) << "it counts as any";
}

TEST_F(PaceTest, LossWhileTheyGoBack_CountsOnce) {
  const JobId job = TrainRelieved();
  Train(60, job, kSlow);
  h_.Report(node_, job, 0, RankError{.kind = job::FailureKind::kPeerLost, .message = "who"}, 2);
  h_.Advance(absl::Seconds(1));
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_THAT(h_.State(job).recoveries, IsEmpty());
  h_.Report(node_, job, 1, kKilled, 1);
  ASSERT_EQ(h_.State(job).epoch, Epoch{4});
  EXPECT_THAT(h_.State(job).layout->lost, ElementsAre(Rank{1}));
  EXPECT_FALSE(h_.State(job).by_choice);
  EXPECT_THAT(h_.State(job).recoveries, SizeIs(1));
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, Quiet(step_, rank), 1);
  h_.Report(node_, job, 2, kKilled, 4);  // before all are ready
  ASSERT_EQ(h_.State(job).epoch, Epoch{5});
  EXPECT_THAT(h_.State(job).recoveries, SizeIs(2));
}

// They are told to stop for the layout, which is what they do then.
TEST_F(PaceTest, RanksThatDoNotConnect_AreToldToStopForIt) {
  const JobId job = TrainRelieved();
  Train(60, job, kSlow);
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  for (int i = 0; i < 200 && h_.State(job).epoch == Epoch{2}; ++i) Train(1, job, kSlow);
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_FALSE(h_.Commands<Assign>(node_).back().second.beside);
  EXPECT_THAT(h_.State(job).layout->lost, IsEmpty());
  EXPECT_THAT(Slow(job), IsEmpty()) << "samples are dealt as before";
  for (const int32_t rank : {0, 1, 2}) h_.Report(node_, job, rank, Quiet(step_, rank), 1);
  EXPECT_THAT(BegunBehind(), ElementsAre(step_));
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
}

// Nothing is lost but the wish for a better pace, and nobody had to stop for that.
TEST_F(PaceTest, RanksThatDoNotFindEachOther_TryUntilTheyDo_WhateverTheBudget) {
  node_ = h_.Open("n", 3);
  JobRequest request = *AJobThatRecovers("a", 3);
  request.relieves = true;
  request.steps = 1'000'000;
  request.budget = {.total = 0, .without_progress = 0};
  const JobId job = h_.Run(node_, std::make_shared<const JobRequest>(std::move(request)));
  Train(60, job, kSlow);
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  h_.Report(node_, job, 0, RankError{.kind = job::FailureKind::kPeerLost, .message = "who"}, 2);
  h_.Advance(absl::Seconds(1));
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_THAT(Slow(job), IsEmpty()) << "samples are dealt as before";
  EXPECT_THAT(Events(job, "SamplesStay"),
              ElementsAre("ranks were not connected for samples that are dealt otherwise; they are "
                          "dealt as before, and are not dealt anew within 1h"));
  DoNotConnect(job, 1, 3);
  for (int64_t epoch = 4; epoch < 4 + 2 * kTriesMax; ++epoch) {
    ASSERT_EQ(h_.State(job).epoch, Epoch{epoch});
    EXPECT_LE(DoNotConnect(job, epoch - 1, epoch), absl::Seconds(40));
  }
  ASSERT_EQ(h_.Phase(job), JobPhase::kRunning) << h_.State(job).reason;
  const int64_t stuck = h_.State(job).epoch.value, last = stuck + 1;
  EXPECT_GT(DoNotConnect(job, stuck - 1, stuck), absl::Seconds(30)) << "less and less often";
  ASSERT_EQ(h_.State(job).epoch, Epoch{last});
  GoOver(job, stuck);
  EXPECT_THAT(h_.State(job).layout->lost, IsEmpty());
  EXPECT_THAT(h_.State(job).recoveries, IsEmpty()) << "it counts in no budget";
  EXPECT_EQ(h_.State(job).without_progress, 0);
  for (const int32_t rank : {0, 1, 2}) h_.Report(node_, job, rank, RankSafe{}, last);
  Train(300, job, kSlow, last);
  EXPECT_EQ(h_.State(job).epoch, Epoch{last}) << "it is not tried again at once";
  h_.Advance(absl::Hours(1));
  Train(80, job, kSlow, last);
  EXPECT_EQ(h_.State(job).epoch, Epoch{last + 1});
}

// Whom a peer does not reach has trained a moment ago.
TEST_F(PaceTest, WhoIsAccusedOfNotBeingReached_KeepsItsPlaceForAFewTries) {
  const JobId job = TrainRelieved();
  Train(60, job, kSlow);
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  h_.Report(node_, job, 0,
            RankError{.kind = job::FailureKind::kPeerLost, .accused = 1, .message = "who"}, 2);
  h_.Advance(absl::Seconds(1));
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  DoNotConnect(job, 1, 3, /*accused=*/1);
  DoNotConnect(job, 3, 4, /*accused=*/1);
  ASSERT_EQ(h_.State(job).epoch, Epoch{5});
  EXPECT_THAT(h_.State(job).layout->lost, IsEmpty());
  EXPECT_THAT(h_.State(job).recoveries, IsEmpty());
  DoNotConnect(job, 4, 5, /*accused=*/1);
  ASSERT_EQ(h_.State(job).epoch, Epoch{6});
  EXPECT_THAT(h_.State(job).layout->lost, ElementsAre(Rank{1})) << "the ladder's turn";
  EXPECT_THAT(h_.State(job).recoveries, SizeIs(1));
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
}

// Two sets of communicators may be more than a device holds.
class PaceErrorTest : public PaceTest, public testing::WithParamInterface<job::FailureKind> {};

TEST_P(PaceErrorTest, MetByARankThatIsBeingConnected_FailsNoJobThatTrains) {
  const JobId job = TrainRelieved();
  Train(60, job, kSlow);
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  h_.Report(node_, job, 1, RankError{.kind = GetParam(), .message = "cannot"}, 2);
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
  EXPECT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_THAT(h_.State(job).layout->lost, ElementsAre(Rank{1})) << "its process ends of it";
}

INSTANTIATE_TEST_SUITE_P(Kinds, PaceErrorTest,
                         testing::Values(job::FailureKind::kOutOfMemory,
                                         job::FailureKind::kRankError,
                                         job::FailureKind::kVersionMismatch),
                         [](const auto& kind) { return std::string(job::ToString(kind.param)); });

// What they stop for is stored as theirs by choice.
TEST_F(PaceTest, CoordinatorThatRestartsWhenTheyDidNotConnect_CountsItInNoBudget) {
  const JobId job = TrainRelieved();
  Train(60, job, kSlow);
  h_.Report(node_, job, 0, RankError{.kind = job::FailureKind::kPeerLost, .message = "who"}, 2);
  h_.Advance(absl::Seconds(1));
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  h_.Restart();
  EXPECT_TRUE(h_.State(job).by_choice);
  node_ = h_.Open("n", 3, 1, {{job, Epoch{1}}, {job, Epoch{3}}}, 20);
  DoNotConnect(job, 1, 3);
  ASSERT_EQ(h_.State(job).epoch, Epoch{4});
  EXPECT_TRUE(h_.State(job).by_choice);
  EXPECT_THAT(h_.State(job).recoveries, IsEmpty());
}

TEST_F(PaceTest, CoordinatorThatRestarts_KnowsWhoIsSlow) {
  const JobId job = TrainRelieved();
  Train(60, job, kSlow);
  GoOver(job, 1);
  h_.Restart();
  EXPECT_THAT(Slow(job), ElementsAre(plan::SlowPlace{Rank{2}, kThird}));
}

}  // namespace
}  // namespace phalanx::coordinator
