// Nodes that are silent: suspect, then lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/machine/recovering.h"

namespace phalanx::coordinator {
namespace {

using job::JobPhase;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

absl::Duration DelayOf(absl::Duration interval, absl::Duration timeout) {
  return SuspectDelay({.heartbeat_interval = interval, .heartbeat_timeout = timeout});
}

TEST(SuspectDelayTest, IsHalfOfTheTimeout) {
  EXPECT_EQ(SuspectDelay(CoordinatorOptions()), absl::Milliseconds(7500));
  EXPECT_EQ(DelayOf(absl::Seconds(1), absl::Seconds(20)), absl::Seconds(10));
}

TEST(SuspectDelayTest, NoSingleMissedHeartbeatIsEnough) {
  EXPECT_EQ(DelayOf(absl::Seconds(3), absl::Seconds(8)), absl::Milliseconds(7500));
  EXPECT_EQ(DelayOf(absl::Milliseconds(250), absl::Seconds(1)), absl::Milliseconds(625));
}

TEST(SuspectDelayTest, WithoutTimeBeforeTheLoss_ThereIsNoSuspicion) {
  EXPECT_EQ(DelayOf(absl::Seconds(3), absl::Seconds(6)), absl::InfiniteDuration());
  EXPECT_EQ(DelayOf(absl::Seconds(3), absl::Milliseconds(7500)), absl::InfiniteDuration());
}

class SilenceTest : public RecoveringTest {
 protected:
  // Silent for so long, while `heard` are not.
  void Silent(absl::Duration duration, const std::vector<SessionId>& heard = {}) {
    for (absl::Duration passed; passed < duration; passed += absl::Milliseconds(500)) {
      h_.Advance(absl::Milliseconds(500));
      for (const SessionId session : heard) h_.Feed(HeartbeatReceived{.session = session});
    }
  }
};

TEST_F(SilenceTest, NodeIsSuspectBeforeItIsLost) {
  const JobId job = Train();
  h_.Advance(absl::Milliseconds(7499));
  EXPECT_FALSE(h_.NodeNamed("n").suspect);
  h_.Advance(absl::Milliseconds(1));
  EXPECT_TRUE(h_.NodeNamed("n").suspect);
  EXPECT_TRUE(h_.NodeNamed("n").View().suspect);
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
  EXPECT_EQ(h_.State(job).epoch, Epoch{1});
  EXPECT_THAT(Events(job, "NodeSuspect"),
              ElementsAre("node n: no heartbeat for 7.5s; nothing new is placed there, and past "
                          "15s the ranks there are lost"));
}

TEST_F(SilenceTest, SuspectNode_IsLostWhenItWouldHaveBeen) {
  Train();
  h_.Advance(absl::Milliseconds(14'999));
  EXPECT_THAT(h_.closed, IsEmpty());
  h_.Advance(absl::Milliseconds(1));
  EXPECT_EQ(h_.closed.at(node_).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(h_.NodeNamed("n").lost);
  EXPECT_FALSE(h_.NodeNamed("n").suspect);
}

TEST_F(SilenceTest, NodeThatSpeaksAgain_IsNoSuspectAndSilenceCountsAnew) {
  const JobId job = Train();
  h_.Advance(absl::Seconds(10));
  Step(job, 5, 1);
  EXPECT_FALSE(h_.NodeNamed("n").suspect);
  EXPECT_THAT(Events(job, "NodeHeard"), ElementsAre("node n: heard again"));
  h_.Advance(absl::Milliseconds(7499));
  EXPECT_FALSE(h_.NodeNamed("n").suspect);
  h_.Advance(absl::Milliseconds(1));
  EXPECT_THAT(Events(job, "NodeSuspect"), SizeIs(2));
  h_.Advance(absl::Seconds(7));
  EXPECT_THAT(h_.closed, IsEmpty());
}

TEST_F(SilenceTest, SuspectProcessThatOpensAnotherStream_IsHeard) {
  const JobId job = Train();
  h_.Advance(absl::Seconds(10));
  h_.Open("n", 3, 1, {{job, Epoch{1}}});
  EXPECT_FALSE(h_.NodeNamed("n").suspect);
  EXPECT_THAT(Events(job, "NodeHeard"), SizeIs(1));
}

TEST_F(SilenceTest, ProcessThatTakesOverFromASuspectOne_IsNotItsReturn) {
  const JobId job = Train();
  h_.Advance(absl::Seconds(10));
  h_.Replace("n", 3, 2);
  EXPECT_FALSE(h_.NodeNamed("n").suspect);
  EXPECT_THAT(Events(job, "NodeHeard"), IsEmpty());
}

TEST_F(SilenceTest, StallOfTheCoordinator_MakesNobodySuspect) {
  Train();
  h_.Advance(absl::Seconds(5));
  h_.Stall(absl::Seconds(30));
  h_.Feed(DeadlineReached{});
  EXPECT_FALSE(h_.NodeNamed("n").suspect);
}

TEST_F(SilenceTest, Job_IsNotPlacedOnASuspectNodeUntilThatIsHeard) {
  const SessionId node = h_.Open("n", 1);
  h_.Advance(absl::Seconds(8));
  const JobId job = h_.Submit(AJob("a", 1));
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_THAT(h_.Explain(job), ::testing::Contains("node n matches but is silent"));
  h_.Feed(HeartbeatReceived{.session = node});
  EXPECT_EQ(h_.Phase(job), JobPhase::kStarting);
}

TEST_F(SilenceTest, NodeThatBecomesSuspectWhileTheJobIsPlanned_GetsItNot) {
  h_.Open("n", 1);
  h_.plans_held = true;
  const JobId job = h_.Submit(AJob("a", 1));
  h_.Advance(absl::Seconds(8));
  h_.AnswerPlans();
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_EQ(h_.Free("n"), 1);
}

TEST_F(SilenceTest, EventsOfAFlappingNode_AreFewAndTakeNothingFromThoseOfRanks) {
  CoordinatorOptions options = Harness::Options();
  options.silence_events_max = 4;
  options.rank_events_max = 1;
  Harness h(options);
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Run(node, AJob("a", 1));
  for (int i = 0; i < 10; ++i) {
    h.Advance(absl::Seconds(8));
    h.Feed(HeartbeatReceived{.session = node});
  }
  h.Report(node, job, 0, RankEvent{.type = "Slow", .message = "1.9 s"});
  std::vector<std::string> types;
  for (const JobEvent& event : h.events[job]) {
    if (absl::StartsWith(event.type, "Node") || event.type == "EventsDropped" ||
        event.type == "Slow") {
      types.push_back(event.type);
    }
  }
  EXPECT_THAT(types, ElementsAre("NodeSuspect", "NodeHeard", "NodeSuspect", "NodeHeard",
                                 "EventsDropped", "Slow"));
}

TEST_F(SilenceTest, ManyNodesAtOnce_AreOneEvent) {
  std::vector<SessionId> nodes;
  for (const char* name : {"a", "b", "c"}) nodes.push_back(h_.Open(name, 1));
  const JobId job = h_.Submit(AJobThatRecovers("job", 3));
  for (const SessionId node : nodes) h_.Prepare(node);
  h_.Advance(absl::Seconds(8));
  EXPECT_THAT(Events(job, "NodeSuspect"), ElementsAre(HasSubstr("nodes a, b, c: no heartbeat")));
}

// Three ranks on a, and a device of b that idles.
class SilentSpareTest : public SilenceTest {
 protected:
  JobId TrainBesideASpare() {
    node_ = h_.Open("a", 3);
    spare_ = h_.Open("b", 1);
    JobRequest request = *AJob("job", 4, "a spare");
    request.world = 3;
    request.recovers = request.rejoins = true;
    const JobId job = h_.Submit(std::make_shared<const JobRequest>(std::move(request)));
    for (const SessionId node : {node_, spare_}) h_.Prepare(node);
    for (const SessionId node : {node_, spare_}) h_.Answer<Assign>(node);
    h_.Ready(node_, job, 0, 3);
    EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
    Step(job, 5, 1);
    h_.commands.clear();
    return job;
  }
  SessionId spare_;
};

TEST_F(SilentSpareTest, DeviceOfASuspectNode_TakesNobodyOver) {
  const JobId job = TrainBesideASpare();
  Silent(absl::Seconds(8), {node_});
  h_.plans_held = true;
  h_.Report(node_, job, 1, RankDied{});
  ASSERT_THAT(h_.plans, SizeIs(1));
  EXPECT_THAT(h_.plans[0].unfit, ElementsAre(Rank{3}));
}

TEST_F(SilentSpareTest, SpareThatFallsSilentWhileItIsPlannedFor_IsPlannedWithout) {
  const JobId job = TrainBesideASpare();
  h_.plans_held = true;
  h_.Report(node_, job, 1, RankDied{});
  ASSERT_THAT(h_.plans, SizeIs(1));
  EXPECT_THAT(h_.plans[0].unfit, IsEmpty());
  Silent(absl::Seconds(8), {node_});
  h_.AnswerPlans(1);
  ASSERT_THAT(h_.plans, SizeIs(1)) << "another one is ordered";
  EXPECT_THAT(h_.plans[0].unfit, ElementsAre(Rank{3}));
  h_.AnswerPlans(1);
  h_.Commit();
  EXPECT_EQ(h_.State(job).epoch, Epoch{2});
  EXPECT_THAT(h_.State(job).layout->lost, ElementsAre(Rank{1}));
}

}  // namespace
}  // namespace phalanx::coordinator
