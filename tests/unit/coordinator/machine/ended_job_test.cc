// A job that has ended leaves the machine's memory; what may wait for a slow store is bounded.
#include <gmock/gmock.h>

#include "tests/unit/coordinator/machine/harness.h"

namespace phalanx::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(EndedJobTest, CancelledInTheQueue_IsArchivedAndForgotten) {
  Harness h;
  const JobId job = h.Submit(AJob("a", 1), "request");
  ASSERT_TRUE(h.Cancel(job).ok());
  EXPECT_THAT(h.archived, ElementsAre(job));
  h.Feed(JobArchived{job});
  EXPECT_THAT(h.machine().jobs(), IsEmpty());
}

// Else its deletes wait for ever.
TEST(EndedJobTest, WhoseRecordsAreDamaged_IsDeletedNeitherBeforeNorAfterThatIsKnown) {
  Harness h;
  const JobId job = h.Submit(AJob("a", 1));
  ASSERT_TRUE(h.Cancel(job).ok());
  EXPECT_TRUE(h.Delete(job).ok()) << "to be deleted once it is archived";
  h.Feed(ArchiveFailed{job, absl::DataLossError("record 1 of job-1 does not parse")});
  ASSERT_EQ(h.refused_deletes.size(), 1u);
  const absl::Status refused = h.refused_deletes.begin()->second;
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("record 1 of job-1 does not parse"));
  EXPECT_EQ(h.Delete(job), refused);
}

TEST(EndedJobTest, WithRanks_IsArchivedOnlyWhenTheyAreGone) {
  Harness h;
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Run(node, AJob("a", 1));
  ASSERT_TRUE(h.Cancel(job).ok());
  EXPECT_THAT(h.archived, IsEmpty());
  h.Report(node, job, 0, RankExited{.expected = true});
  EXPECT_THAT(h.archived, ElementsAre(job));
}

TEST(EndedJobTest, WithRanksOnANodeThatNeverReturns_IsArchivedWhenTheNodeIsForgotten) {
  Harness h;
  const SessionId a = h.Open("a", 1), b = h.Open("b", 1);
  const JobId job = h.Submit(AJob("j", 2));
  h.Prepare(a);
  h.Prepare(b);
  h.Ready(a, job, 0, 1);
  h.Ready(b, job, 1, 2);
  h.Feed(SessionClosed{b});
  h.Advance(absl::Seconds(8));
  h.Feed(HeartbeatReceived{.session = a});
  h.Advance(absl::Seconds(8));
  ASSERT_EQ(h.State(job).failure->node, "b");
  h.Answer<StopRanks>(a);
  EXPECT_EQ(h.Free("b"), 0) << "its ranks may still be there";
  EXPECT_EQ(h.Delete(job).code(), absl::StatusCode::kFailedPrecondition);
  h.Advance(absl::Hours(1));
  EXPECT_THAT(h.archived, ElementsAre(job));
  EXPECT_FALSE(h.machine().nodes().contains("b"));
  h.Feed(JobArchived{job});
  EXPECT_THAT(h.machine().jobs(), IsEmpty());
  // It comes back with them after all.
  const SessionId again = h.Open("b", 1, 1, {{job, Epoch{1}}}, 2);
  const JobId next = h.Submit(AJob("next", 1));
  EXPECT_EQ(h.Phase(next), job::JobPhase::kQueued);
  h.Answer<StopRanks>(again);
  EXPECT_EQ(h.Phase(next), job::JobPhase::kStarting);
}

TEST(EndedJobTest, DeleteThatWaitsForRanks_IsRefusedWhenTheirNodeGoesAway) {
  Harness h;
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Run(node, AJob("a", 1));
  ASSERT_TRUE(h.Cancel(job).ok());
  EXPECT_TRUE(h.Delete(job).ok());
  h.Feed(SessionClosed{node});
  ASSERT_EQ(h.refused_deletes.size(), 1u);
  EXPECT_THAT(h.refused_deletes.begin()->second.message(), HasSubstr("ranks on node n"));
}

TEST(ForgetTest, LostNodeThatHoldsAJobThatGoesOn_IsKept) {
  Harness h;
  const SessionId a = h.Open("a", 1), b = h.Open("b", 1);
  const JobId job = h.Submit(AJob("j", 2));
  h.Prepare(a);
  h.Prepare(b);
  h.Ready(a, job, 0, 1);
  h.Ready(b, job, 1, 2);
  h.Report(b, job, 1, RankSucceeded{10});
  h.Feed(SessionClosed{b});
  for (int minute = 0; minute < 120 * 6; ++minute) {
    h.Feed(HeartbeatReceived{.session = a});
    h.Advance(absl::Seconds(10));
  }
  EXPECT_EQ(h.Phase(job), job::JobPhase::kRunning);
  EXPECT_TRUE(h.machine().nodes().contains("b"));
}

TEST(EndedJobTest, WhoseRecordsAreNotStored_IsNotArchived) {
  Harness h;
  const JobId job = h.Submit(AJob("a", 1));
  h.store_held = true;
  h.Feed(CancelRequested{Token{77}, job});
  EXPECT_THAT(h.archived, IsEmpty());
  h.Commit();
  EXPECT_THAT(h.archived, ElementsAre(job));
}

TEST(EndedJobTest, FoundAtRestart_IsArchived) {
  Harness h;
  const JobId job = h.Submit(AJob("a", 1));
  ASSERT_TRUE(h.Cancel(job).ok());
  h.archived.clear();
  h.Restart();
  EXPECT_THAT(h.archived, ElementsAre(job));
}

TEST(EndedJobTest, NumberOfAForgottenJob_IsNotGivenAgain) {
  Harness h;
  const JobId first = h.Submit(AJob("a", 1));
  ASSERT_TRUE(h.Cancel(first).ok());
  h.Feed(JobArchived{first});
  EXPECT_GT(h.Submit(AJob("a", 1)), first);
}

TEST(EndedJobTest, MarksOfTheStore_AreGoneOnFrom) {
  Coordinator machine(Harness::Options());
  EXPECT_THAT(machine.Recover(absl::UnixEpoch(), {}, {.last_record = 40, .last_job = JobId{7}}),
              IsEmpty());
  const std::vector<Action> actions =
      machine.Step(absl::UnixEpoch(), SubmitRequested{Token{1}, AJob("a", 1), ""});
  const StoreRecord& record = std::get<StoreRecord>(actions.front());
  EXPECT_EQ(record.record_number, 41u);
  EXPECT_EQ(record.record.job, JobId{8});
}

TEST(EndedJobTest, Delete_OfALiveJob_IsRefused) {
  Harness h;
  const JobId job = h.Submit(AJob("a", 1));
  const absl::Status status = h.Delete(job);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("cancel it first"));
}

TEST(EndedJobTest, Delete_OfAJobOnItsWayToTheStore_WaitsForIt) {
  Harness h;
  const JobId job = h.Submit(AJob("a", 1));
  ASSERT_TRUE(h.Cancel(job).ok());
  EXPECT_TRUE(h.Delete(job).ok());
  EXPECT_THAT(h.deleted, IsEmpty());
  h.Feed(JobArchived{job});
  EXPECT_THAT(h.deleted, ElementsAre(job));
}

TEST(EndedJobTest, Delete_OfAJobThatTheStoreKeeps_IsPassedOn) {
  Harness h;
  EXPECT_TRUE(h.Delete(JobId{5}).ok());
  EXPECT_THAT(h.deleted, ElementsAre(JobId{5}));
}

TEST(EndedJobTest, RequestIdWithAnotherDocument_IsRefused) {
  Harness h;
  const JobId job = h.Submit(AJob("a", 1, "one"), "request");
  EXPECT_EQ(h.Submit(AJob("a", 1, "one"), "request"), job);
  EXPECT_EQ(h.Submit(AJob("a", 1, "two"), "request"), JobId{});
  EXPECT_EQ(h.answers.rbegin()->second.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(h.answers.rbegin()->second.status().message(), HasSubstr("job-1"));
}

// Nodes, or what is known of the data, may be others by the time that a caller asks again.
TEST(EndedJobTest, RequestIdOfADocumentThatIsLaidOutOtherwiseNow_GivesTheFirstJob) {
  const auto laid_out = [](const std::string& layout, const std::string& submitted_digest) {
    JobRequest request = *AJob("a", 1, layout);
    request.submitted_digest = submitted_digest;
    return std::make_shared<const JobRequest>(std::move(request));
  };
  Harness h;
  const JobId job = h.Submit(laid_out("dp2", "given"), "request");
  h.Restart();
  EXPECT_EQ(h.Submit(laid_out("tp2", "given"), "request"), job);
  EXPECT_EQ(h.Submit(laid_out("dp2", "another"), "request"), JobId{});
  // Of the release before: its document alone is known.
  EXPECT_EQ(h.Submit(laid_out("dp2", ""), "request"), job);
  EXPECT_EQ(h.Submit(laid_out("tp2", ""), "request"), JobId{});
}

TEST(EndedJobTest, DocumentsOfLiveJobs_AreBoundedInBytes) {
  CoordinatorOptions options = Harness::Options();
  options.live_request_bytes_max = 30'000;
  Harness h(options);
  const JobId first = h.Submit(AJob("a", 1, std::string(20'000, 'a')));
  EXPECT_EQ(h.Submit(AJob("b", 1, std::string(20'000, 'b'))), JobId{});
  EXPECT_EQ(h.answers.rbegin()->second.status().code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(h.Cancel(first).ok());
  EXPECT_NE(h.Submit(AJob("b", 1, std::string(20'000, 'b'))), JobId{});
}

TEST(SlowStoreTest, StepsAndEventsOfRanks_AreSparedAndMadeGoodAfterwards) {
  CoordinatorOptions options = Harness::Options();
  options.held_max = 10;
  Harness h(options);
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Run(node, AJob("a", 1));
  h.store_held = true;
  h.Report(node, job, 0, RankEvent{"Before", "message"});  // something waits for the store
  for (int step = 1; step <= 1000; ++step) {
    h.Report(node, job, 0, StepReport{.step = step, .epoch = Epoch{1}});
    h.Report(node, job, 0, RankEvent{"Noise", "message"});
  }
  const size_t waiting = h.records.size();
  EXPECT_LT(waiting, 30u);
  EXPECT_EQ(h.published_steps, 0u);
  h.Commit();
  EXPECT_LT(h.published_steps, 12u);
  EXPECT_EQ(h.views.at(job)->last_step->step, 1000);
  EXPECT_THAT(h.events.at(job), Contains(::testing::Field(&JobEvent::type, "EventsDropped")));
}

// Hours of steps in a store that fails: what waits for it is one view of the job, not one a step.
TEST(SlowStoreTest, ViewsThatWait_AreTheFirstAndTheNewest) {
  CoordinatorOptions options = Harness::Options();
  options.step_record_interval = absl::Seconds(5);
  Harness h(options);
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Run(node, AJob("a", 1));
  h.store_held = true;
  for (int step = 1; step <= 1000; ++step) {
    h.Advance(absl::Seconds(1));
    h.Report(node, job, 0, StepReport{.step = step, .epoch = Epoch{1}});
  }
  const size_t before = h.published_views;
  h.Commit();
  EXPECT_LE(h.published_views - before, 2u);
  EXPECT_EQ(h.views.at(job)->last_step->step, 1000);
}

TEST(SlowStoreTest, ViewsBehindTheFirst_DoNotPutItOff) {
  CoordinatorOptions options = Harness::Options();
  options.step_record_interval = absl::ZeroDuration();
  Harness h(options);
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Run(node, AJob("a", 1));
  h.store_held = true;
  for (int step = 1; step <= 100; ++step) {
    // The store answers for one record while the next one comes.
    h.Report(node, job, 0, StepReport{.step = step, .epoch = Epoch{1}});
    h.CommitUpTo(h.records.size() - 1);
    if (step > 1) {
      EXPECT_GE(h.views.at(job)->last_step->step, step - 2);
    }
  }
}

TEST(SlowStoreTest, BytesThatWait_AreBounded) {
  CoordinatorOptions options = Harness::Options();
  options.held_bytes_max = 1 << 20;
  Harness h(options);
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Run(node, AJob("a", 1));
  h.store_held = true;
  for (int i = 0; i < 1000; ++i) {
    h.Report(node, job, 0, RankEvent{"Noise", std::string(100'000, 'x')});
  }
  EXPECT_LT(h.records.size(), 30u);
  h.Commit();
  EXPECT_THAT(h.events.at(job), Contains(::testing::Field(&JobEvent::type, "EventsDropped")));
}

TEST(SharedPlacementTest, ViewsOfAJob_HaveOneCopyOfIt) {
  Harness h;
  const SessionId node = h.Open("n", 2);
  const JobId job = h.Run(node, AJob("a", 2));
  h.Report(node, job, 0, StepReport{.step = 1, .epoch = Epoch{1}});
  const JobViewPtr first = h.views.at(job);
  h.Report(node, job, 0, StepReport{.step = 2, .epoch = Epoch{1}});
  EXPECT_EQ(&*first->placement, &*h.views.at(job)->placement);
}

TEST(PrepareTest, NodeThatReadsNothing_FailsTheJobByName) {
  Harness h;
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Submit(AJob("a", 1));
  int64_t bytes = 0;
  for (int minute = 0; minute < 30; ++minute) {  // slow, and alive
    for (int second = 0; second < 60; ++second) {
      h.Advance(absl::Seconds(1));
      h.Feed(HeartbeatReceived{
          .session = node,
          .preparing = {{.job = job, .bytes_read = minute < 20 ? ++bytes : bytes}}});
    }
    EXPECT_EQ(h.Phase(job), minute < 29 ? job::JobPhase::kStarting : job::JobPhase::kFailed);
  }
  EXPECT_EQ(h.State(job).failure->kind, job::FailureKind::kPrepareTimeout);
  EXPECT_THAT(h.State(job).failure->message, HasSubstr("node n has read nothing"));
}

TEST(PrepareTest, DataOfAnotherJob_MovesNoDeadline_AndIsNamedWhereItIsWaitedFor) {
  Harness h;
  const SessionId node = h.Open("n", 2);
  const JobId stuck = h.Submit(AJob("a", 1)), reads = h.Submit(AJob("b", 1));
  const auto beat = [&](int64_t bytes, JobId behind) {
    h.Feed(HeartbeatReceived{.session = node,
                             .preparing = {{.job = stuck, .bytes_read = 7, .behind = behind},
                                           {.job = reads, .bytes_read = bytes}}});
  };
  beat(1, reads);
  EXPECT_THAT(h.Explain(stuck), Contains(HasSubstr("on n (behind job-2)")));
  for (int second = 0; second < 15 * 60; ++second) {
    h.Advance(absl::Seconds(1));
    beat(second, JobId{});
  }
  EXPECT_EQ(h.Phase(stuck), job::JobPhase::kFailed);
  EXPECT_EQ(h.State(stuck).failure->kind, job::FailureKind::kPrepareTimeout);
  EXPECT_EQ(h.Phase(reads), job::JobPhase::kStarting);
}

}  // namespace
}  // namespace phalanx::coordinator
