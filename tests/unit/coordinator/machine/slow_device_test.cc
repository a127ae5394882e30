// Devices that are slower than others with the same work: they are named, and nothing else happens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/machine/recovering.h"

namespace phalanx::coordinator {
namespace {

using job::JobPhase;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

class SlowDeviceTest : public RecoveringTest {
 protected:
  explicit SlowDeviceTest(CoordinatorOptions options = PatientOptions())
      : RecoveringTest(std::move(options)) {}

  // A heartbeat that says how long ranks 0, 1, ... work.
  void Beat(JobId job, const std::vector<double>& seconds, int64_t epoch = 1) {
    Progress progress{.job = job, .epoch = Epoch{epoch}, .step = step_ += 10};
    for (size_t rank = 0; rank < seconds.size(); ++rank)
      progress.work.push_back({static_cast<int32_t>(rank), seconds[rank], 7});
    h_.Advance(absl::Seconds(1));
    h_.Feed(HeartbeatReceived{
        .session = node_, .progress = {std::move(progress)}, .device_temperatures = degrees_});
  }
  void Beats(int count, JobId job, const std::vector<double>& seconds, int64_t epoch = 1) {
    for (int i = 0; i < count; ++i) Beat(job, seconds, epoch);
  }
  std::vector<int32_t> SlowRanksOf(JobId job) {
    std::vector<int32_t> ranks;
    for (const SlowDevice& slow : *h_.views.at(job)->slow_devices) ranks.push_back(slow.rank);
    return ranks;
  }

  int64_t step_ = 30;
  std::vector<int32_t> degrees_;
};

TEST_F(SlowDeviceTest, IsNamedWithItsPlaceAndWhatToDo_AndItsJobTrainsOn) {
  const JobId job = Train();
  Beats(20, job, {0.1, 0.1, 0.1});
  EXPECT_THAT(Events(job, "SlowDevice"), IsEmpty());
  degrees_ = {41, 40, 91};
  Beats(20, job, {0.1, 0.1, 0.25});
  EXPECT_THAT(
      Events(job, "SlowDevice"),
      ElementsAre("device 2 of node n (rank 2) takes 2.50 times as long for its work as the 2 "
                  "others with the same: 250 ms a step, not 100 ms; every step waits for it; it is "
                  "at 91 C; look there at what else uses the processors; phalanx drain n lets the "
                  "job go on elsewhere"));
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
  EXPECT_EQ(h_.State(job).epoch, Epoch{1});
  EXPECT_THAT(h_.Commands<Assign>(node_), IsEmpty());
  EXPECT_THAT(SlowRanksOf(job), ElementsAre(2));
  const SlowDevice& slow = h_.views.at(job)->slow_devices->front();
  EXPECT_EQ(slow.node, "n");
  EXPECT_EQ(slow.device, 2);
  EXPECT_EQ(slow.ratio(), 2.5);
  EXPECT_LT(slow.since, h_.now());
  EXPECT_THAT(h_.Explain(job),
              Contains(StartsWith("device 2 of node n (rank 2) takes 2.50 times")));
}

TEST_F(SlowDeviceTest, OnceItKeepsUp_ThatIsSaid) {
  const JobId job = Train();
  Beats(20, job, {0.1, 0.1, 0.25});
  Beats(20, job, {0.1, 0.1, 0.1});
  EXPECT_THAT(Events(job, "SlowDevice"), SizeIs(1));
  EXPECT_THAT(Events(job, "SlowDeviceOver"),
              ElementsAre("device 2 of node n (rank 2) keeps up again: it takes 1.00 times as long "
                          "for its work as the 2 others with the same"));
  EXPECT_THAT(SlowRanksOf(job), IsEmpty());
  EXPECT_THAT(h_.Explain(job), Not(Contains(HasSubstr("takes"))));
}

TEST_F(SlowDeviceTest, SeveralOfANode_PointAtTheNode) {
  node_ = h_.Open("n", 4);
  const JobId job = h_.Run(node_, AJobThatRecovers("a", 4));
  Beats(20, job, {0.1, 0.3, 0.1, 0.3});
  EXPECT_THAT(Events(job, "SlowDevice"), SizeIs(2));
  EXPECT_THAT(h_.Explain(job),
              Contains(AllOf(StartsWith("device 1 of node n (rank 1)"),
                             HasSubstr("as for device 3 of its node: look for what they share"))));
}

TEST_F(SlowDeviceTest, InTheNextEpoch_RanksAreJudgedAnew) {
  const JobId job = Train();
  Beats(20, job, {0.1, 0.1, 0.25});
  h_.Report(node_, job, 1, kKilled);
  h_.Advance(absl::Seconds(1));
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, Quiet(30, rank), 1);
  EXPECT_THAT(SlowRanksOf(job), IsEmpty());
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  Beats(20, job, {0.1, 0.1, 0.25}, 1);  // still of the one before
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, RankReady{}, 2);
  EXPECT_THAT(SlowRanksOf(job), IsEmpty());
  EXPECT_THAT(Events(job, "SlowDevice"), SizeIs(1));
  Beats(20, job, {0.1, 0.1, 0.25}, 2);
  EXPECT_THAT(Events(job, "SlowDevice"), SizeIs(2));
  EXPECT_THAT(SlowRanksOf(job), ElementsAre(2));
}

TEST_F(SlowDeviceTest, DaemonThatSaysNothing_HasNobodyJudged) {
  const JobId job = Train();
  Beats(50, job, {});
  EXPECT_THAT(Events(job, "SlowDevice"), IsEmpty());
}

// What a node says of ranks that it does not have, of another epoch or of no job counts in nothing.
TEST_F(SlowDeviceTest, WorkOfOthersRanks_IsNotBelieved) {
  const JobId job = Train();
  const SessionId other = h_.Open("other", 1);
  for (int i = 0; i < 20; ++i) {
    const int64_t step = 100 + 10 * i;
    Progress progress{.job = job, .epoch = Epoch{1}, .step = step};
    progress.work = {{0, 0.1, 7}, {1, 9, 7}, {-1, 9, 7}, {1000, 9, 7}};
    h_.Feed(HeartbeatReceived{.session = other, .progress = {progress}});
    progress.job = JobId{99};
    h_.Feed(HeartbeatReceived{.session = node_, .progress = {progress}});
    progress = {.job = job, .epoch = Epoch{7}, .step = step, .work = {{0, 0.1, 7}, {1, 9, 7}}};
    h_.Feed(HeartbeatReceived{.session = node_, .progress = {progress}});
  }
  EXPECT_THAT(Events(job, "SlowDevice"), IsEmpty());
}

class FewSlowEventsTest : public SlowDeviceTest {
 protected:
  FewSlowEventsTest()
      : SlowDeviceTest([] {
          CoordinatorOptions options = PatientOptions();
          options.slow_events_max = 2;
          return options;
        }()) {}
};

TEST_F(FewSlowEventsTest, FurtherOnesAreLeftOutAndShownAllTheSame) {
  const JobId job = Train();
  for (int i = 0; i < 3; ++i) {
    Beats(10, job, {0.1, 0.1, 0.25});
    EXPECT_THAT(SlowRanksOf(job), ElementsAre(2));
    Beats(10, job, {0.1, 0.1, 0.1});
  }
  EXPECT_THAT(Events(job, "SlowDevice"), SizeIs(1));
  EXPECT_THAT(Events(job, "SlowDeviceOver"), SizeIs(1));
  EXPECT_THAT(Events(job, "EventsDropped"), SizeIs(1));
}

}  // namespace
}  // namespace phalanx::coordinator
