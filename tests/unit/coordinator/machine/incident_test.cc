// What befalls a job, as it is recorded and told.
#include "coordinator/machine/incident.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/machine/recovering.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using job::JobPhase;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;
using Phase = Incident::Phase;

using Times = std::pair<std::optional<int64_t>, std::optional<int64_t>>;

Times TimesOf(const Incident& incident, Phase phase) {
  return {incident[phase].begin, incident[phase].end};
}

class IncidentTest : public RecoveringTest {
 protected:
  // A job that has steps enough, and stays without whom it lost.
  JobId TrainAlone() {
    node_ = h_.Open("n", 3);
    JobRequest request = *AJobThatRecovers("a", 3);
    request.rejoins = false;
    request.output = "/out";
    const JobId job = h_.Run(node_, std::make_shared<const JobRequest>(std::move(request)));
    h_.commands.clear();
    return job;
  }
  // Rank 1 dies at 0 ms, the plan is there at 20 ms, others are quiet at 25 ms, behind step 5.
  void Lose(JobId job) {
    Step(job, 5, 1);
    h_.plans_held = true;
    h_.Report(node_, job, 1, RankDied{});
    h_.Advance(absl::Milliseconds(20));
    h_.plans_held = false;
    h_.AnswerPlans();
    h_.Commit();
    h_.Report(node_, job, 0, Quiet(5));
    h_.Advance(absl::Milliseconds(5));
    h_.Report(node_, job, 2, Quiet(5, 2));
  }
  // Ready at 125 and at 135 ms.
  void Resume(JobId job, int64_t epoch = 2) {
    h_.Advance(absl::Milliseconds(100));
    h_.Report(node_, job, 0, RankReady{.connected = 0.03, .state = 0.08, .ready = 0.09}, epoch);
    h_.Advance(absl::Milliseconds(10));
    h_.Report(node_, job, 2, RankReady{.connected = 0.02, .state = 0.1, .ready = 0.11}, epoch);
  }
  // How rank 1 ended is not told.
  JobId LoseAndTrainOn() {
    const JobId job = TrainAlone();
    Lose(job);
    Resume(job);
    Step(job, 6, 2);
    EXPECT_THAT(Events(job, "Verdict"), IsEmpty());
    return job;
  }
  // One rank on each of two nodes, of which that on b is killed behind step 7: it cannot go on
  // without.
  JobId WaitForRank1() {
    node_ = h_.Open("a", 1);
    const SessionId b = h_.Open("b", 1);
    JobRequest request = *AJobThatRecovers("two nodes", 2);
    request.waits = true;
    request.hold = absl::Minutes(10);
    request.document.text = "needs every rank";
    const JobId job = h_.Submit(std::make_shared<const JobRequest>(std::move(request)));
    for (const SessionId node : {node_, b}) h_.Prepare(node);
    for (const SessionId node : {node_, b}) h_.Answer<Assign>(node);
    h_.Report(node_, job, 0, RankReady{});
    h_.Report(b, job, 1, RankReady{});
    for (const int64_t step : {1, 4, 7}) Step(job, step, 1);
    h_.Feed(RankReported{b, job, Epoch{1}, 1, kKilled});
    return job;
  }
  const Incident& Last(JobId job) { return *h_.incidents[job].back(); }
};

// The verdict is told once, and says how the process ended.
TEST_F(IncidentTest, ExitThatIsToldWhenTheJobTrainsAgain_IsTheVerdict) {
  const JobId job = LoseAndTrainOn();
  EXPECT_EQ(Last(job).confidence, Incident::Confidence::kLikely);
  h_.Report(node_, job, 1, RankExited{.exit_code = 1});
  EXPECT_EQ(Last(job).cause.kind, FailureKind::kRankExited);
  EXPECT_EQ(Last(job).confidence, Incident::Confidence::kCertain);
  EXPECT_THAT(Events(job, "Verdict"), ElementsAre(HasSubstr("RankExited (certain)")));
}

TEST_F(IncidentTest, ExitThatNobodyTells_LeavesTheVerdictAsItIsKnown) {
  const JobId job = LoseAndTrainOn();
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, RankSafe{}, 2);
  EXPECT_THAT(Events(job, "Verdict"), ElementsAre(HasSubstr("RankKilled (likely)")));
}

TEST_F(IncidentTest, ExitThatIsToldBehindAnotherLoss_IsOfItsOwnIncident) {
  const JobId job = LoseAndTrainOn();
  h_.Report(node_, job, 2, RankDied{}, 2);
  ASSERT_THAT(h_.State(job).incidents, SizeIs(2));
  h_.Report(node_, job, 1, RankExited{.exit_code = 1});
  EXPECT_EQ(h_.State(job).incidents[0]->cause.kind, FailureKind::kRankExited);
  EXPECT_EQ(h_.State(job).incidents[1]->cause.kind, FailureKind::kRankKilled);
  h_.Report(node_, job, 2, RankExited{.signal = 11}, 2);
  EXPECT_EQ(h_.State(job).incidents[1]->cause.kind, FailureKind::kRankCrashed);
}

TEST_F(IncidentTest, KilledRank_IsRecordedFromTheFirstEvidenceUntilStateIsSafe) {
  const JobId job = TrainAlone();
  Lose(job);
  h_.Report(node_, job, 1, RankExited{.signal = 9, .log_tail = "step 5"});
  Resume(job);
  EXPECT_THAT(h_.Commands<WriteIncident>(node_), IsEmpty()) << "no step is decided behind it";
  h_.Advance(absl::Milliseconds(5));
  Step(job, 6, 2);
  ASSERT_THAT(h_.incidents[job], SizeIs(1));
  const Incident first = Last(job);
  EXPECT_EQ(first.number, 1);
  EXPECT_EQ(first.kind, Incident::Kind::kLoss);
  EXPECT_EQ(first.from, Epoch{1});
  EXPECT_EQ(first.to, Epoch{2});
  EXPECT_EQ(first.cause.kind, FailureKind::kRankKilled);
  EXPECT_EQ(first.cause.rank, 1);
  EXPECT_EQ(first.cause.signal, 9);
  EXPECT_EQ(first.device, 1);
  EXPECT_EQ(first.confidence, Incident::Confidence::kCertain);
  EXPECT_THAT(first.evidence, ElementsAre("rank 1 on node n died",
                                          "rank 1 on node n was killed by signal 9 (SIGKILL)"));
  EXPECT_THAT(first.lost, ElementsAre(1));
  EXPECT_THAT(plan::ToWords(first.changes), ElementsAre("language dp 3 -> 2"));
  EXPECT_EQ(first.decided_step, 5);
  EXPECT_EQ(first.steps_redone, 1);
  EXPECT_EQ(TimesOf(first, Phase::kDetected), Times(0, 0));
  EXPECT_EQ(TimesOf(first, Phase::kPlanned), Times(0, 20'000));
  EXPECT_EQ(TimesOf(first, Phase::kSurvivorsQuiet), Times(0, 25'000));
  EXPECT_EQ(TimesOf(first, Phase::kCommunicatorsReady), Times(20'000, 65'000));
  EXPECT_EQ(first[Phase::kCommunicatorsReady].slowest, 0);
  EXPECT_EQ(TimesOf(first, Phase::kStateMoved), Times(25'000, 125'000));
  EXPECT_EQ(first[Phase::kStateMoved].slowest, 2);
  EXPECT_EQ(TimesOf(first, Phase::kResumed), Times(115'000, 135'000));
  EXPECT_EQ(first[Phase::kResumed].slowest, 2);
  EXPECT_EQ(TimesOf(first, Phase::kFirstStep), Times(135'000, 140'000));
  EXPECT_EQ(TimesOf(first, Phase::kSafeAgain), Times(25'000, std::nullopt));
  ASSERT_THAT(h_.Commands<WriteIncident>(node_), SizeIs(1));
  const WriteIncident write = h_.Commands<WriteIncident>(node_)[0].second;
  EXPECT_EQ(write.rank, 0) << "that reports steps";
  EXPECT_EQ(write.output, "/out");
  EXPECT_EQ(*write.incident, first);

  h_.Report(node_, job, 0, RankSafe{}, 2);
  h_.Advance(absl::Milliseconds(50));
  h_.Report(node_, job, 2, RankSafe{}, 2);
  EXPECT_EQ(TimesOf(Last(job), Phase::kSafeAgain), Times(25'000, 190'000));
  EXPECT_EQ(Last(job)[Phase::kSafeAgain].slowest, 2);
  ASSERT_THAT(h_.Commands<WriteIncident>(node_), SizeIs(2)) << "it is written again";
  EXPECT_EQ(*h_.Commands<WriteIncident>(node_)[1].second.incident, Last(job));
  EXPECT_EQ(*h_.State(job).incidents.back(), Last(job));
  h_.Report(node_, job, 2, RankSafe{}, 2);  // said again
  EXPECT_THAT(h_.Commands<WriteIncident>(node_), SizeIs(2));
}

TEST_F(IncidentTest, EventAndWhy_SayTheSameSentenceAndTheVerdict) {
  const JobId job = TrainAlone();
  Lose(job);
  h_.Report(node_, job, 1, RankExited{.signal = 9});
  Resume(job);
  const std::string sentence =
      "rank 1 (node n, slot 1) was killed by signal 9 (SIGKILL); step 6 redone, language dp 3 -> "
      "2; back after 0.1 s";
  EXPECT_THAT(Events(job, "Recovered"), ElementsAre(sentence));
  EXPECT_THAT(Events(job, "Verdict"),
              ElementsAre(AllOf(StartsWith("RankKilled (certain): rank 1 (node n, slot 1) was "),
                                HasSubstr("; evidence: rank 1 on node n died | "),
                                HasSubstr("; what to do: "))));
  EXPECT_THAT(h_.Explain(job), AllOf(Contains("incident 1: " + sentence),
                                     Contains(StartsWith("its verdict: RankKilled (certain): "))));
}

TEST_F(IncidentTest, RankThatStoodStill_IsCountedFromTheLastStep) {
  const JobId job = TrainAlone();
  Step(job, 5, 1);
  h_.Advance(absl::Seconds(5));
  h_.Report(node_, job, 1, RankError{.kind = FailureKind::kRankHung, .message = "it hangs"});
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, Quiet(5, rank));
  Resume(job);
  EXPECT_EQ(TimesOf(Last(job), Phase::kDetected), Times(0, 5'000'000));
  EXPECT_THAT(Events(job, "Recovered"), ElementsAre(HasSubstr("; back after 5.1 s")));
}

TEST_F(IncidentTest, JobThatFails_HasAVerdictToo) {
  const JobId job = TrainAlone();
  Step(job, 5, 1);
  h_.Report(node_, job, 1, RankError{.kind = FailureKind::kOutOfMemory, .message = "no 2 GiB"});
  ASSERT_EQ(h_.Phase(job), job::JobPhase::kFailed);
  EXPECT_THAT(Events(job, "Verdict"), ElementsAre(StartsWith("OutOfMemory (certain): rank 1")));
}

// What is left may need more memory, which its first step shows.
TEST_F(IncidentTest, JobThatFailsOfAnotherCauseBehindALoss_HasAVerdictOfEach) {
  const JobId job = TrainAlone();
  Lose(job);
  Resume(job);
  h_.Report(node_, job, 0, RankError{.kind = FailureKind::kOutOfMemory, .message = "no 2 GiB"}, 2);
  ASSERT_EQ(h_.Phase(job), job::JobPhase::kFailed);
  EXPECT_THAT(Events(job, "Verdict"),
              ElementsAre(HasSubstr("rank 1"), StartsWith("OutOfMemory (certain): rank 0")));
  ASSERT_THAT(h_.incidents[job], SizeIs(2));
  EXPECT_EQ(Last(job).cause.kind, FailureKind::kOutOfMemory);
}

TEST_F(IncidentTest, ExitThatIsToldLate_IsWrittenToo) {
  const JobId job = TrainAlone();
  Lose(job);
  Resume(job);
  EXPECT_THAT(Events(job, "Recovered"), ElementsAre(StartsWith("rank 1 (node n, slot 1) died; ")));
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, RankSafe{}, 2);
  Step(job, 6, 2);
  ASSERT_TRUE(Last(job).IsClosed());
  h_.Report(node_, job, 1, RankExited{.signal = 9});
  EXPECT_EQ(Last(job).cause.signal, 9);
  EXPECT_THAT(h_.Commands<WriteIncident>(node_), SizeIs(2));
  h_.Report(node_, job, 1, RankExited{.signal = 9});
  EXPECT_THAT(h_.Commands<WriteIncident>(node_), SizeIs(2));
}

TEST_F(IncidentTest, SeveralLossesOnTheWay_AreOneIncident) {
  const JobId job = TrainAlone();
  Step(job, 5, 1);
  h_.Report(node_, job, 1, kKilled);
  h_.Report(node_, job, 0, Quiet(5));
  h_.Advance(absl::Milliseconds(30));
  h_.Report(node_, job, 2, kKilled);
  h_.Report(node_, job, 0, RankReady{}, 3);
  Step(job, 6, 3);
  ASSERT_THAT(h_.incidents[job], SizeIs(1));
  EXPECT_EQ(Last(job).from, Epoch{1});
  EXPECT_EQ(Last(job).to, Epoch{3});
  EXPECT_EQ(Last(job).cause.rank, 1) << "the first";
  EXPECT_THAT(Last(job).lost, ElementsAre(1, 2));
  EXPECT_THAT(Last(job).evidence, SizeIs(2));
  EXPECT_THAT(plan::ToWords(Last(job).changes), ElementsAre("language dp 3 -> 1"));
  EXPECT_EQ(TimesOf(Last(job), Phase::kPlanned), Times(0, 30'000));
  EXPECT_EQ(TimesOf(Last(job), Phase::kCommunicatorsReady), Times(30'000, std::nullopt))
      << "ranks of before say nothing of it";
  EXPECT_THAT(Events(job, "Recovered"), ElementsAre(HasSubstr("without ranks 1, 2, ")));
}

TEST_F(IncidentTest, AccusationsThatWait_BeginItAndAreItsEvidence) {
  const JobId job = TrainAlone();
  h_.Report(node_, job, 0,
            RankError{.kind = FailureKind::kPeerLost, .accused = 1, .message = "closed"});
  h_.Report(node_, job, 2,
            RankError{.kind = FailureKind::kPeerLost, .accused = 1, .message = "closed"});
  h_.Advance(absl::Milliseconds(300));
  ASSERT_THAT(h_.incidents[job], SizeIs(1));
  EXPECT_EQ(TimesOf(Last(job), Phase::kDetected), Times(0, 300'000));
  EXPECT_EQ(Last(job).confidence, Incident::Confidence::kLikely);
  EXPECT_THAT(Last(job).evidence,
              ElementsAre("rank 0 on node n lost its connection to rank 1 on node n: closed",
                          "rank 2 on node n lost its connection to rank 1 on node n: closed"));
}

// It left because another one did.
TEST_F(IncidentTest, RankThatCannotSayWhomItLost_IsNoEvidenceBesideADeath) {
  const JobId job = TrainAlone();
  Step(job, 5, 1);
  h_.Report(node_, job, 2, RankError{.kind = FailureKind::kPeerLost, .message = "it left"});
  h_.Report(node_, job, 1, RankDied{});
  EXPECT_THAT(Last(job).evidence, ElementsAre("rank 1 on node n died"));
}

TEST_F(IncidentTest, CoordinatorThatRestartsOnTheWay_GoesOnWithWhatWasKnown) {
  const JobId job = TrainAlone();
  Lose(job);
  h_.Advance(absl::Milliseconds(5));
  h_.Restart();
  node_ = h_.Open("n", 3, 1, {{job, Epoch{2}}}, 10);
  ASSERT_THAT(h_.incidents[job], SizeIs(1)) << "the new one tells it";
  Step(job, 6, 2);
  EXPECT_EQ(Last(job).number, 1);
  EXPECT_EQ(Last(job).cause.rank, 1);
  EXPECT_EQ(TimesOf(Last(job), Phase::kSurvivorsQuiet), Times(0, 25'000));
  EXPECT_TRUE(Last(job).Has(Phase::kFirstStep));
  EXPECT_FALSE(Last(job).Has(Phase::kCommunicatorsReady)) << "that was not heard";
  EXPECT_THAT(Last(job).lost, ElementsAre(1));
  EXPECT_THAT(Events(job, "Recovered"), ElementsAre(HasSubstr("; its first step after 0.0")));
  EXPECT_THAT(h_.Commands<WriteIncident>(node_), SizeIs(1));
}

TEST_F(IncidentTest, CoordinatorThatRestartsBeforeOthersAreQuiet_KeepsTheCause) {
  const JobId job = TrainAlone();
  Step(job, 5, 1);
  h_.Report(node_, job, 1, kKilled);
  h_.Restart();
  node_ = h_.Open("n", 3, 1, {{job, Epoch{2}}}, 10);
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, Quiet(5, rank));
  Resume(job);
  Step(job, 6, 2);
  EXPECT_EQ(Last(job).cause.rank, 1);
  EXPECT_TRUE(Last(job).Has(Phase::kStateMoved));
  EXPECT_THAT(Events(job, "Recovered"), ElementsAre(StartsWith("rank 1 (node n, slot 1) was ")));
  EXPECT_THAT(h_.incidents[job], SizeIs(1));
}

// Who is lost before it is known to be in a layout, and which steps there were, is stored with the
// verdict.
TEST_F(IncidentTest, CoordinatorThatRestartsWhileAJobWaits_KnowsWhoWasLostAndWhichStepsThereWere) {
  const JobId job = WaitForRank1();
  EXPECT_THAT(Last(job).lost, ElementsAre(1));
  EXPECT_THAT(h_.views[job]->reason, "waits for rank 1");
  h_.Restart();
  EXPECT_EQ(h_.views[job]->last_step->step, 7);
  EXPECT_THAT(h_.views[job]->reason, HasSubstr("waits for what it had lost before"));
  node_ = h_.Open("a", 1, 1, {{job, Epoch{1}}}, 9);
  const SessionId b = h_.Open("b", 1, 1, {{job, Epoch{1}}}, 9);
  h_.Feed(RankReported{b, job, Epoch{1}, 1, kKilled});
  EXPECT_THAT(h_.views[job]->reason, "waits for rank 1");
  h_.Prepare(b);
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  h_.Report(node_, job, 0, Quiet(7));
  h_.Report(node_, job, 0, RankReady{}, 2);
  h_.Report(b, job, 1, RankReady{}, 2);
  EXPECT_THAT(Last(job).lost, IsEmpty());
  EXPECT_THAT(Last(job).returned, ElementsAre(1));
  EXPECT_THAT(Events(job, "Returned"),
              ElementsAre(HasSubstr("; step 8 redone, rank 1 came back; back after")));
  EXPECT_THAT(Events(job, "Recovered"), IsEmpty());
}

// Who was lost before it is of another incident.
TEST_F(IncidentTest, CoordinatorThatRestartsBehindAnotherLoss_NamesWhoIsLostInThisOne) {
  const JobId job = TrainAlone();
  Lose(job);
  Resume(job);
  Step(job, 6, 2);
  h_.Report(node_, job, 2, kKilled, 2);
  ASSERT_THAT(Lost(job), ElementsAre(Rank{1}, Rank{2}));
  h_.Restart();
  node_ = h_.Open("n", 3, 1, {{job, Epoch{3}}}, 10);
  h_.Report(node_, job, 0, Quiet(6), 2);
  h_.Report(node_, job, 0, RankReady{}, 3);
  ASSERT_THAT(h_.incidents[job], SizeIs(2));
  EXPECT_THAT(Last(job).lost, ElementsAre(2));
  EXPECT_THAT(Last(job).returned, IsEmpty());
}

// A job that is cancelled waits no more.
TEST_F(IncidentTest, JobThatEndsBehindAnotherCoordinator_DoesNotSayThatItWaits) {
  const JobId job = WaitForRank1();
  h_.Restart();
  ASSERT_THAT(h_.views[job]->reason, HasSubstr("waits for what it had lost before"));
  ASSERT_TRUE(h_.Cancel(job, /*checkpoint=*/false).ok());
  EXPECT_EQ(h_.Phase(job), JobPhase::kCancelled);
  EXPECT_THAT(h_.views[job]->reason, HasSubstr("cancelled"));
}

TEST_F(IncidentTest, RankThatIsToComeBack_HasNotCome) {
  Incident incident;
  incident.cause = {.kind = FailureKind::kRankKilled, .rank = 0, .message = "rank 0 died"};
  incident.returned = {0};
  EXPECT_THAT(Summary(incident), EndsWith("; rank 0 is to come back; not back yet"));
  incident.returned = {0, 1};
  EXPECT_THAT(Summary(incident), EndsWith("; ranks 0, 1 are to come back; not back yet"));
  incident[Phase::kResumed].end = 100'000;
  EXPECT_THAT(Summary(incident), EndsWith("; ranks 0, 1 came back; back after 0.1 s"));
}

TEST_F(IncidentTest, RankThatComesBack_IsAnIncidentOfItsOwnAndEndsTheOneBefore) {
  const JobId job = Train();
  Lose(job);
  Resume(job);
  h_.commands.clear();
  Step(job, 6, 2);
  h_.Prepare(node_);  // so rank 1 is taken back at once
  ASSERT_EQ(h_.State(job).epoch, Epoch{3});
  ASSERT_THAT(h_.incidents[job], SizeIs(2));
  EXPECT_EQ(h_.incidents[job][0]->not_safe, "incident 2 came before");
  EXPECT_EQ(Last(job).kind, Incident::Kind::kReturn);
  h_.Advance(absl::Seconds(1));  // while they train
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, Quiet(6, rank), 2);
  for (const int32_t rank : {0, 1, 2}) h_.Report(node_, job, rank, RankReady{}, 3);
  Step(job, 7, 3);
  EXPECT_THAT(Last(job).returned, ElementsAre(1));
  EXPECT_THAT(plan::ToWords(Last(job).changes), ElementsAre("language dp 2 -> 3"));
  EXPECT_THAT(Events(job, "Returned"),
              ElementsAre("rank 1 came back; step 7 redone, language dp 2 -> 3; back after 1.0 s, "
                          "training paused for 0.000 s"));
  EXPECT_EQ(Verdict(Last(job)), "");
}

TEST_F(IncidentTest, StateThatGetsNoSecondHome_IsNotWaitedFor) {
  const JobId job = TrainAlone();
  Lose(job);
  Resume(job);
  h_.Report(node_, job, 2, RankSafe{"no memory"}, 2);
  Step(job, 6, 2);
  EXPECT_EQ(Last(job).not_safe, "rank 2: no memory");
  EXPECT_TRUE(Last(job).IsClosed());
}

TEST_F(IncidentTest, JobThatEndsMeanwhile_SaysWhySafetyIsNotKnown) {
  const JobId job = TrainAlone();
  Lose(job);
  Resume(job);
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, RankSucceeded{10}, 2);
  ASSERT_EQ(h_.Phase(job), JobPhase::kSucceeded);
  EXPECT_THAT(Last(job).not_safe, StartsWith("the job ended: all ranks have done 10 steps"));
}

TEST_F(IncidentTest, OldestOfMany_AreLetGo) {
  std::vector<IncidentPtr> incidents;
  for (int64_t number = 1; number <= 70; ++number)
    Keep(incidents, std::make_shared<const Incident>(Incident{.number = number}));
  EXPECT_THAT(incidents, SizeIs(kIncidentsMax));
  EXPECT_EQ(incidents.front()->number, 7);
}

TEST(SummaryTest, DeviceOfAGpu_DiedOfItsError) {
  Incident incident{.cause = {.kind = FailureKind::kDeviceFailed,
                              .rank = 3,
                              .node = "b",
                              .message = "rank 3: XID 79\nand its log"},
                    .device_kind = job::DeviceKind::kGpu,
                    .device = 1,
                    .lost = {3},
                    .changes = {{"vision", -1, 4, 3}, {"language", 1, 2, 1}},
                    .decided_step = 180,
                    .steps_redone = 1};
  EndPhase(incident, Phase::kResumed, incident.detected + absl::Milliseconds(912));
  EXPECT_EQ(Summary(incident),
            "rank 3 (node b, GPU 1) died: XID 79; step 181 redone, vision dp 4 -> 3, language tp 2 "
            "-> 1 in replica 1; back after 0.9 s");
}

TEST(SummaryTest, LossThatNothingCameBackFrom_RedidNothing) {
  Incident incident{.cause = {.kind = FailureKind::kDeviceFailed, .rank = 3},
                    .lost = {3},
                    .decided_step = 180,
                    .steps_redone = 3};
  EXPECT_THAT(Summary(incident), EndsWith("; steps 181 to 183 to be redone; not back yet"));
  incident.not_safe = "the job has failed";
  EXPECT_THAT(Summary(incident), EndsWith("; steps 181 to 183 not redone; not gone on from"));
}

TEST_F(IncidentTest, NodeThatIsLost_NamesTheFirstRankThatTrainedThere) {
  node_ = h_.Open("a", 2);
  const SessionId b = h_.Open("b", 2);
  const JobId job = h_.Submit(AJobThatRecovers("j", 4));
  for (const SessionId node : {node_, b}) h_.Prepare(node);
  for (const SessionId node : {node_, b}) h_.Answer<Assign>(node);
  h_.Ready(node_, job, 0, 2);
  h_.Ready(b, job, 2, 4);
  Step(job, 5, 1);
  h_.Report(b, job, 2, kKilled);
  for (const int32_t rank : {0, 1, 3}) h_.Report(rank < 2 ? node_ : b, job, rank, Quiet(5, rank));
  h_.Ready(node_, job, 0, 2, 2);
  h_.Ready(b, job, 3, 4, 2);
  Step(job, 6, 2);
  h_.Replace("b", 2, /*incarnation=*/2);
  ASSERT_THAT(h_.State(job).incidents, SizeIs(2));
  EXPECT_EQ(h_.State(job).incidents.back()->cause.rank, 3);
}

}  // namespace
}  // namespace phalanx::coordinator
