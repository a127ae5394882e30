#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/machine/harness.h"

namespace phalanx::coordinator {
namespace {

using job::JobPhase;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(StartTest, NothingIsToldBeforeThePlanIsStored) {
  Harness h;
  const SessionId node = h.Open("n", 1);
  h.store_held = true;
  h.Submit(AJob("a", 1));
  EXPECT_THAT(h.Commands<PrepareData>(node), IsEmpty());
  h.Commit();
  EXPECT_EQ(h.Commands<PrepareData>(node).size(), 1u);
}

TEST(StartTest, RanksAreAssignedOnlyAfterTheDataDigestIsStored) {
  Harness h;
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Submit(AJob("a", 1));
  h.store_held = true;
  h.Prepare(node, "d1");
  EXPECT_THAT(h.Commands<Assign>(node), IsEmpty());
  h.Commit();
  const auto assigned = h.Commands<Assign>(node);
  ASSERT_EQ(assigned.size(), 1u);
  EXPECT_EQ(assigned[0].second.layout->data_digest, "d1");
  EXPECT_EQ(assigned[0].second.plan_digest, h.State(job).plan_digest);
  EXPECT_EQ(assigned[0].second.epoch, Epoch{1});
}

TEST(StartTest, TheOtherNodesPrepareAfterTheFirst) {
  Harness h;
  const SessionId a = h.Open("a", 2), b = h.Open("b", 1);
  h.Submit(AJob("j", 3));
  EXPECT_EQ(h.Commands<PrepareData>(a).size(), 1u);
  EXPECT_THAT(h.Commands<PrepareData>(b), IsEmpty());
  h.Prepare(a);
  EXPECT_EQ(h.Commands<PrepareData>(b).size(), 1u);
  EXPECT_THAT(h.Commands<Assign>(a), IsEmpty());
  h.Prepare(b);
  EXPECT_EQ(h.Commands<Assign>(a).size(), 1u);
  EXPECT_EQ(h.Commands<Assign>(b).size(), 1u);
}

TEST(StartTest, NodesThatReadOtherData_FailTheJob) {
  Harness h;
  const SessionId a = h.Open("a", 2), b = h.Open("b", 1);
  const JobId job = h.Submit(AJob("j", 3));
  h.Prepare(a, "d1");
  h.Prepare(b, "d2");
  EXPECT_EQ(h.State(job).failure->kind, job::FailureKind::kDataInvalid);
  EXPECT_EQ(h.Free("a"), 2);
}

TEST(StartTest, DataViolations_FailTheJobBeforeAnyRank) {
  Harness h;
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Submit(AJob("a", 1));
  h.Answer<PrepareData>(node,
                        {.code = 3,
                         .data_violations = {{"spec.data.shards", "x.tar", "must be readable"},
                                             {"spec.data.tokenizer", "t", "must fit"}}});
  EXPECT_EQ(h.Phase(job), JobPhase::kFailed);
  EXPECT_EQ(h.State(job).failure->kind, job::FailureKind::kDataInvalid);
  EXPECT_EQ(h.State(job).failure->message,
            "spec.data.shards: x.tar: must be readable\nspec.data.tokenizer: t: must fit");
  EXPECT_THAT(h.Commands<Assign>(node), IsEmpty());
}

TEST(StartTest, CorruptSamples_BecomeEvents) {
  Harness h;
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Submit(AJob("a", 1));
  h.Answer<PrepareData>(node, {.data_digest = "d", .corrupt_messages = {"a.tar: 7: no PNG"}});
  EXPECT_EQ(h.events[job].back().type, "CorruptSample");
  EXPECT_EQ(h.events[job].back().message, "a.tar: 7: no PNG");
}

TEST(StartTest, ShapeOfTheData_IsToldOfJobsThatThePlannerLaidOut) {
  Harness h;
  const SessionId node = h.Open("n", 2);
  const CommandFinished result{.data_digest = "d",
                               .data_shape = job::DataShape{.items = 4, .labelled_share = 0.4375}};
  h.Submit(AJob("written", 1));
  h.Answer<PrepareData>(node, result);
  EXPECT_THAT(h.data_shapes, IsEmpty());
  JobRequest request = *AJob("chosen", 1);
  request.data_key = "key";
  const JobId job = h.Submit(std::make_shared<const JobRequest>(request));
  h.Answer<PrepareData>(node, result);
  EXPECT_EQ(h.data_shapes.at("key"), *result.data_shape);
  EXPECT_EQ(h.events[job].back().type, "DataShape");
  EXPECT_EQ(h.events[job].back().message,
            "the training set has 4.00 items a sample and a label at 43.75 % of positions "
            "(batch.items, batch.labelled_share)");
}

TEST(StartTest, AssignThatFails_FailsTheJob) {
  Harness h;
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Submit(AJob("a", 1));
  h.Prepare(node);
  h.Answer<Assign>(node, {.code = 13, .message = "no such program"});
  EXPECT_EQ(h.State(job).failure->kind, job::FailureKind::kStartFailed);
  h.Answer<StopRanks>(node);
  EXPECT_EQ(h.Free("n"), 1);
}

// A store that was put back is older than its nodes: they have seen epochs that it does not know.
TEST(StartTest, EpochThatANodeHasSeen_IsPlannedAboveIt) {
  Harness h;
  const SessionId a = h.Open("a", 1), b = h.Open("b", 1);
  const JobId job = h.Submit(AJob("j", 2));
  h.Prepare(a);
  h.Prepare(b);
  h.Answer<Assign>(a, {.code = 10, .message = "epoch 1 does not run here", .epoch_seen = Epoch{4}});
  EXPECT_EQ(h.State(job).epoch, Epoch{5});
  ASSERT_EQ(h.Commands<Assign>(b).size(), 2u);
  EXPECT_EQ(h.Commands<Assign>(b).back().second.epoch, Epoch{5});
  EXPECT_GT(h.Commands<Assign>(b).back().second.fence, h.Commands<Assign>(b)[0].second.fence);
  // The other one had seen still more.
  h.Answer<Assign>(b, {.code = 10, .message = "epoch 5 does not run here", .epoch_seen = Epoch{7}});
  EXPECT_EQ(h.State(job).epoch, Epoch{8});
  for (const SessionId node : {a, b}) h.Answer<Assign>(node);
  h.Ready(a, job, 0, 1, /*epoch=*/8);
  h.Ready(b, job, 1, 2, /*epoch=*/8);
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
}

TEST(StartTest, RanksThatAreNotReadyInTime_AreNamed) {
  Harness h;
  const SessionId node = h.Open("n", 2);
  const JobId job = h.Submit(AJob("a", 2));
  h.Prepare(node);
  h.Report(node, job, 0, RankReady{});
  for (int i = 0; i < 61; ++i) {
    h.Advance(absl::Seconds(10));
    h.Feed(HeartbeatReceived{.session = node});
  }
  EXPECT_EQ(h.State(job).failure->kind, job::FailureKind::kStartTimeout);
  EXPECT_EQ(h.State(job).failure->rank, 1);
}

// A job whose ranks are told to start when the coordinator dies.
struct InterruptedStart : public ::testing::Test {
  InterruptedStart() : job(h.Submit(AJob("j", 3))) {
    const SessionId first = h.Open("a", 2), second = h.Open("b", 1);
    h.Prepare(first);
    h.Prepare(second);
    h.Restart();
    a = h.Open("a", 2, 1, {{job, Epoch{1}}}, 2);
    b = h.Open("b", 1, 1, {{job, Epoch{1}}}, 2);
  }
  static RankError Lost(int32_t accused) {
    return {.kind = job::FailureKind::kPeerLost, .accused = accused, .message = "it said nothing"};
  }
  Harness h;
  const JobId job;
  SessionId a, b;
};

TEST_F(InterruptedStart, RanksThatGaveUpMeanwhile_BeginAnewOnTheSameDevices) {
  h.Report(b, job, 2, Lost(0));
  h.Report(a, job, 1, Lost(0));
  h.Advance(absl::Seconds(1));
  EXPECT_EQ(h.State(job).epoch, Epoch{2});
  EXPECT_EQ(h.Phase(job), JobPhase::kStarting);
  EXPECT_EQ(h.Commands<Assign>(a).back().second.epoch, Epoch{2});
  EXPECT_EQ(h.Commands<Assign>(b).back().second.epoch, Epoch{2});
  h.Ready(a, job, 0, 2, 2);
  h.Ready(b, job, 2, 3, 2);
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
}

TEST_F(InterruptedStart, RankThatGivesUpOnceMore_FailsTheJob) {
  h.Report(b, job, 2, Lost(0));
  h.Advance(absl::Seconds(1));
  ASSERT_EQ(h.State(job).epoch, Epoch{2});
  h.Report(b, job, 2, Lost(0), 2);
  h.Advance(absl::Seconds(1));
  EXPECT_EQ(h.State(job).failure->kind, job::FailureKind::kPeerLost);
}

TEST_F(InterruptedStart, RankThatWasReadyAndLosesAnother_FailsTheJobThatMayHaveTrained) {
  h.Report(b, job, 2, RankReady{});
  h.Report(b, job, 2, Lost(0));
  h.Advance(absl::Seconds(1));
  EXPECT_EQ(h.State(job).failure->kind, job::FailureKind::kPeerLost);
}

TEST_F(InterruptedStart, RankThatGaveUpAndEnds_IsNoFurtherCause) {
  h.plans_held = true;
  h.Report(b, job, 2, Lost(0));
  h.Advance(absl::Seconds(1));
  h.Report(b, job, 2, RankExited{.exit_code = 1});
  h.AnswerPlans();
  h.Commit();
  EXPECT_EQ(h.State(job).epoch, Epoch{2});
  EXPECT_EQ(h.Phase(job), JobPhase::kStarting);
}

TEST(RendezvousTest, Entries_ReachEveryNodeInOneCommand) {
  Harness h;
  const SessionId a = h.Open("a", 2), b = h.Open("b", 1);
  const JobId job = h.Submit(AJob("j", 3));
  h.Prepare(a);
  h.Prepare(b);
  h.Report(a, job, 0, RendezvousEntry{"k0", "v0"});
  h.Report(b, job, 2, RendezvousEntry{"k2", "v2"});
  EXPECT_THAT(h.Commands<Rendezvous>(b), IsEmpty());
  h.Advance(absl::Milliseconds(2));
  ASSERT_EQ(h.Commands<Rendezvous>(b).size(), 1u);
  EXPECT_THAT(*h.Commands<Rendezvous>(b)[0].second.entries,
              UnorderedElementsAre(Pair("k0", "v0"), Pair("k2", "v2")));
  EXPECT_EQ(h.Commands<Rendezvous>(a).size(), 1u);
}

TEST(RendezvousTest, EntriesForManyNodes_AreOneTable) {
  Harness h;
  const SessionId a = h.Open("a", 2), b = h.Open("b", 1);
  const JobId job = h.Submit(AJob("j", 3));
  h.Prepare(a);
  h.Prepare(b);
  for (int i = 0; i < 5; ++i) {
    h.Report(a, job, 0, RendezvousEntry{absl::StrCat("k", i), std::string(600'000, 'x')});
  }
  h.Advance(absl::Milliseconds(2));
  const auto to_a = h.Commands<Rendezvous>(a), to_b = h.Commands<Rendezvous>(b);
  ASSERT_EQ(to_a.size(), 5u) << "one command is well below the limit of a message";
  ASSERT_EQ(to_b.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(&*to_a[i].second.entries, &*to_b[i].second.entries);
    EXPECT_EQ(to_a[i].second.bytes, 600'002u);
  }
}

TEST(RendezvousTest, MoreBytesThanCorrectRanksSay_FailTheJobByRank) {
  CoordinatorOptions options = Harness::Options();
  options.rendezvous_bytes_max = 1000;
  Harness h(options);
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Submit(AJob("a", 1));
  h.Prepare(node);
  for (const char* value : {"x", "y"}) {  // what is said anew takes the place of what was said
    h.Report(node, job, 0, RendezvousEntry{"k", std::string(600, *value)});
  }
  EXPECT_EQ(h.Phase(job), JobPhase::kStarting);
  h.Report(node, job, 0, RendezvousEntry{"l", std::string(600, 'x')});
  ASSERT_EQ(h.Phase(job), JobPhase::kFailed);
  EXPECT_EQ(h.State(job).failure->kind, job::FailureKind::kRankError);
  EXPECT_EQ(h.State(job).failure->rank, 0);
  EXPECT_THAT(h.State(job).failure->message,
              ::testing::HasSubstr("2 entries of 1202 bytes; at most 1048576 and 1000"));
}

TEST(RendezvousTest, RepeatedEntry_IsNotSentAgain) {
  Harness h;
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Submit(AJob("a", 1));
  h.Prepare(node);
  h.Report(node, job, 0, RendezvousEntry{"k", "v"});
  h.Advance(absl::Milliseconds(2));
  h.Report(node, job, 0, RendezvousEntry{"k", "v"});
  h.Advance(absl::Milliseconds(2));
  EXPECT_EQ(h.Commands<Rendezvous>(node).size(), 1u);
}

TEST(RendezvousTest, EntryOfAnOlderEpoch_IsDropped) {
  Harness h;
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Submit(AJob("a", 1));
  h.Prepare(node);
  h.Report(node, job, 0, RendezvousEntry{"k", "v"}, 0);
  h.Advance(absl::Milliseconds(2));
  EXPECT_THAT(h.Commands<Rendezvous>(node), IsEmpty());
}

TEST(RunTest, AllRanksReady_IsRunning) {
  Harness h;
  const SessionId node = h.Open("n", 2);
  const JobId job = h.Submit(AJob("a", 2));
  h.Prepare(node);
  h.Report(node, job, 0, RankReady{});
  EXPECT_EQ(h.Phase(job), JobPhase::kStarting);
  h.Report(node, job, 1, RankReady{});
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
}

TEST(RunTest, IdleRank_IsNotWaitedFor) {
  Harness h;
  const SessionId node = h.Open("n", 2);
  const JobId job = h.Submit(AJob("a", 2, "last rank idle"));
  h.Prepare(node);
  h.Report(node, job, 0, RankReady{});
  EXPECT_EQ(h.Phase(job), JobPhase::kRunning);
  h.Report(node, job, 0, RankSucceeded{10});
  EXPECT_EQ(h.Phase(job), JobPhase::kSucceeded);
}

TEST(RunTest, Step_IsPublishedAndNeverFalls) {
  Harness h;
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Run(node, AJob("a", 1));
  h.Report(node, job, 0, StepReport{.step = 3, .loss = 1.5, .epoch = Epoch{1}});
  h.Report(node, job, 0, StepReport{.step = 2, .loss = 9, .epoch = Epoch{1}});
  ASSERT_TRUE(h.views[job]->last_step.has_value());
  EXPECT_EQ(h.views[job]->last_step->step, 3);
}

TEST(RunTest, Steps_AreStoredRarely) {
  Harness h;
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Run(node, AJob("a", 1));
  const size_t before = h.records.size();
  for (int64_t step = 1; step <= 9; ++step) {
    h.Advance(absl::Milliseconds(100));
    h.Report(node, job, 0, StepReport{.step = step, .epoch = Epoch{1}});
  }
  EXPECT_EQ(h.records.size(), before + 1);
}

TEST(RunTest, AllRanksSucceeded_JobSucceedsAndItsProcessesAreStopped) {
  Harness h;
  const SessionId node = h.Open("n", 2);
  const JobId job = h.Run(node, AJob("a", 2));
  h.Report(node, job, 0, StepReport{.step = 10, .loss = 0.5, .epoch = Epoch{1}});
  h.Report(node, job, 0, EvaluationReport{.loss = 0.7});
  h.Report(node, job, 0, RankSucceeded{10});
  h.Report(node, job, 1, RankSucceeded{10});
  EXPECT_THAT(h.phases[job], ElementsAre(JobPhase::kQueued, JobPhase::kStarting, JobPhase::kRunning,
                                         JobPhase::kSucceeded));
  EXPECT_EQ(h.State(job).stored_step->step, 10);
  EXPECT_EQ(h.State(job).evaluation->loss, 0.7);
  EXPECT_EQ(h.Commands<StopRanks>(node).size(), 1u);
  EXPECT_EQ(h.Free("n"), 0);
  h.Answer<StopRanks>(node);
  EXPECT_EQ(h.Free("n"), 2);
}

TEST(RunTest, RankThatSucceedsEarly_FailsTheJob) {
  Harness h;
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Run(node, AJob("a", 1));
  h.Report(node, job, 0, RankSucceeded{9});
  EXPECT_EQ(h.Phase(job), JobPhase::kFailed);
}

TEST(RunTest, RankEvents_AreKeptWithinABound) {
  CoordinatorOptions options = Harness::Options();
  options.rank_events_max = 3;
  Harness h(options);
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Run(node, AJob("a", 1));
  const size_t before = h.events[job].size();
  for (int i = 0; i < 10; ++i) h.Report(node, job, 0, RankEvent{"Note", "x"});
  EXPECT_EQ(h.events[job].size(), before + 4);
  EXPECT_EQ(h.events[job].back().type, "EventsDropped");
}

TEST(RunTest, FreedDevices_GoToTheNextJob) {
  Harness h;
  const SessionId node = h.Open("n", 1);
  const JobId first = h.Run(node, AJob("a", 1));
  const JobId second = h.Submit(AJob("b", 1));
  EXPECT_EQ(h.Phase(second), JobPhase::kQueued);
  h.Report(node, first, 0, RankSucceeded{10});
  EXPECT_EQ(h.Phase(second), JobPhase::kQueued) << "the process is still there";
  h.Report(node, first, 0, RankExited{.expected = true});
  EXPECT_EQ(h.Phase(second), JobPhase::kStarting);
}

TEST(RunTest, OutputThatIsWaitedFor_IsTheReasonUntilItIsThere) {
  Harness h;
  const SessionId node = h.Open("n", 2);
  const JobId job = h.Run(node, AJob("a", 2));
  const std::string before = h.views.at(job)->reason;
  h.Report(node, job, 0, RankEvent{"OutputWaiting", "metrics.jsonl: No space left on device"});
  EXPECT_EQ(h.views.at(job)->reason,
            "OutputWaiting: rank 0: metrics.jsonl: No space left on device");
  h.Report(node, job, 1, RankReady{});
  EXPECT_THAT(h.views.at(job)->reason, testing::StartsWith("OutputWaiting"));
  h.Feed(ExplainRequested{.token = Token{500}, .job = job});
  EXPECT_THAT(h.reasons, testing::Contains(testing::StartsWith("OutputWaiting: rank 0")));
  h.Report(node, job, 0, StepReport{.step = 1, .epoch = h.State(job).epoch});
  EXPECT_EQ(h.views.at(job)->reason, before);
}

TEST(LogsTest, Fetch_AsksTheNodesOfTheRanks) {
  Harness h;
  const SessionId a = h.Open("a", 2), b = h.Open("b", 1);
  const JobId job = h.Submit(AJob("j", 3));
  h.Feed(LogsRequested{.token = Token{500}, .job = job, .ranks = {2}});
  ASSERT_EQ(h.sources.size(), 1u);
  EXPECT_EQ(h.sources[0].node, "b");
  EXPECT_THAT(h.Commands<FetchLogs>(a), IsEmpty());
  ASSERT_EQ(h.Commands<FetchLogs>(b).size(), 1u);
  EXPECT_EQ(h.Commands<FetchLogs>(b)[0].second.fetch_id, h.sources[0].fetch_id);
  EXPECT_FALSE(h.Commands<FetchLogs>(b)[0].second.ended);
  h.Feed(CancelRequested{Token{501}, job});
  h.Feed(LogsRequested{.token = Token{502}, .job = job, .ranks = {2}, .follow = true});
  ASSERT_EQ(h.Commands<FetchLogs>(b).size(), 2u);
  EXPECT_TRUE(h.Commands<FetchLogs>(b)[1].second.ended) << "its ranks write their last lines";
  EXPECT_FALSE(h.Commands<FetchLogs>(b)[1].second.follow);
}

TEST(LogsTest, NodeWithSeveralEntries_IsAskedOnce) {
  Harness h;
  const SessionId a = h.Open("a", 2), b = h.Open("b", 1);
  const Placement placement = {{"a", {0}}, {"b", {0}}, {"a", {1}}};
  h.Feed(LogsRequested{.token = Token{500}, .job = JobId{7}, .placement = placement});
  EXPECT_EQ(h.sources.size(), 2u);
  EXPECT_EQ(h.Commands<FetchLogs>(a).size(), 1u);
  EXPECT_EQ(h.Commands<FetchLogs>(b).size(), 1u);
  h.commands.clear();
  h.Feed(
      LogsRequested{.token = Token{501}, .job = JobId{7}, .ranks = {0, 2}, .placement = placement});
  ASSERT_EQ(h.Commands<FetchLogs>(a).size(), 1u);
  EXPECT_THAT(h.Commands<FetchLogs>(a)[0].second.ranks, testing::ElementsAre(0, 2));
  EXPECT_THAT(h.Commands<FetchLogs>(b), IsEmpty());
}

TEST(LogsTest, JobThatHasMoved_HasLogsWhereItWasBefore) {
  Harness h(PatientOptions());
  const SessionId a = h.Open("a", 1);
  JobRequest request = *AJob("j", 1);
  request.checkpoints = true;
  const JobId job = h.Run(a, std::make_shared<const JobRequest>(std::move(request)));
  h.Feed(SuspensionRequested{Token{500}, job, /*suspended=*/true});
  h.Report(a, job, 0, RankCheckpointPart{3, {.file = "rank-0", .digest = "d"}});
  h.Report(a, job, 0, RankSucceeded{.step = 3, .early = true});
  h.Report(a, job, 0, RankCheckpointPublished{3, "/c/3", ""});
  ASSERT_EQ(h.Phase(job), JobPhase::kQueued);
  EXPECT_THAT(*h.views[job]->placement, IsEmpty()) << "it holds no devices";
  EXPECT_THAT(*h.views[job]->earlier_nodes, testing::ElementsAre("a"));
  h.Feed(NodeMarkRequested{Token{501}, "a", NodeMark{}});
  const SessionId b = h.Open("b", 1);
  h.Feed(SuspensionRequested{Token{502}, job, /*suspended=*/false});
  ASSERT_EQ(h.State(job).placement->front().node, "b");
  EXPECT_THAT(*h.views[job]->earlier_nodes, testing::ElementsAre("a"));
  h.Feed(LogsRequested{.token = Token{503}, .job = job, .ranks = {0}});
  ASSERT_EQ(h.sources.size(), 2u);
  ASSERT_EQ(h.Commands<FetchLogs>(a).size(), 1u);
  EXPECT_THAT(h.Commands<FetchLogs>(a)[0].second.ranks, testing::ElementsAre(0));
  EXPECT_EQ(h.Commands<FetchLogs>(b).size(), 1u);
  // A follower misses nothing where no rank writes any more.
  h.Feed(SessionClosed{a});
  h.Feed(LogsRequested{.token = Token{504}, .job = job, .follow = true});
  ASSERT_TRUE(h.refused_logs.ok()) << h.refused_logs;
  ASSERT_EQ(h.sources.size(), 2u);
  EXPECT_EQ(h.sources[1].node, "a");
  EXPECT_EQ(h.sources[1].fetch_id, "") << "it is said that they are left out";
}

TEST(LogsTest, Follower_IsToldOfANodeThatIsNotThere_AndGoesOnAfterItsPlaces) {
  Harness h;
  const SessionId a = h.Open("a", 2), b = h.Open("b", 1);
  const JobId job = h.Submit(AJob("j", 3));
  LogsRequested follow{.token = Token{500}, .job = job, .follow = true};
  follow.after["b"][2] = "place";
  h.Feed(SessionClosed{b});
  h.Feed(follow);
  EXPECT_TRUE(absl::IsUnavailable(h.refused_logs));
  EXPECT_EQ(h.refused_logs.message(), "node b is not connected");
  EXPECT_THAT(h.Commands<FetchLogs>(a), IsEmpty());
  const SessionId again = h.Open("b", 1);
  h.Feed(follow);
  ASSERT_TRUE(h.refused_logs.ok());
  EXPECT_EQ(h.sources.size(), 2u);
  ASSERT_EQ(h.Commands<FetchLogs>(a).size(), 1u);
  EXPECT_THAT(h.Commands<FetchLogs>(a)[0].second.after, IsEmpty());
  const auto fetches = h.Commands<FetchLogs>(again);
  ASSERT_FALSE(fetches.empty());
  EXPECT_EQ(fetches.back().second.after, (std::map<int32_t, std::string>{{2, "place"}}));
}

TEST(LogsTest, BrokenSession_EndsTheFetchesThatItHasNotAnswered) {
  Harness h;
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Submit(AJob("a", 1));
  h.Feed(LogsRequested{.token = Token{500}, .job = job});
  h.Feed(SessionClosed{node});
  ASSERT_EQ(h.ended_logs.size(), 1u);
  EXPECT_EQ(h.ended_logs[0].fetch_id, h.sources[0].fetch_id);
}

}  // namespace
}  // namespace phalanx::coordinator
