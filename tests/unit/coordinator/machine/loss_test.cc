// Ranks are lost and training goes on without them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/unit/coordinator/machine/recovering.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using job::JobPhase;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using LossTest = RecoveringTest;

TEST_F(LossTest, KilledRank_IsLeftOutAndTheOthersGoOnBehindTheLastStepThatAnybodyKnows) {
  const JobId job = Train();
  Step(job, 5, 1);
  h_.Report(node_, job, 1, kKilled);
  const auto assigned = h_.Commands<Assign>(node_);
  ASSERT_THAT(assigned, SizeIs(1));
  EXPECT_EQ(assigned[0].second.epoch, Epoch{2});
  EXPECT_TRUE(assigned[0].second.goes_on);
  EXPECT_THAT(assigned[0].second.layout->lost, ElementsAre(Rank{1}));
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
  h_.Report(node_, job, 0, Quiet(5));
  EXPECT_THAT(BegunBehind(), IsEmpty()) << "rank 2 has not said where it stands";
  h_.Report(node_, job, 2, Quiet(6, 2));
  EXPECT_THAT(BegunBehind(), ElementsAre(6));
  EXPECT_THAT(Events(job, "Recovered"), IsEmpty());
  h_.Report(node_, job, 0, RankReady{}, 2);
  h_.Report(node_, job, 2, RankReady{}, 2);
  EXPECT_THAT(Events(job, "Recovered"),
              ElementsAre(HasSubstr(
                  "rank 1 (node n, slot 1) was killed by signal 9 (SIGKILL); step 7 redone")));
  Step(job, 9, 2);  // so near to the end nobody is taken back
  EXPECT_EQ(h_.views[job]->last_step->step, 9);
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, RankSucceeded{10}, 2);
  EXPECT_EQ(h_.Phase(job), JobPhase::kSucceeded);
}

TEST_F(LossTest, StepThatWasReported_IsGoneOnBehindThoughAllWhoKnewItAreGone) {
  const JobId job = Train();
  Step(job, 5, 1);
  h_.Report(node_, job, 0, kKilled);
  h_.Report(node_, job, 1, Quiet(4, 1));
  h_.Report(node_, job, 2, Quiet(4, 2));
  const auto begun = h_.Commands<BeginEpoch>(node_);
  ASSERT_THAT(begun, SizeIs(1));
  EXPECT_EQ(begun[0].second.start, Behind(5));
}

TEST_F(LossTest, RankThatDied_IsLeftOutBeforeItIsKnownHow) {
  const JobId job = Train();
  h_.Report(node_, job, 1, RankDied{});
  EXPECT_THAT(h_.Commands<Assign>(node_), SizeIs(1));
  EXPECT_THAT(Events(job, "RankFailed"), ElementsAre("rank 1 on node n died"));
  h_.Report(node_, job, 0, Quiet(5));
  h_.Report(node_, job, 2, Quiet(5, 2));
  EXPECT_THAT(BegunBehind(), ElementsAre(5));
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, RankReady{}, 2);
  EXPECT_THAT(Events(job, "Recovered"), SizeIs(1));
  EXPECT_THAT(Events(job, "RankExited"), IsEmpty());
  h_.Report(node_, job, 1, RankExited{.signal = 9, .log_tail = "step 4"});
  EXPECT_THAT(Events(job, "RankExited"),
              ElementsAre("rank 1 on node n was killed by signal 9 (SIGKILL)\nstep 4"));
  h_.Report(node_, job, 1, RankExited{.signal = 9, .log_tail = "step 4"});
  EXPECT_THAT(Events(job, "RankExited"), SizeIs(1)) << "a report that is repeated";
  EXPECT_THAT(h_.Commands<Assign>(node_), SizeIs(1));
}

TEST_F(LossTest, RankThatDiesWhileOthersLeave_IsLeftOutOfAnotherEpoch) {
  const JobId job = Train();
  h_.Report(node_, job, 1, kKilled);
  h_.Report(node_, job, 2, RankDied{});
  const auto assigned = h_.Commands<Assign>(node_);
  ASSERT_THAT(assigned, SizeIs(2));
  EXPECT_THAT(assigned[1].second.layout->lost, ElementsAre(Rank{1}, Rank{2}));
  h_.Report(node_, job, 2, kKilled);
  EXPECT_THAT(Events(job, "RankExited"),
              ElementsAre("rank 2 on node n was killed by signal 9 (SIGKILL)"));
}

// Ranks see the broken connection before the daemon sees the exit.
TEST_F(LossTest, RankThatLeftBeforeTheVerdict_IsNotAskedAgain) {
  const JobId job = Train();
  h_.Report(node_, job, 0, RankError{.kind = FailureKind::kPeerLost, .accused = 1});
  h_.Report(node_, job, 0, Quiet(3));
  h_.Report(node_, job, 1, kKilled);
  EXPECT_THAT(h_.Commands<Assign>(node_), SizeIs(1));
  h_.Report(node_, job, 2, Quiet(3, 2));
  EXPECT_THAT(BegunBehind(), ElementsAre(3));
}

TEST_F(LossTest, SecondLossBeforeTheEpochBegins_LeadsToAnotherEpochFromTheSameState) {
  const JobId job = Train();
  h_.Report(node_, job, 1, kKilled);
  h_.Report(node_, job, 0, Quiet(3));
  h_.Report(node_, job, 2, kKilled);
  const auto assigned = h_.Commands<Assign>(node_);
  ASSERT_THAT(assigned, SizeIs(2));
  EXPECT_THAT(assigned[1].second.layout->lost, ElementsAre(Rank{1}, Rank{2}));
  EXPECT_EQ(h_.State(job).state_epoch, Epoch{1});
  const auto begun = h_.Commands<BeginEpoch>(node_);
  ASSERT_THAT(begun, SizeIs(1));
  EXPECT_EQ(begun[0].second.epoch, Epoch{3});
  h_.Report(node_, job, 0, RankReady{}, 3);
  EXPECT_THAT(Events(job, "Recovered"), ElementsAre(HasSubstr("without ranks 1, 2")));
}

// It stood still when the epoch began, and goes on with what it learned before.
TEST_F(LossTest, StepThatWasGivenUp_IsNotTakenUpAgain_ByARankOnWhichTheEpochNeverBegan) {
  const JobId job = Train();
  h_.Report(node_, job, 1, kKilled);
  h_.Report(node_, job, 0, Quiet(3));
  h_.Report(node_, job, 2, Quiet(3, 2));
  ASSERT_THAT(BegunBehind(), ElementsAre(3));
  h_.Report(node_, job, 2, kKilled, 2);
  RankQuiet late = Quiet(5);
  late.layout_epoch = Epoch{1};
  h_.Report(node_, job, 0, late, 2);
  EXPECT_THAT(BegunBehind(), ElementsAre(3, 3));
}

TEST_F(LossTest, SecondLossWhileTheFirstIsPlanned_IsPlannedAtOnce) {
  const JobId job = Train();
  h_.plans_held = true;
  h_.Report(node_, job, 1, kKilled);
  h_.Report(node_, job, 2, kKilled);
  ASSERT_THAT(h_.plans, SizeIs(2)) << "the first one is dropped";
  EXPECT_THAT(h_.plans[1].lost, ElementsAre(Rank{1}, Rank{2}));
  h_.plans_held = false;
  h_.AnswerPlans();
  h_.Commit();
  ASSERT_THAT(h_.Commands<Assign>(node_), SizeIs(1));
}

// Its deadline would come over and over again for as long as the plan takes.
TEST_F(LossTest, RankKnownToBeLostThatIsAccusedWhileItsLossIsPlanned_ChangesNothing) {
  const JobId job = Train();
  h_.plans_held = true;
  h_.Report(node_, job, 1, kKilled);
  h_.Report(node_, job, 0, RankError{.kind = FailureKind::kPeerLost, .accused = 1});
  h_.Advance(absl::Seconds(1));
  EXPECT_THAT(h_.plans, SizeIs(1));
}

TEST_F(LossTest, NodeThatIsLost_TakesAllItsRanks) {
  const auto [a, b, job] = TrainOnTwoNodes();
  h_.commands.clear();
  h_.Feed(SessionClosed{a});
  h_.Advance(absl::Seconds(14));
  h_.Feed(HeartbeatReceived{.session = b});
  h_.Advance(absl::Seconds(2));
  const auto assigned = h_.Commands<Assign>(b);
  ASSERT_THAT(assigned, SizeIs(1));
  EXPECT_THAT(assigned[0].second.layout->lost, ElementsAre(Rank{0}, Rank{1}));
  h_.Report(b, job, 2, Quiet(3, 2));
  EXPECT_THAT(h_.Commands<BeginEpoch>(b), SizeIs(1));
}

TEST_F(LossTest, CoordinatorThatRestartsMeanwhile_AsksNobodyTwice) {
  const JobId job = Train();
  h_.Report(node_, job, 1, kKilled);
  h_.Report(node_, job, 0, Quiet(3));
  h_.Restart();
  node_ = h_.Open("n", 3, 1, {{job, Epoch{2}}}, 10);
  EXPECT_THAT(h_.Commands<Assign>(node_), IsEmpty());
  h_.Report(node_, job, 0, Quiet(3));  // the daemon says it again
  h_.Report(node_, job, 2, Quiet(3, 2));
  EXPECT_THAT(BegunBehind(), ElementsAre(3));
  h_.Restart();
  node_ = h_.Open("n", 3, 1, {{job, Epoch{2}}}, 11);
  EXPECT_THAT(BegunBehind(), ElementsAre(3)) << "the order may have been lost";
  Step(job, 4, 2);
  EXPECT_EQ(h_.views[job]->last_step->step, 4);
}

TEST_F(LossTest, AssignmentThatWentWithItsCoordinator_IsSentByTheNext) {
  const JobId job = Train();
  h_.Report(node_, job, 1, kKilled);
  h_.Restart();
  node_ = h_.Open("n", 3, 1, {{job, Epoch{1}}}, 2);
  const auto assigned = h_.Commands<Assign>(node_);
  ASSERT_THAT(assigned, SizeIs(1));
  EXPECT_EQ(assigned[0].second.epoch, Epoch{2});
  EXPECT_TRUE(assigned[0].second.goes_on);
  EXPECT_THAT(h_.Commands<StopRanks>(node_), IsEmpty()) << "they keep the state";
  h_.Report(node_, job, 0, Quiet(3));
  h_.Report(node_, job, 2, Quiet(3, 2));
  EXPECT_THAT(BegunBehind(), ElementsAre(3));
}

// A partition heals: whoever was left out of the epoch is told so, and nothing waits for it.
TEST_F(LossTest, NodeThatComesBackAfterItWasLeftOut_EndsItsRanksAndHarmsNothing) {
  const auto [a, b, job] = TrainOnTwoNodes();
  h_.Feed(SessionClosed{b});
  for (int i = 0; i < 4; ++i) {
    h_.Advance(absl::Seconds(4));
    h_.Feed(HeartbeatReceived{.session = a});
  }
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  for (const int32_t rank : {0, 1}) h_.Report(a, job, rank, Quiet(3, rank));
  for (const int32_t rank : {0, 1}) h_.Report(a, job, rank, RankReady{}, 2);
  h_.commands.clear();
  const SessionId again = h_.Open("b", 1, 1, {{job, Epoch{1}}}, 2);
  const auto assigned = h_.Commands<Assign>(again);
  ASSERT_THAT(assigned, SizeIs(1));
  EXPECT_THAT(assigned[0].second.layout->lost, ElementsAre(Rank{2}));
  h_.Report(again, job, 2, StepReport{.step = 9, .epoch = Epoch{1}});
  EXPECT_FALSE(h_.views[job]->last_step.has_value()) << "of the epoch before";
  h_.Feed(SessionClosed{again});
  const SessionId empty = h_.Open("b", 1, 1, {}, assigned[0].first);
  for (int i = 0; i < 20; ++i) {
    h_.Advance(absl::Seconds(4));
    for (const SessionId session : {a, empty}) h_.Feed(HeartbeatReceived{.session = session});
  }
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
  EXPECT_EQ(h_.State(job).epoch, Epoch{2});
}

// Its node is away all the time, and has none of those that are left.
TEST_F(LossTest, PeerWithoutAName_IsNotTakenForANodeThatWasLeftOut) {
  const auto [a, b, job] = TrainOnTwoNodes();
  h_.Feed(SessionClosed{b});
  for (int i = 0; i < 4; ++i) {
    h_.Advance(absl::Seconds(4));
    h_.Feed(HeartbeatReceived{.session = a});
  }
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  for (const int32_t rank : {0, 1}) h_.Report(a, job, rank, Quiet(3, rank));
  for (const int32_t rank : {0, 1}) h_.Report(a, job, rank, RankReady{}, 2);
  h_.Report(a, job, 0, RankError{.kind = FailureKind::kPeerLost, .message = "cut"}, 2);
  h_.Advance(absl::Seconds(1));
  EXPECT_EQ(h_.State(job).epoch, Epoch{3}) << "they try again";
  EXPECT_THAT(Events(job, "PeerLost"), ElementsAre("rank 0 on node a lost a peer: cut"));
}

TEST_F(LossTest, RanksThatKnowDifferentDecisions_EndTheJob) {
  const JobId job = Train();
  h_.Report(node_, job, 1, kKilled);
  h_.Report(node_, job, 0, Quiet(3));
  RankQuiet other = Quiet(3, 2);
  other.known.decision->gradient_scale = 1;
  h_.Report(node_, job, 2, other);
  ASSERT_EQ(h_.Phase(job), JobPhase::kFailed);
  EXPECT_THAT(h_.State(job).failure->message,
              HasSubstr("rank 2 knows step 3 to be decided differently than rank 0"));
}

TEST_F(LossTest, StateOfAnEarlierStep_EndsTheJob) {
  const JobId job = Train();
  h_.Report(node_, job, 1, kKilled);
  h_.Report(node_, job, 0, Quiet(3));
  RankQuiet other = Quiet(3, 2);
  other.homes[0].applied = 1;
  h_.Report(node_, job, 2, other);
  ASSERT_EQ(h_.Phase(job), JobPhase::kFailed);
  EXPECT_THAT(h_.State(job).failure->message,
              HasSubstr("behind step 3, and what rank 2 keeps for rank 2 of part 0 of module 0 is "
                        "of step 1"));
}

TEST_F(LossTest, JobWithoutSuchARung_Fails) {
  node_ = h_.Open("n", 2);
  const JobId job = h_.Run(node_, AJob("a", 2));
  h_.Report(node_, job, 1, kKilled);
  EXPECT_EQ(h_.Phase(job), JobPhase::kFailed);
  EXPECT_EQ(h_.State(job).failure->kind, FailureKind::kRankKilled);
}

TEST_F(LossTest, RankThatIsLostWhileStateMoves_LeadsToAnotherEpoch) {
  const JobId job = Train();
  h_.Report(node_, job, 1, kKilled);
  h_.Report(node_, job, 0, Quiet(3));
  h_.Report(node_, job, 2, Quiet(3, 2));
  h_.Report(node_, job, 0, RankReady{}, 2);
  h_.Report(node_, job, 2, kKilled, 2);
  const auto assigned = h_.Commands<Assign>(node_);
  ASSERT_THAT(assigned, SizeIs(2));
  EXPECT_THAT(assigned[1].second.layout->lost, ElementsAre(Rank{1}, Rank{2}));
  EXPECT_EQ(h_.State(job).state_epoch, Epoch{2});
  EXPECT_THAT(BegunBehind(), ElementsAre(3)) << "rank 0 has not left epoch 2";
  // On its way from one layout to the other: it knows the step and says nothing of homes.
  h_.Report(node_, job, 0, RankQuiet{.known = Behind(3), .context_ok = true}, 2);
  EXPECT_THAT(BegunBehind(), ElementsAre(3, 3));
  h_.Report(node_, job, 0, RankReady{}, 3);
  EXPECT_THAT(Events(job, "Recovered"), ElementsAre(HasSubstr("without ranks 1, 2")));
}

// Users were told of it, and a coordinator that restarts has it from its store.
TEST_F(LossTest, StepThatWasStored_IsGoneOnBehindThoughAllWhoKnewItAreGone) {
  const JobId job = Train();
  Step(job, 5, 1);
  h_.Restart();
  node_ = h_.Open("n", 3, 1, {{job, Epoch{1}}}, 2);
  h_.Report(node_, job, 0, kKilled);
  for (const int32_t rank : {1, 2}) h_.Report(node_, job, rank, Quiet(4, rank));
  const auto begun = h_.Commands<BeginEpoch>(node_);
  ASSERT_THAT(begun, SizeIs(1));
  EXPECT_EQ(begun[0].second.start, Behind(5));
}

// Whoever knew the step may be gone when the next loss comes.
TEST_F(LossTest, StepThatAnEpochBeganBehind_IsKnownToTheNext) {
  const JobId job = Train();
  h_.Report(node_, job, 1, kKilled);
  h_.Report(node_, job, 0, Quiet(3));
  h_.Report(node_, job, 2, Quiet(4, 2));
  h_.Restart();
  node_ = h_.Open("n", 3, 1, {{job, Epoch{2}}}, 10);
  h_.commands.clear();
  h_.Report(node_, job, 2, kKilled, 2);
  h_.Report(node_, job, 0, Quiet(3), 2);
  EXPECT_THAT(BegunBehind(), ElementsAre(4));
}

TEST_F(LossTest, BudgetThatIsSpent_EndsTheJobWithItsNumbers) {
  node_ = h_.Open("n", 3);
  JobRequest request = *AJobThatRecovers("a", 3);
  request.budget = {.total = 1, .without_progress = 3, .window = absl::Hours(1)};
  const JobId job = h_.Run(node_, std::make_shared<const JobRequest>(std::move(request)));
  h_.Report(node_, job, 1, kKilled);
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, Quiet(3, rank));
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, RankReady{}, 2);
  ASSERT_EQ(h_.Phase(job), JobPhase::kRunning);
  h_.Report(node_, job, 2, kKilled, 2);
  ASSERT_EQ(h_.Phase(job), JobPhase::kFailed);
  EXPECT_THAT(h_.State(job).failure->message,
              HasSubstr("as often as recovery.budget.total allows: 1 times within 1h"));
}

TEST_F(LossTest, RecoveriesWithoutAStepBetween_EndTheJob) {
  node_ = h_.Open("n", 3);
  JobRequest request = *AJobThatRecovers("a", 3);
  request.budget = {.total = 9, .without_progress = 1, .window = absl::Hours(1)};
  const JobId job = h_.Run(node_, std::make_shared<const JobRequest>(std::move(request)));
  // Its peers say that rank 1 is gone, and go on with it.
  for (int64_t epoch = 1; epoch <= 3; ++epoch) {
    h_.Report(node_, job, 0, RankError{.kind = FailureKind::kPeerLost, .accused = -1}, epoch);
    h_.Advance(absl::Seconds(1));
    ASSERT_EQ(h_.State(job).epoch, Epoch{epoch + 1});
    EXPECT_THAT(h_.State(job).layout->lost, IsEmpty());
    for (const int32_t rank : {0, 1, 2}) h_.Report(node_, job, rank, Quiet(3, rank), epoch);
    if (epoch == 3) break;
    for (const int32_t rank : {0, 1, 2}) h_.Report(node_, job, rank, RankReady{}, epoch + 1);
    ASSERT_EQ(h_.Phase(job), JobPhase::kRunning) << "epoch " << epoch;
  }
  ASSERT_EQ(h_.Phase(job), JobPhase::kFailed);
  EXPECT_THAT(h_.State(job).failure->message,
              HasSubstr("1 times in a row, which is all that recovery.budget.without_progress"));
}

TEST_F(LossTest, DeviceThatFailsWhileItsRankLeaves_IsKnownForWhatItIs) {
  const JobId job = Train();
  h_.Report(node_, job, 1, kKilled);
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  h_.Report(node_, job, 2, RankError{.kind = FailureKind::kDeviceFailed, .message = "XID 79"});
  EXPECT_THAT(h_.State(job).layout->lost, ElementsAre(Rank{1}, Rank{2}));
  EXPECT_THAT(Events(job, "RankFailed").back(), HasSubstr("XID 79"));
}

TEST_F(LossTest, RankWhoseDeviceWasNotDone_IsNotTakenForQuiet) {
  const JobId job = Train();
  h_.Report(node_, job, 2, RankQuiet{.known = Behind(3), .context_ok = false});
  h_.Report(node_, job, 1, kKilled);
  h_.Report(node_, job, 0, Quiet(3));
  EXPECT_THAT(BegunBehind(), IsEmpty());
  h_.Advance(absl::Seconds(6));
  EXPECT_THAT(h_.State(job).layout->lost, ElementsAre(Rank{1}, Rank{2}));
}

// Ranks that have done their last step say where they stand, too.
TEST_F(LossTest, RankLostBehindItsLastStep_LeavesTheOthersToFinish) {
  const JobId job = Train();
  Step(job, 10, 1);
  for (const int32_t rank : {0, 2}) {
    h_.Report(node_, job, rank, RankSucceeded{10});
    h_.Report(node_, job, rank, Quiet(10, rank));
  }
  h_.Report(node_, job, 1, kKilled);
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  EXPECT_THAT(BegunBehind(), ElementsAre(10));
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, RankReady{}, 2);
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, RankSucceeded{10}, 2);
  EXPECT_EQ(h_.Phase(job), JobPhase::kSucceeded);
}

// A rank on each of three nodes.
struct ThreeNodes {
  explicit ThreeNodes(Harness& h)
      : a(h.Open("a", 1)),
        b(h.Open("b", 1)),
        c(h.Open("c", 1)),
        job(h.Submit(AJobThatRecovers("three nodes", 3))) {
    for (const SessionId node : {a, b, c}) h.Prepare(node);
    h.Report(a, job, 0, RankReady{});
    h.Report(b, job, 1, RankReady{});
    h.Report(c, job, 2, RankReady{});
    EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
  }
  SessionId a, b, c;
  JobId job;
};

// Ranks whose daemons died at once leave as if they were told to: nobody names them.
TEST_F(LossTest, NodesThatAreLostTogetherAndUnnamed_AreAllLeftOutAtOnce) {
  const auto [a, b, c, job] = ThreeNodes(h_);
  h_.commands.clear();
  for (const SessionId gone : {b, c}) h_.Feed(SessionClosed{gone});
  h_.Report(a, job, 0, RankError{.kind = FailureKind::kPeerLost, .message = "told to stop"});
  h_.Advance(absl::Milliseconds(300));
  const auto assigned = h_.Commands<Assign>(a);
  ASSERT_THAT(assigned, SizeIs(1));
  EXPECT_EQ(assigned[0].second.epoch, Epoch{2});
  EXPECT_THAT(assigned[0].second.layout->lost, ElementsAre(Rank{1}, Rank{2}));
  EXPECT_THAT(Events(job, "RankFailed"), ElementsAre(HasSubstr("node b"), HasSubstr("node c")));
}

// The addresses of ranks on nodes that were back before it.
TEST_F(LossTest, NodeThatIsToldOfItsEpochLate_IsToldWhatWasSaidBefore) {
  const auto [a, b, c, job] = ThreeNodes(h_);
  h_.Report(c, job, 2, kKilled);
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  h_.Restart();  // before anybody was told
  const SessionId first = h_.Open("a", 1, 1, {{job, Epoch{1}}});
  ASSERT_THAT(h_.Commands<Assign>(first), SizeIs(1));
  h_.Report(first, job, 0, RendezvousEntry{"address/0", "here"}, 2);
  h_.Advance(absl::Milliseconds(100));
  const SessionId second = h_.Open("b", 1, 1, {{job, Epoch{1}}});
  const auto assigned = h_.Commands<Assign>(second);
  const auto said = h_.Commands<Rendezvous>(second);
  ASSERT_THAT(assigned, SizeIs(1));
  ASSERT_FALSE(said.empty());
  EXPECT_GT(said.back().first, assigned[0].first);
  EXPECT_EQ(said.back().second.entries->count("address/0"), 1u);
}

// The loss of a step that was skipped is none.
TEST(SettleTest, SkippedStepWithoutALoss_IsTheSameToAll) {
  RankQuiet quiet = Quiet(3);
  quiet.known.decision->verdict = StepDecision::Verdict::kSkipped;
  quiet.known.decision->loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(Settle({{0, quiet}, {1, quiet}}, quiet.known)->step(), 3);
}

TEST(SettleTest, RankThatKnowsOfNoStep_ContradictsNobody) {
  const RankQuiet adopted{.known = {.updates = 7}, .context_ok = true};
  const RankQuiet never{.context_ok = true};
  const auto start = Settle({{0, adopted}, {1, never}}, Behind(7));
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_EQ(start->step(), 7);
}

TEST(SettleTest, NothingDecided_IsTheBeginning) {
  RankQuiet quiet{.homes = {{.applied = 0}}, .context_ok = true};
  const auto start = Settle({{0, quiet}, {1, quiet}}, std::nullopt);
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_EQ(*start, EpochStart{});
}

}  // namespace
}  // namespace phalanx::coordinator
