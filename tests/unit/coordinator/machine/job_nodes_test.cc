// What there is of a job's devices on the nodes as they are now.
#include "coordinator/machine/job_nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "core/plan/derivation.h"

namespace phalanx::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// A job of three ranks and a spare on nodes a and b, two devices each.
class JobNodesTest : public testing::Test {
 protected:
  JobNodesTest() {
    plan::Layout layout{
        .derivation = plan::kDerivation,
        .nodes = {{.node = "a", .devices = {0, 1}}, {.node = "b", .devices = {0, 1}}},
        .idle = {Rank{3}}};
    job_.state.id = JobId{1};
    job_.state.phase = job::JobPhase::kRunning;
    job_.state.request =
        std::make_shared<const JobRequest>(JobRequest{.recovers = true, .world = 3, .devices = 4});
    job_.run = MakeRun(layout);
    job_.state.layout = std::move(layout);
    AddNode("a");
    AddNode("b");
  }
  void AddNode(const NodeName& name) {
    Node& node = nodes_[name];
    node.name = name;
    node.incarnation = Incarnation{nodes_.size()};
    node.session = SessionId{nodes_.size()};
    node.device_jobs.assign(2, job_.state.id);
    node.derivation = plan::kDerivation;
  }
  void Break(const NodeName& name) { nodes_.at(name).session = SessionId{}; }

  LiveJob job_;
  NodeTable nodes_;
};

TEST_F(JobNodesTest, Device_ServesWhileItsNodeIsThere_AndItHasNotFailed) {
  EXPECT_TRUE(MayServe(nodes_, job_, 1));
  nodes_.at("a").failed_devices.insert(1);
  EXPECT_FALSE(MayServe(nodes_, job_, 1));
  EXPECT_TRUE(MayServe(nodes_, job_, 0));
  Break("a");
  EXPECT_FALSE(MayServe(nodes_, job_, 0));
  EXPECT_TRUE(MayServe(nodes_, job_, 2));
}

TEST_F(JobNodesTest, DeviceOfANodeThatIsAway_IsGoneOnceThatIsLost) {
  Break("a");
  EXPECT_FALSE(IsGone(nodes_, job_, 0)) << "it may come back in a moment";
  nodes_.at("a").lost = true;
  EXPECT_TRUE(IsGone(nodes_, job_, 0));
  nodes_.erase("a");
  EXPECT_TRUE(IsGone(nodes_, job_, 0));
}

TEST_F(JobNodesTest, RankThatIsLostAgainAndAgain_IsKeptOutOfThatProcess) {
  Node& node = nodes_.at("b");
  LiveJob::LostAgain& again = job_.lost_again[{2, "b"}];
  again = {.of = node.incarnation, .times = LiveJob::LostAgain::kTimesMax - 1};
  EXPECT_TRUE(MayServe(nodes_, job_, 2));
  ++again.times;
  EXPECT_FALSE(MayServe(nodes_, job_, 2));
  EXPECT_TRUE(IsGone(nodes_, job_, 2));
  node.incarnation = Incarnation{77};
  EXPECT_TRUE(MayServe(nodes_, job_, 2));
}

TEST_F(JobNodesTest, Spare_ServesOrIsUnfit) {
  EXPECT_EQ(SparesThatServe(nodes_, job_), 1u);
  EXPECT_THAT(UnfitSpares(nodes_, job_), IsEmpty());
  nodes_.at("b").failed_checks.insert(1);
  EXPECT_EQ(SparesThatServe(nodes_, job_), 0u);
  EXPECT_THAT(UnfitSpares(nodes_, job_), ElementsAre(Rank{3}));
}

TEST_F(JobNodesTest, DeviceOfAnOlderWorker_ServesLayoutsThatItsRanksCarryOut_AndIsGoneElse) {
  job_.recovery.emplace().lost = {0, 2};
  nodes_.at("b").derivation = plan::kDerivation - 1;
  EXPECT_FALSE(MayServe(nodes_, job_, 2));
  EXPECT_TRUE(IsGone(nodes_, job_, 2));
  EXPECT_THAT(RanksThatMayReturn(nodes_, job_), ElementsAre(Pair(Rank{0}, "a")));
  EXPECT_EQ(SparesThatServe(nodes_, job_), 0u);
  EXPECT_THAT(UnfitSpares(nodes_, job_), ElementsAre(Rank{3}));
  EXPECT_EQ(UnfitNode(nodes_, job_, *job_.state.layout, {}), "b");
  plan::Layout older = *job_.state.layout;
  older.derivation = plan::kDerivation - 1;
  job_.state.layout = older;
  EXPECT_TRUE(MayServe(nodes_, job_, 2));
  EXPECT_FALSE(IsGone(nodes_, job_, 2));
  EXPECT_THAT(UnfitSpares(nodes_, job_), IsEmpty());
  EXPECT_EQ(UnfitNode(nodes_, job_, older, {}), "");
  nodes_.at("b").derivation = plan::kDerivationOfDomains - 1;
  older.derivation = plan::kDerivationOfDomains - 1;
  older.nodes[0].domain = "rack-7";
  job_.state.layout = older;
  EXPECT_FALSE(MayServe(nodes_, job_, 2)) << "they do not read failure domains";
}

TEST_F(JobNodesTest, NodeThatIsAwaited_IsCountedOnWhateverItsWorkerWillSay) {
  Break("b");
  nodes_.at("b").incarnation = Incarnation{};  // as after a restart of the coordinator
  nodes_.at("b").derivation = plan::kOldestDerivation;
  EXPECT_FALSE(IsGone(nodes_, job_, 2));
  EXPECT_THAT(UnfitSpares(nodes_, job_), IsEmpty());
}

TEST_F(JobNodesTest, LostRank_MayReturnToItsOwnDevice_OrToOneThatIsLent) {
  job_.recovery.emplace().lost = {0, 2};
  Break("b");
  EXPECT_THAT(RanksThatMayReturn(nodes_, job_), ElementsAre(Pair(Rank{0}, "a")));
  job_.loans[2] = {.node = "c", .index = 5};
  EXPECT_THAT(RanksThatMayReturn(nodes_, job_),
              ElementsAre(Pair(Rank{0}, "a"), Pair(Rank{2}, "c")));
}

TEST_F(JobNodesTest, NodeThatHadASession_IsBroken_AndOneThatHadNoneIsAwaited) {
  EXPECT_THAT(BrokenNodes(nodes_, job_), IsEmpty());
  Break("a");
  EXPECT_THAT(BrokenNodes(nodes_, job_), ElementsAre("a"));
  job_.run->accusations.push_back({.accused = 1});
  EXPECT_EQ(AwaitedNode(nodes_, job_), nullptr);
  nodes_.at("a").incarnation = Incarnation{};  // as after a restart of the coordinator
  EXPECT_THAT(BrokenNodes(nodes_, job_), IsEmpty());
  ASSERT_NE(AwaitedNode(nodes_, job_), nullptr);
  EXPECT_EQ(AwaitedNode(nodes_, job_)->name, "a");
}

TEST_F(JobNodesTest, MissingParts_SayWhereTheyAre) {
  Break("b");
  EXPECT_EQ(MissingParts(nodes_, *job_.run, {.parts = {{0, {}}, {1, {}}}}),
            "rank 2 (node b, not connected) has not reported its part");
}

}  // namespace
}  // namespace phalanx::coordinator
