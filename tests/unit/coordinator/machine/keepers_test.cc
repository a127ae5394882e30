// Nodes without work that keep copies of a job's state, and give them to those that train.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/unit/coordinator/machine/recovering.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using job::JobPhase;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Rank 1 is alone on node m, which has nothing to do in the job once it is lost.
class KeepersTest : public RecoveringTest {
 protected:
  // Rank 1 has died, and rank 0 goes over.
  JobId LoseARank() {
    node_ = h_.Open("n", 1);
    keeper_ = h_.Open("m", 1);
    JobRequest request = *AJobThatRecovers("a", 2);
    request.document.text = "copies to hosts";
    const JobId job = h_.Submit(std::make_shared<const JobRequest>(std::move(request)));
    const std::vector<SessionId> nodes = Nodes(job);
    for (const SessionId node : nodes) h_.Prepare(node);
    for (const SessionId node : nodes) h_.Answer<Assign>(node);
    for (const int32_t rank : {0, 1})
      h_.Ready(nodes[static_cast<size_t>(rank)], job, rank, rank + 1);
    node_ = nodes[0];
    keeper_ = nodes[1];
    Step(job, 6, 1);
    h_.Report(keeper_, job, 1, kKilled);
    h_.Report(node_, job, 0, Quiet(6));
    h_.commands.clear();
    return job;
  }
  // And misses its state.
  JobId Lose() {
    const JobId job = LoseARank();
    Miss(job);
    return job;
  }
  void Miss(JobId job) {
    h_.Report(node_, job, 0, RankError{.kind = FailureKind::kStateLost, .message = "no home"}, 2);
  }
  // By rank.
  std::vector<SessionId> Nodes(JobId job) {
    std::vector<SessionId> nodes;
    for (const NodeDevices& entry : h_.State(job).layout->nodes)
      nodes.push_back(h_.NodeNamed(entry.node).session);
    return nodes;
  }
  void Find(SessionId session, JobId job, int32_t rank, std::vector<RankCopies::Pair> pairs) {
    h_.Report(session, job, rank, RankCopies{std::move(pairs)}, 3);
  }
  BeginEpoch Begun(SessionId session) { return h_.Commands<BeginEpoch>(session).back().second; }

  SessionId keeper_;
};

TEST_F(KeepersTest, NodeWithoutWork_SaysWhichCopiesItHasAndGivesThem) {
  const JobId job = Lose();
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  ASSERT_THAT(h_.State(job).layout->lost, ElementsAre(Rank{1}));
  for (const SessionId session : {node_, keeper_}) {
    const Assign assigned = h_.Commands<Assign>(session).back().second;
    EXPECT_TRUE(assigned.from_copies);
    EXPECT_THAT(assigned.keepers, ElementsAre(Rank{1}));
  }
  h_.commands.clear();
  Find(node_, job, 0, {Copied(0, 1, {4, 5})});
  EXPECT_THAT(BegunBehind(), IsEmpty());
  Find(keeper_, job, 1, {Copied(1, 1, {4, 3})});
  EXPECT_THAT(BegunBehind(), ElementsAre(4));
  for (const SessionId session : {node_, keeper_}) {
    ASSERT_TRUE(Begun(session).copies.has_value());
    EXPECT_THAT(Begun(session).copies->keepers, ElementsAre(Rank{1}));
  }
  h_.Ready(node_, job, 0, 1, 3);
  EXPECT_THAT(Events(job, "Recovered"), SizeIs(1));
  // What becomes of its process then is nobody's loss.
  h_.Report(keeper_, job, 1, RankError{.message = "nobody asks any more"}, 3);
  EXPECT_EQ(h_.State(job).epoch, Epoch{3});
}

// Somebody is to take what does not train of its ranks.
TEST_F(KeepersTest, NodeThatHasNoneOfTheEpoch_IsNamedAllTheSame) {
  const JobId job = Lose();
  Find(keeper_, job, 1, {Copied(1, 2, {})});
  Find(node_, job, 0, {Copied(0, 1, {4, 5})});
  ASSERT_TRUE(Begun(node_).copies.has_value());
  EXPECT_THAT(Begun(node_).copies->keepers, ElementsAre(Rank{1}));
}

TEST_F(KeepersTest, NodeThatSaysNothing_IsDoneWithout) {
  const JobId job = Lose();
  Find(node_, job, 0, {Copied(0, 1, {4, 5})});
  EXPECT_THAT(BegunBehind(), IsEmpty());
  for (int i = 0; i < 7; ++i) {
    h_.Advance(absl::Seconds(5));
    for (const SessionId session : {node_, keeper_}) h_.Feed(HeartbeatReceived{.session = session});
  }
  EXPECT_THAT(BegunBehind(), ElementsAre(5));
  EXPECT_THAT(Begun(node_).copies->keepers, IsEmpty());
  EXPECT_EQ(h_.State(job).epoch, Epoch{3});
}

TEST_F(KeepersTest, NodeThatCannot_IsDoneWithoutAtOnce) {
  const JobId job = Lose();
  Find(node_, job, 0, {Copied(0, 1, {4, 5})});
  h_.Report(keeper_, job, 1, RankError{.message = "no memory to fork"}, 3);
  EXPECT_THAT(BegunBehind(), ElementsAre(5));
  EXPECT_EQ(h_.State(job).epoch, Epoch{3});
}

TEST_F(KeepersTest, CoordinatorThatRestarts_AsksAgainAndTellsTheSame) {
  const JobId job = Lose();
  Find(node_, job, 0, {Copied(0, 1, {4, 5})});
  const NodeName here = h_.State(job).layout->nodes[0].node;
  const NodeName there = h_.State(job).layout->nodes[1].node;
  h_.Restart();
  node_ = h_.Open(here, 1, 1, {{job, Epoch{3}}}, 100);
  keeper_ = h_.Open(there, 1, 1, {}, 100);
  Find(node_, job, 0, {Copied(0, 1, {4, 5})});
  EXPECT_THAT(BegunBehind(), IsEmpty());
  Find(keeper_, job, 1, {Copied(1, 1, {4, 5})});
  EXPECT_THAT(BegunBehind(), ElementsAre(5));
  EXPECT_THAT(Begun(keeper_).copies->keepers, ElementsAre(Rank{1}));
  h_.Restart();
  node_ = h_.Open(here, 1, 1, {{job, Epoch{3}}}, 200);
  EXPECT_THAT(Begun(node_).copies->keepers, ElementsAre(Rank{1}));
}

TEST_F(KeepersTest, NodeThatHasNotComeBackToTheCoordinatorYet_IsAwaited) {
  const JobId job = LoseARank();
  const NodeName here = h_.State(job).layout->nodes[0].node;
  const NodeName there = h_.State(job).layout->nodes[1].node;
  h_.Restart();
  node_ = h_.Open(here, 1, 1, {{job, Epoch{2}}}, 100);
  h_.commands.clear();
  Miss(job);
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  Find(node_, job, 0, {Copied(0, 1, {4, 5})});
  EXPECT_THAT(BegunBehind(), IsEmpty());
  keeper_ = h_.Open(there, 1, 1, {}, 100);
  const auto assigned = h_.Commands<Assign>(keeper_);
  ASSERT_FALSE(assigned.empty());
  EXPECT_THAT(assigned.back().second.keepers, ElementsAre(Rank{1}));
  Find(keeper_, job, 1, {Copied(1, 1, {4, 5})});
  EXPECT_THAT(BegunBehind(), ElementsAre(5));
  EXPECT_THAT(Begun(keeper_).copies->keepers, ElementsAre(Rank{1}));
}

// The epoch is stored, and the keeper's node was not told of it.
TEST_F(KeepersTest, CoordinatorThatRestartsBeforeItHasToldANode_TellsIt) {
  const JobId job = Lose();
  const NodeName here = h_.State(job).layout->nodes[0].node;
  const NodeName there = h_.State(job).layout->nodes[1].node;
  h_.Restart();
  node_ = h_.Open(here, 1, 1, {{job, Epoch{3}}}, 100);
  h_.Report(node_, job, 0, RendezvousEntry{.key = "links/0", .value = "here"}, 3);
  h_.Advance(absl::Seconds(1));
  keeper_ = h_.Open(there, 1, 1, {}, 100);
  const auto assigned = h_.Commands<Assign>(keeper_);
  ASSERT_THAT(assigned, SizeIs(1));
  EXPECT_EQ(assigned[0].second.epoch, Epoch{3});
  EXPECT_THAT(assigned[0].second.keepers, ElementsAre(Rank{1}));
  const auto said = h_.Commands<Rendezvous>(keeper_);
  ASSERT_FALSE(said.empty());
  EXPECT_GT(said.back().first, assigned[0].first) << "it is of no use before";
  Find(node_, job, 0, {Copied(0, 1, {4, 5})});
  Find(keeper_, job, 1, {Copied(1, 1, {4, 5})});
  EXPECT_THAT(Begun(keeper_).copies->keepers, ElementsAre(Rank{1}));
}

// Its daemon has the copies still.
TEST_F(KeepersTest, ProcessThatEndsOnceItHasSaidWhatItHas_IsPlannedForAgain) {
  const JobId job = Lose();
  for (int64_t epoch = 3; epoch < 8; ++epoch) {
    h_.Report(keeper_, job, 1, RankCopies{{Copied(1, 1, {4, 3})}}, epoch);
    h_.Report(keeper_, job, 1, RankError{.message = "killed"}, epoch);
    ASSERT_EQ(h_.State(job).epoch, Epoch{epoch + 1});
    EXPECT_THAT(h_.Commands<Assign>(keeper_).back().second.keepers, ElementsAre(Rank{1}));
  }
  EXPECT_THAT(BegunBehind(), IsEmpty());
  // Not for ever.
  h_.Report(keeper_, job, 1, RankCopies{{Copied(1, 1, {4, 3})}}, 8);
  h_.Report(keeper_, job, 1, RankError{.message = "killed"}, 8);
  EXPECT_EQ(h_.State(job).epoch, Epoch{8});
  h_.Report(node_, job, 0, RankCopies{{Copied(0, 1, {4, 5})}}, 8);
  EXPECT_THAT(BegunBehind(), ElementsAre(5)) << "what it said does not count any more";
  EXPECT_THAT(Begun(node_).copies->keepers, IsEmpty());
}

TEST_F(KeepersTest, DaemonThatIsRestartedWhileItIsAwaited_IsDoneWithoutAtOnce) {
  const JobId job = Lose();
  Find(node_, job, 0, {Copied(0, 1, {4, 5})});
  EXPECT_THAT(BegunBehind(), IsEmpty());
  h_.Replace(h_.State(job).layout->nodes[1].node, 1, 2);
  EXPECT_THAT(BegunBehind(), ElementsAre(5));
}

TEST_F(KeepersTest, DaemonThatIsRestartedOnceItHasSaidWhatItHas_HasNothingAnyMore) {
  const JobId job = Lose();
  Find(keeper_, job, 1, {Copied(1, 1, {4, 3})});
  h_.Replace(h_.State(job).layout->nodes[1].node, 1, 2);
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  Find(node_, job, 0, {Copied(0, 1, {4, 5})});
  EXPECT_THAT(BegunBehind(), ElementsAre(5));
  EXPECT_THAT(Begun(node_).copies->keepers, IsEmpty());
}

TEST_F(KeepersTest, WorkerThatRefusesTheAssignment_IsDoneWithoutAtOnce) {
  const JobId job = Lose();
  Find(node_, job, 0, {Copied(0, 1, {4, 5})});
  EXPECT_THAT(BegunBehind(), IsEmpty());
  h_.Answer<Assign>(keeper_, {.code = static_cast<int32_t>(absl::StatusCode::kUnavailable),
                              .message = "the worker is stopping"});
  EXPECT_THAT(BegunBehind(), ElementsAre(5));
  EXPECT_EQ(h_.State(job).epoch, Epoch{3});
}

TEST_F(KeepersTest, LossWhileTheyAreAwaited_AsksAgain) {
  const JobId job = Lose();
  Find(keeper_, job, 1, {Copied(1, 1, {4, 5})});
  h_.Report(node_, job, 0,
            RankError{.kind = FailureKind::kPeerLost, .accused = 0, .message = "nobody is there"},
            3);
  h_.Advance(absl::Seconds(1));
  ASSERT_EQ(h_.State(job).epoch, Epoch{4});
  EXPECT_THAT(h_.Commands<Assign>(keeper_).back().second.keepers, ElementsAre(Rank{1}));
  h_.Report(node_, job, 0, RankCopies{{Copied(0, 1, {4, 5})}}, 4);
  EXPECT_THAT(BegunBehind(), IsEmpty());
  h_.Report(keeper_, job, 1, RankCopies{{Copied(1, 1, {4, 5})}}, 4);
  EXPECT_THAT(BegunBehind(), ElementsAre(5));
}

// A copy may come through one connection for minutes.
TEST_F(KeepersTest, RanksThatTakeCopies_HaveTimeForThem) {
  const JobId job = Lose();
  Find(node_, job, 0, {Copied(0, 1, {4, 5})});
  Find(keeper_, job, 1, {Copied(1, 1, {4, 5})});
  const auto pass = [&](absl::Duration time) {
    for (; time > absl::ZeroDuration(); time -= absl::Seconds(5)) {
      h_.Advance(absl::Seconds(5));
      for (const SessionId session : {node_, keeper_})
        h_.Feed(HeartbeatReceived{.session = session});
    }
  };
  pass(absl::Minutes(14));
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
  EXPECT_EQ(h_.State(job).epoch, Epoch{3});
  h_.Ready(node_, job, 0, 1, 3);
  EXPECT_THAT(Events(job, "Recovered"), SizeIs(1));
}

TEST_F(KeepersTest, WorkerOfAReleaseBeforeThatWouldTakeThem_HasNobodyAsked) {
  const JobId job = Lose();
  const NodeName here = h_.State(job).layout->nodes[0].node;
  const NodeName there = h_.State(job).layout->nodes[1].node;
  const auto open_older = [&](uint64_t session) {
    node_ = SessionId{session};
    h_.Feed(SessionOpened{node_, WorkerHello{.node = here,
                                             .incarnation = Incarnation{1},
                                             .last_command_number = 100,
                                             .devices = 1,
                                             .gives_copies = false,
                                             .running = {{job, Epoch{3}}}}});
  };
  // A coordinator that starts does not know before all are back.
  h_.Restart();
  keeper_ = h_.Open(there, 1, 1, {}, 100);
  Find(keeper_, job, 1, {Copied(1, 1, {4, 3})});
  open_older(77);
  Find(node_, job, 0, {Copied(0, 1, {4, 5})});
  EXPECT_THAT(BegunBehind(), ElementsAre(5));
  EXPECT_THAT(Begun(node_).copies->keepers, IsEmpty());
  // Lost once more on its way.
  h_.Report(node_, job, 0,
            RankError{.kind = FailureKind::kPeerLost, .accused = 0, .message = "nobody is there"},
            3);
  h_.Advance(absl::Seconds(1));
  ASSERT_EQ(h_.State(job).epoch, Epoch{4});
  EXPECT_THAT(h_.Commands<Assign>(node_).back().second.keepers, IsEmpty());
}

TEST_F(KeepersTest, WorkerOfAReleaseBefore_IsNotAsked) {
  const JobId job = Lose();
  const NodeName there = h_.State(job).layout->nodes[1].node;
  h_.Feed(SessionClosed{keeper_});
  keeper_ = SessionId{77};
  h_.Feed(SessionOpened{keeper_, WorkerHello{.node = there,
                                             .incarnation = Incarnation{1},
                                             .last_command_number = 100,
                                             .devices = 1,
                                             .gives_copies = false}});
  // Lost once more on its way.
  h_.Report(node_, job, 0,
            RankError{.kind = FailureKind::kPeerLost, .accused = 0, .message = "nobody is there"},
            3);
  h_.Advance(absl::Seconds(1));
  ASSERT_EQ(h_.State(job).epoch, Epoch{4});
  EXPECT_THAT(h_.Commands<Assign>(node_).back().second.keepers, IsEmpty());
}

}  // namespace
}  // namespace phalanx::coordinator
