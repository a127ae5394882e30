// Nodes are lost while they prepare the data of a job, of which nothing has started.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/plan/derivation.h"
#include "tests/unit/coordinator/machine/harness.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using job::JobPhase;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

JobRequestPtr AJobThatWaits(const std::string& name, int32_t devices) {
  JobRequest request = *AJob(name, devices);
  request.waits = true;
  return std::make_shared<const JobRequest>(std::move(request));
}

class PrepareLossTest : public testing::Test {
 protected:
  // The node's session breaks and it stays away for as long as it is waited for; the others live.
  void Lose(SessionId node, const std::vector<SessionId>& others = {}) {
    h_.Feed(SessionClosed{node});
    for (int i = 0; i < 4; ++i) {
      h_.Advance(absl::Seconds(4));
      for (const SessionId other : others) h_.Feed(HeartbeatReceived{.session = other});
    }
  }
  std::vector<std::string> Events(JobId job, absl::string_view type) {
    std::vector<std::string> messages;
    for (const JobEvent& event : h_.events[job]) {
      if (event.type == type) messages.push_back(event.message);
    }
    return messages;
  }

  Harness h_;
};

TEST_F(PrepareLossTest, NodeThatIsTurnedAway_SaysWhy_UntilItIsLetInAgain) {
  const SessionId a = h_.Open("a", 1);
  const JobId job = h_.Submit(AJob("j", 1));
  h_.Feed(SessionClosed{a, "the certificate is revoked"});
  EXPECT_EQ(h_.NodeNamed("a").View().refused, "the certificate is revoked");
  for (int i = 0; i < 4; ++i) h_.Advance(absl::Seconds(4));
  EXPECT_THAT(Events(job, "NodeLost"),
              ElementsAre(StartsWith("node a has been away for 15s: the certificate is revoked")));
  h_.Open("a", 1);
  EXPECT_EQ(h_.NodeNamed("a").View().refused, "");
}

class PrepareFailureTest : public PrepareLossTest {
 protected:
  void Fail(SessionId node) {
    h_.Answer<PrepareData>(node, {.code = static_cast<int32_t>(absl::StatusCode::kUnavailable),
                                  .message = "/state/indexes: No space left on device"});
  }
};

TEST_F(PrepareFailureTest, JobStartsOnAnotherNode_AndTheOneThatFailedRests) {
  const SessionId a = h_.Open("a", 2);
  const JobId job = h_.Submit(AJob("j", 2));
  ASSERT_THAT(h_.Commands<PrepareData>(a), SizeIs(1));
  const SessionId b = h_.Open("b", 2);
  Fail(a);
  ASSERT_EQ(h_.Phase(job), JobPhase::kStarting);
  EXPECT_EQ(h_.State(job).placement->front().node, "b");
  EXPECT_THAT(Events(job, "PrepareFailed"), ElementsAre("/state/indexes: No space left on device"));
  EXPECT_THAT(h_.Commands<PrepareData>(b), SizeIs(1));
  const JobId other = h_.Submit(AJob("k", 2));
  EXPECT_EQ(h_.Phase(other), JobPhase::kQueued);
  EXPECT_THAT(h_.Explain(other),
              ::testing::Contains("node a matches but is unfit: cannot prepare data: "
                                  "/state/indexes: No space left on device"));
  for (absl::Duration time; time < Harness::Options().unfit_delay; time += absl::Seconds(4)) {
    h_.Advance(absl::Seconds(4));
    for (const SessionId node : {a, b}) h_.Feed(HeartbeatReceived{.session = node});
  }
  EXPECT_EQ(h_.Phase(other), JobPhase::kStarting);
  EXPECT_EQ(h_.State(other).placement->front().node, "a");
}

TEST_F(PrepareFailureTest, AnotherProcessOfTheNode_IsTriedAtOnceAndIsNotSuspectLater) {
  const SessionId a = h_.Open("a", 2);
  const JobId job = h_.Submit(AJobThatWaits("j", 2));
  Fail(a);
  ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
  const SessionId again = h_.Replace("a", 2, /*incarnation=*/2);
  EXPECT_EQ(h_.Phase(job), JobPhase::kStarting);
  for (absl::Duration time; time < 2 * Harness::Options().unfit_delay; time += absl::Seconds(4)) {
    h_.Advance(absl::Seconds(4));
    h_.Feed(HeartbeatReceived{.session = again});
    ASSERT_FALSE(h_.NodeNamed("a").suspect) << time;
  }
}

TEST_F(PrepareFailureTest, JobThatHasNoOtherNodeAndDoesNotWait_Fails) {
  const SessionId a = h_.Open("a", 2);
  const JobId job = h_.Submit(AJob("j", 2));
  Fail(a);
  EXPECT_EQ(h_.Phase(job), JobPhase::kFailed);
  EXPECT_EQ(h_.State(job).failure->kind, FailureKind::kPrepareFailed);
}

TEST_F(PrepareFailureTest, JobThatWaits_IsTriedAgain_AsOftenAsItsBudgetAllows) {
  const SessionId a = h_.Open("a", 2);
  const JobId job = h_.Submit(AJobThatWaits("j", 2));
  for (int start = 0; start < 3; ++start) {
    Fail(a);
    ASSERT_EQ(h_.Phase(job), JobPhase::kQueued) << start;
    for (absl::Duration time; time < Harness::Options().unfit_delay; time += absl::Seconds(4)) {
      h_.Advance(absl::Seconds(4));
      h_.Feed(HeartbeatReceived{.session = a});
    }
    ASSERT_EQ(h_.Phase(job), JobPhase::kStarting) << start;
  }
  Fail(a);
  EXPECT_EQ(h_.Phase(job), JobPhase::kFailed);
  EXPECT_THAT(h_.State(job).failure->message, HasSubstr("3 starts before it failed, too"));
}

TEST_F(PrepareLossTest, JobIsPlannedAnewOnOtherNodes) {
  const SessionId a = h_.Open("a", 1);
  const JobId job = h_.Submit(AJob("j", 1));
  ASSERT_THAT(h_.Commands<PrepareData>(a), SizeIs(1));
  const SessionId b = h_.Open("b", 1);
  Lose(a, {b});
  ASSERT_EQ(h_.Phase(job), JobPhase::kStarting);
  EXPECT_EQ(h_.State(job).epoch, Epoch{2});
  EXPECT_THAT(Events(job, "NodeLost"), ElementsAre("node a has been away for 15s"));
  EXPECT_THAT(Events(job, "Queued"),
              ElementsAre("node a has been away for 15s before it trained: it waits for devices"));
  EXPECT_EQ(h_.Free("a"), 1);
  ASSERT_THAT(h_.Commands<PrepareData>(b), SizeIs(1));
  EXPECT_TRUE(h_.Commands<PrepareData>(b)[0].second.choose_checkpoint);
  h_.Prepare(b);
  h_.Answer<Assign>(b);
  h_.Ready(b, job, 0, 1, /*epoch=*/2);
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
  EXPECT_THAT(h_.State(job).recoveries, IsEmpty()) << "nothing had trained";
}

// One of two has prepared its part, and is there.
TEST_F(PrepareLossTest, LossOfTheOtherNode_FreesBoth) {
  const SessionId a = h_.Open("a", 1), b = h_.Open("b", 1);
  const JobId job = h_.Submit(AJobThatWaits("j", 2));
  h_.Prepare(a);
  ASSERT_THAT(h_.Commands<PrepareData>(b), SizeIs(1));
  Lose(b, {a});
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_EQ(h_.Free("a"), 1);
  EXPECT_EQ(h_.Free("b"), 1);
  EXPECT_THAT(h_.Commands<Assign>(a), IsEmpty());
}

TEST_F(PrepareLossTest, WithoutOtherNodes_ItWaitsWhereItsLadderLetsIt) {
  const SessionId a = h_.Open("a", 1);
  const JobId job = h_.Submit(AJobThatWaits("j", 1));
  Lose(a);
  ASSERT_EQ(h_.Published(job), JobPhase::kQueued);
  h_.Advance(absl::Minutes(30));
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued);
  const SessionId again = h_.Open("a", 1, /*incarnation=*/2);
  ASSERT_EQ(h_.Phase(job), JobPhase::kStarting);
  h_.Prepare(again);
  EXPECT_THAT(h_.Commands<Assign>(again), SizeIs(1));
}

TEST_F(PrepareLossTest, WithoutOtherNodes_AJobThatMayNotWaitFails) {
  const SessionId a = h_.Open("a", 1);
  const JobId job = h_.Submit(AJob("j", 1));
  Lose(a);
  ASSERT_EQ(h_.Phase(job), JobPhase::kFailed);
  const FailureCause& cause = *h_.State(job).failure;
  EXPECT_EQ(cause.kind, FailureKind::kNodeLost);
  EXPECT_EQ(cause.node, "a");
  EXPECT_EQ(cause.rank, -1) << "there was none yet";
  EXPECT_EQ(cause.message,
            "node a has been away for 15s; it needs 1 devices, nodes that match have 0, and "
            "without `wait` in its recovery.ladder it waits for no others");
}

TEST_F(PrepareLossTest, JobThatKillsItsNodes_EndsAfterAFewStarts) {
  JobRequest request = *AJobThatWaits("j", 1);
  request.budget.without_progress = 2;
  const JobId job = h_.Submit(std::make_shared<const JobRequest>(std::move(request)));
  for (const uint64_t incarnation : {1, 2, 3}) {
    ASSERT_EQ(h_.Phase(job), JobPhase::kQueued);
    const SessionId a = h_.Open("a", 1, incarnation);
    ASSERT_EQ(h_.Phase(job), JobPhase::kStarting);
    Lose(a);
  }
  ASSERT_EQ(h_.Phase(job), JobPhase::kFailed);
  EXPECT_THAT(h_.State(job).failure->message,
              HasSubstr("2 starts before it failed, too, which is all that "
                        "recovery.budget.without_progress allows"));
}

TEST_F(PrepareLossTest, JobWithoutRecoveries_HasNothingToRecoverFrom) {
  JobRequest request = *AJobThatWaits("j", 1);
  request.budget.total = 0;
  const SessionId a = h_.Open("a", 1);
  const JobId job = h_.Submit(std::make_shared<const JobRequest>(std::move(request)));
  Lose(a);
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued);
}

// Its worker is started again each time before anybody misses it.
TEST_F(PrepareLossTest, JobThatKillsItsWorkers_EndsAfterAFewTries) {
  h_.Open("a", 1, /*incarnation=*/1);
  const JobId job = h_.Submit(AJob("j", 1));
  for (const uint64_t incarnation : {2, 3, 4}) {
    const SessionId a = h_.Replace("a", 1, incarnation);
    ASSERT_EQ(h_.Phase(job), JobPhase::kStarting);
    EXPECT_THAT(h_.Commands<PrepareData>(a), SizeIs(1));
  }
  h_.Replace("a", 1, /*incarnation=*/5);
  ASSERT_EQ(h_.Phase(job), JobPhase::kFailed);
  EXPECT_EQ(h_.State(job).failure->kind, FailureKind::kNodeLost);
  EXPECT_THAT(h_.State(job).failure->message, HasSubstr("as 3 times before"));
  EXPECT_EQ(h_.Free("a"), 1);
}

// However often: the job's data has nothing to do with it.
TEST_F(PrepareLossTest, WorkerThatIsNotAskedYetOrHasPreparedIt_CountsInNothing) {
  SessionId a = h_.Open("a", 1);
  h_.Open("b", 1, /*incarnation=*/1);
  const JobId job = h_.Submit(AJob("j", 2));
  SessionId b;
  for (const uint64_t incarnation : {2, 3, 4, 5, 6}) {
    b = h_.Replace("b", 1, incarnation);
    ASSERT_EQ(h_.Phase(job), JobPhase::kStarting) << "a is asked first";
    EXPECT_THAT(h_.Commands<PrepareData>(b), IsEmpty());
  }
  for (const uint64_t incarnation : {2, 3, 4, 5, 6}) {
    h_.Prepare(a);
    a = h_.Replace("a", 1, incarnation);
    ASSERT_EQ(h_.Phase(job), JobPhase::kStarting) << "it had prepared its part";
  }
  h_.Prepare(a);
  h_.Prepare(b);
  EXPECT_THAT(h_.Commands<Assign>(a), SizeIs(1));
}

TEST_F(PrepareLossTest, WorkersThatAreRestartedInTurn_AreAskedAgain) {
  for (const char* name : {"a", "b", "c", "d", "e"}) h_.Open(name, 1);
  const JobId job = h_.Submit(AJob("j", 5));
  for (const char* name : {"a", "b", "c", "d", "e"}) h_.Replace(name, 1, /*incarnation=*/2);
  EXPECT_EQ(h_.Phase(job), JobPhase::kStarting);
}

// Its ranks would refuse the layout that the job has.
TEST_F(PrepareLossTest, NodeThatIsBackWithAnOlderWorker_GetsALayoutThatItsRanksCarryOut) {
  const SessionId a = h_.Open("a", 1), b = h_.Open("b", 1);
  const JobId job = h_.Submit(AJobThatWaits("j", 2));
  h_.Prepare(a);
  ASSERT_EQ(h_.State(job).layout->derivation, plan::kDerivation);
  h_.Feed(SessionClosed{b});
  const SessionId older = h_.OpenOf(plan::kOldestDerivation, "b", 1, /*incarnation=*/2);
  EXPECT_THAT(
      Events(job, "Queued"),
      ElementsAre("an older worker, whose ranks would refuse the job's layout, came to node b "
                  "before it trained: it waits for devices"));
  ASSERT_EQ(h_.State(job).epoch, Epoch{2});
  EXPECT_EQ(h_.State(job).layout->derivation, plan::kOldestDerivation);
  h_.Prepare(a);
  h_.Prepare(older);
  EXPECT_THAT(h_.Commands<Assign>(older), SizeIs(1));
}

TEST_F(PrepareLossTest, NodeThatGetsAnOlderWorkerWhileThePlanIsMade_IsPlannedForAnew) {
  h_.Open("a", 1);
  h_.plans_held = true;
  const JobId job = h_.Submit(AJobThatWaits("j", 1));
  ASSERT_THAT(h_.plans, SizeIs(1));
  EXPECT_EQ(h_.plans[0].derivation, plan::kDerivation);
  h_.Feed(SessionClosed{h_.NodeNamed("a").session});
  h_.OpenOf(plan::kOldestDerivation, "a", 1, /*incarnation=*/2);
  h_.plans_held = false;
  h_.AnswerPlans();
  h_.Commit();
  EXPECT_EQ(h_.Phase(job), JobPhase::kStarting);
  EXPECT_EQ(h_.State(job).layout->derivation, plan::kOldestDerivation);
}

// Else it began anew, where it has a checkpoint to go on from.
TEST_F(PrepareLossTest, AnswerToTheStartBefore_ChoosesNoCheckpoint) {
  const SessionId a = h_.Open("a", 1), b = h_.Open("b", 1);
  h_.Submit(AJob("j", 2));
  h_.Prepare(a);
  const SessionId c = h_.Open("c", 1);
  ASSERT_THAT(h_.Commands<PrepareData>(b), SizeIs(1));
  EXPECT_FALSE(h_.Commands<PrepareData>(b)[0].second.choose_checkpoint);
  Lose(a, {b, c});
  ASSERT_THAT(h_.Commands<PrepareData>(b), SizeIs(2)) << "now it is the first node";
  EXPECT_TRUE(h_.Commands<PrepareData>(b)[1].second.choose_checkpoint);
  CommandFinished late{.data_digest = "data"};
  late.session = b;
  late.command_number = h_.Commands<PrepareData>(b)[0].first;
  h_.Feed(late);
  EXPECT_THAT(h_.Commands<PrepareData>(c), IsEmpty());
  h_.Prepare(b);
  EXPECT_THAT(h_.Commands<PrepareData>(c), SizeIs(1));
}

TEST_F(PrepareLossTest, NodeThatComesBackLater_PreparesNothingForAJobThatIsElsewhere) {
  const SessionId a = h_.Open("a", 1);
  h_.Submit(AJob("j", 1));
  const SessionId b = h_.Open("b", 1);
  Lose(a, {b});
  ASSERT_THAT(h_.Commands<PrepareData>(b), SizeIs(1));
  const SessionId again = h_.Open("a", 1, /*incarnation=*/1);  // it never had the order
  EXPECT_THAT(h_.Commands<PrepareData>(again), IsEmpty());
  ASSERT_THAT(h_.Commands<Rendezvous>(again), SizeIs(1)) << "in place of it";
  EXPECT_EQ(h_.Commands<Rendezvous>(again)[0].second.job, JobId{});
  EXPECT_THAT(h_.Commands<StopRanks>(again), IsEmpty()) << "of no job, it would end others' data";
}

}  // namespace
}  // namespace phalanx::coordinator
