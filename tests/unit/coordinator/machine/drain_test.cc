// Nodes that people take out of service.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
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

class DrainTest : public testing::Test {
 protected:
  explicit DrainTest(CoordinatorOptions options = PatientOptions())
      : h_(std::move(options)), node_(h_.Open("a", 2)) {}

  static JobRequestPtr Asking(const std::string& name, bool checkpoints = true) {
    JobRequest request = *AJob(name, 2);
    request.checkpoints = checkpoints;
    return std::make_shared<const JobRequest>(std::move(request));
  }
  absl::StatusOr<MarkedNode> Set(const NodeName& node, std::optional<NodeMark> mark,
                                 bool force = false) {
    h_.Feed(NodeMarkRequested{Token{++token_}, node, std::move(mark), "ops", force});
    return h_.marked.back();
  }
  absl::StatusOr<MarkedNode> Cordon(const NodeName& node) {
    return Set(node, NodeMark{.reason = "new fan"});
  }
  absl::StatusOr<MarkedNode> Drain(const NodeName& node, bool force = false) {
    return Set(node, NodeMark{.drains = true, .reason = "new fan"}, force);
  }
  absl::StatusOr<MarkedNode> Uncordon(const NodeName& node) { return Set(node, std::nullopt); }
  // Its ranks end at the step, and have published a checkpoint of it.
  void Save(JobId job, int64_t step, int64_t epoch = 1) {
    for (const int32_t rank : {0, 1}) {
      h_.Report(node_, job, rank,
                RankCheckpointPart{step, {.file = absl::StrCat("rank-", rank), .digest = "d"}},
                epoch);
      h_.Report(node_, job, rank, RankSucceeded{.step = step, .early = true}, epoch);
    }
    h_.Report(node_, job, 0, RankCheckpointPublished{step, absl::StrCat("/c/", step), ""}, epoch);
  }
  std::vector<std::string> Events(JobId job, const std::string& type) {
    std::vector<std::string> messages;
    for (const JobEvent& event : h_.events[job]) {
      if (event.type == type) messages.push_back(event.message);
    }
    return messages;
  }

  Harness h_;
  SessionId node_;
  uint64_t token_ = 1'000'000;  // beside those of the harness
};

TEST_F(DrainTest, AssignmentThatANodeNeverGot_IsNotSentOnceTheJobIsQueuedAgain) {
  const SessionId other = h_.Open("b", 2);
  const JobId job = h_.Submit(AJob("job", 4));
  h_.Prepare(node_);
  h_.Prepare(other);
  ASSERT_THAT(h_.Commands<Assign>(other), SizeIs(1));
  h_.Feed(SessionClosed{other});
  ASSERT_TRUE(Drain("a").ok());
  ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  // It has carried out what came before.
  const SessionId again = h_.Open("b", 2, 1, {}, h_.Commands<Assign>(other)[0].first - 1);
  EXPECT_THAT(h_.Commands<Assign>(again), IsEmpty()) << "nobody would stop its ranks";
  EXPECT_EQ(h_.Free("b"), 2);
}

TEST_F(DrainTest, CordonedNode_GetsNothingNewUntilItIsUncordoned) {
  ASSERT_TRUE(Cordon("a").ok());
  const JobId job = h_.Submit(Asking("job"));
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_THAT(h_.Explain(job), Contains("node a matches but is cordoned by ops: new fan"));
  ASSERT_TRUE(h_.node_views["a"]->mark.has_value());
  EXPECT_EQ(h_.node_views["a"]->mark->reason, "new fan");
  ASSERT_TRUE(Uncordon("a").ok());
  EXPECT_EQ(h_.Phase(job), JobPhase::kStarting);
  EXPECT_FALSE(h_.node_views["a"]->mark.has_value());
}

TEST_F(DrainTest, CordonedNode_KeepsWhatRunsThere) {
  const JobId job = h_.Run(node_, Asking("job"));
  ASSERT_TRUE(Cordon("a").ok());
  EXPECT_THAT(h_.Commands<Wish>(node_), IsEmpty());
  EXPECT_THAT(Events(job, "NodeCordoned"), ElementsAre("node a: cordoned by ops: new fan"));
  ASSERT_TRUE(Uncordon("a").ok());
  EXPECT_THAT(Events(job, "NodeUncordoned"), ElementsAre("node a: takes jobs again, by ops"));
}

TEST_F(DrainTest, DrainedNode_IsLeftWithTheStateSaved) {
  const JobId job = h_.Run(node_, Asking("job"));
  const absl::StatusOr<MarkedNode> drained = Drain("a");
  ASSERT_TRUE(drained.ok());
  ASSERT_THAT(drained->jobs, SizeIs(1));
  EXPECT_EQ(drained->jobs[0].name, "job");
  EXPECT_EQ(drained->jobs[0].what, "saves its state, and then goes on elsewhere");
  EXPECT_FALSE(drained->jobs[0].stays);
  EXPECT_THAT(Events(job, "NodeDrained"), ElementsAre("node a: drained by ops: new fan"));
  EXPECT_THAT(h_.Commands<Wish>(node_), SizeIs(1));
  Save(job, 7);
  ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_EQ(h_.State(job).reason,
            "node a is drained: it goes on behind step 7 once it has devices again");
  h_.Answer<StopRanks>(node_);
  EXPECT_EQ(h_.Free("a"), 2);
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued) << "the node takes nothing";
  EXPECT_THAT(h_.State(job).recoveries, IsEmpty()) << "nothing was lost";
  const SessionId other = h_.Open("b", 2);
  ASSERT_EQ(h_.Phase(job), JobPhase::kStarting);
  h_.Prepare(other);
  EXPECT_EQ(h_.Commands<Assign>(other).back().second.checkpoint->path, "/c/7");
}

TEST_F(DrainTest, JobThatStarts_WaitsForOtherDevicesAtOnce) {
  const JobId job = h_.Submit(Asking("job", /*checkpoints=*/false));
  const absl::StatusOr<MarkedNode> drained = Drain("a");
  ASSERT_THAT(drained->jobs, SizeIs(1));
  EXPECT_EQ(drained->jobs[0].what, "had not begun to train, and waits for other devices");
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_EQ(h_.Free("a"), 2);
  EXPECT_EQ(h_.State(job).failed_starts, 0) << "nothing has failed";
}

TEST_F(DrainTest, JobWithoutCheckpoints_IsWaitedForUnlessItIsForced) {
  const JobId job = h_.Run(node_, Asking("job", /*checkpoints=*/false));
  const absl::StatusOr<MarkedNode> drained = Drain("a");
  ASSERT_THAT(drained->jobs, SizeIs(1));
  EXPECT_TRUE(drained->jobs[0].stays);
  EXPECT_THAT(drained->jobs[0].what, HasSubstr("phalanx cancel job-1 ends it"));
  h_.Report(node_, job, 0, StepReport{.step = 4, .epoch = Epoch{1}});
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
  const absl::StatusOr<MarkedNode> forced = Drain("a", /*force=*/true);
  ASSERT_THAT(forced->jobs, SizeIs(1));
  EXPECT_FALSE(forced->jobs[0].stays);
  ASSERT_EQ(h_.Phase(job), JobPhase::kFailed);
  EXPECT_EQ(h_.State(job).failure->kind, job::FailureKind::kNodeStopped);
}

TEST_F(DrainTest, JobThatRecovers_LeavesWhenItTrainsAgain) {
  node_ = h_.Open("three", 3);
  JobRequest request = *AJobThatRecovers("job", 3);
  request.checkpoints = true;
  const JobId job = h_.Run(node_, std::make_shared<const JobRequest>(std::move(request)));
  h_.Feed(
      RankReported{node_, job, Epoch{1}, 0, StepReport{.step = 4, .epoch = Epoch{1}}, Behind(4)});
  h_.Report(node_, job, 1, kKilled);
  const absl::StatusOr<MarkedNode> drained = Drain("three");
  ASSERT_THAT(drained->jobs, SizeIs(1));
  EXPECT_TRUE(drained->jobs[0].stays);
  EXPECT_THAT(h_.Commands<Wish>(node_), IsEmpty());
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, Quiet(4, rank));
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, RankReady{}, 2);
  EXPECT_THAT(h_.Commands<Wish>(node_), IsEmpty());
  h_.Report(node_, job, 0, StepReport{.step = 5, .epoch = Epoch{2}}, 2);
  EXPECT_THAT(h_.Commands<Wish>(node_), SizeIs(1));
  EXPECT_THAT(h_.State(job).reason, HasSubstr("node three is drained"));
}

TEST_F(DrainTest, Mark_HoldsOverRestartsOfCoordinatorAndWorker) {
  ASSERT_TRUE(Cordon("a").ok());
  ASSERT_TRUE(Drain("a").ok());
  h_.Restart();
  ASSERT_TRUE(h_.node_views["a"]->mark.has_value());
  EXPECT_TRUE(h_.node_views["a"]->mark->drains);
  node_ = h_.Open("a", 2, /*incarnation=*/2);
  const JobId job = h_.Submit(Asking("job"));
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued);
  ASSERT_TRUE(Uncordon("a").ok());
  EXPECT_EQ(h_.Phase(job), JobPhase::kStarting);
  h_.Restart();
  EXPECT_FALSE(h_.node_views["a"]->mark.has_value());
}

TEST_F(DrainTest, DrainThatIsStoredAlone_IsCarriedOutAfterARestart) {
  const JobId job = h_.Run(node_, Asking("job"));
  h_.store_held = true;
  const size_t before = h_.records.size();
  h_.Feed(NodeMarkRequested{Token{++token_}, "a", NodeMark{.drains = true, .reason = "new fan"}});
  EXPECT_THAT(h_.marked, IsEmpty()) << "stored before told";
  h_.CommitUpTo(before + 1);
  h_.store_held = false;
  h_.Restart();
  EXPECT_FALSE(h_.State(job).ending.has_value());
  node_ = h_.Open("a", 2, 1, {RunningAssignment{job, Epoch{1}}});
  h_.Report(node_, job, 0, StepReport{.step = 5, .epoch = Epoch{1}});
  EXPECT_TRUE(h_.State(job).ending.has_value());
}

TEST_F(DrainTest, MarkThatIsNotStored_IsNotShown) {
  h_.store_held = true;
  h_.Feed(NodeMarkRequested{Token{++token_}, "a", NodeMark{.reason = "new fan"}});
  h_.Feed(HeartbeatReceived{.session = node_, .draining = true});  // publishes the node
  EXPECT_FALSE(h_.node_views["a"]->mark.has_value());
  h_.Commit();
  EXPECT_TRUE(h_.node_views["a"]->mark.has_value());
}

TEST_F(DrainTest, UnknownNode_AndCordonOfADrainedOne_AreRefused) {
  EXPECT_EQ(Cordon("nobody").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(Drain("a").ok());
  const absl::Status refused = Cordon("a").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("phalanx uncordon a"));
  ASSERT_TRUE(Uncordon("a").ok());
  ASSERT_TRUE(Uncordon("a").ok()) << "idempotent";
}

TEST_F(DrainTest, LargestPriority_DoesNotPreemptForDevicesOfACordonedNode) {
  JobRequest low = *Asking("low");
  low.preemptible = true;
  h_.Run(node_, std::make_shared<const JobRequest>(std::move(low)));
  ASSERT_TRUE(Cordon("a").ok());
  JobRequest high = *Asking("high");
  high.priority = 5;
  h_.Submit(std::make_shared<const JobRequest>(std::move(high)));
  EXPECT_THAT(h_.Commands<Wish>(node_), IsEmpty());
}

class AbsentNodeTest : public DrainTest {
 protected:
  AbsentNodeTest() : DrainTest(CoordinatorOptions()) {}
};

TEST_F(AbsentNodeTest, MarkedNode_StaysListedUntilItIsUncordoned) {
  h_.Open("b", 2);
  for (const NodeName name : {"a", "b"}) ASSERT_TRUE(h_.node_views.contains(name));
  ASSERT_TRUE(Cordon("a").ok());
  h_.Advance(absl::Hours(3));
  EXPECT_TRUE(h_.node_views.contains("a"));
  EXPECT_FALSE(h_.node_views.contains("b"));
  ASSERT_TRUE(Uncordon("a").ok());
  h_.Advance(absl::Seconds(1));
  EXPECT_FALSE(h_.node_views.contains("a"));
}

}  // namespace
}  // namespace phalanx::coordinator
