#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/plan/derivation.h"
#include "tests/unit/coordinator/machine/harness.h"

namespace phalanx::coordinator {
namespace {

using job::JobPhase;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

NodeDevices On(const NodeName& node, std::vector<int32_t> devices) {
  return {node, std::move(devices)};
}

TEST(AdmissionTest, JobThatNeverFits_StaysQueuedWithThatReasonAndHoldsNobodyUp) {
  Harness h;
  h.Open("n", 6);
  const JobId large = h.Submit(AJob("large", 64));
  const JobId small = h.Submit(AJob("small", 1));
  EXPECT_EQ(h.Phase(large), JobPhase::kQueued);
  EXPECT_THAT(h.views[large]->reason, HasSubstr("needs 64 devices"));
  EXPECT_EQ(h.Phase(small), JobPhase::kStarting);
  EXPECT_THAT(h.Explain(large), Contains(HasSubstr("it needs 64 cpu devices")));
}

TEST(AdmissionTest, NotesOfAPlan_BecomeEventsOnce_SixteenAtMost) {
  Harness h;
  const SessionId node = h.Open("n", 1);
  const JobId job = h.Run(node, AJob("noted", 1, "20 notes"));
  std::vector<std::string> notes;
  for (const JobEvent& event : h.events[job]) {
    if (event.type != "PlanNote") continue;
    EXPECT_EQ(event.epoch, Epoch{1});
    notes.push_back(event.message);
  }
  ASSERT_EQ(notes.size(), 16u);
  EXPECT_EQ(notes.front(), "note 1");
  EXPECT_EQ(notes.back(), "note 16");
  EXPECT_EQ(h.events[job][1].type, "Planned");
  EXPECT_EQ(h.events[job][2].type, "PlanNote");
}

TEST(AdmissionTest, JobThatNeverFitsAmongDevicesThatAreTaken_HasItsReasonAtOnce) {
  Harness h;
  h.Run(h.Open("n", 1), AJob("runs", 1));
  const JobId large = h.Submit(AJob("large", 64));
  EXPECT_THAT(h.views[large]->reason, HasSubstr("needs 64 devices"));
}

TEST(AdmissionTest, JobBehindOneThatNeverFits_DoesNotNameIt) {
  Harness h;
  const SessionId node = h.Open("n", 1);
  h.Run(node, AJob("runs", 1));
  h.Submit(AJob("large", 64));
  const JobId small = h.Submit(AJob("small", 1));
  EXPECT_THAT(h.Explain(small), Not(Contains(HasSubstr("large"))));
}

TEST(AdmissionTest, JobThatFitsOnceMoreNodesJoin_StartsThen) {
  Harness h;
  h.Open("a", 2);
  const JobId large = h.Submit(AJob("large", 4));
  h.Open("b", 2);
  EXPECT_EQ(h.Phase(large), JobPhase::kStarting);
}

TEST(AdmissionTest, JobThatWaitsForANodeThatIsLost_HoldsNobodyUpFromThenOn) {
  Harness h;
  h.Open("a", 1);
  h.Feed(SessionClosed{h.Open("b", 1)});
  const JobId large = h.Submit(AJob("large", 2));
  const JobId small = h.Submit(AJob("small", 1));
  EXPECT_EQ(h.Phase(small), JobPhase::kQueued);
  h.Advance(Harness::Options().heartbeat_timeout - absl::Seconds(1));
  h.Feed(HeartbeatReceived{.session = h.NodeNamed("a").session});
  h.Advance(absl::Seconds(1));
  EXPECT_THAT(h.views[large]->reason, HasSubstr("needs 2 devices"));
  EXPECT_EQ(h.Phase(small), JobPhase::kStarting);
}

TEST(AdmissionTest, JobsOfALineWhoseFirstIsCancelled_MoveUp) {
  Harness h;
  const SessionId node = h.Open("n", 3);
  h.Run(node, AJob("runs", 1));
  const JobId first = h.Submit(AJob("first", 3)), second = h.Submit(AJob("second", 2));
  EXPECT_EQ(h.Phase(second), JobPhase::kQueued);
  ASSERT_TRUE(h.Cancel(first).ok());
  EXPECT_EQ(h.Phase(second), JobPhase::kStarting);
}

// Else a submit costs as much as the queue is long.
TEST(AdmissionTest, SubmitAndCancelBehindManyThatDoNotFit_LookAtNoneOfThem) {
  constexpr int kJobs = 1000;
  Harness h;
  h.Open("n", 2);
  for (int i = 0; i < kJobs; ++i) h.Submit(AJob(absl::StrCat("large", i), 64));
  EXPECT_EQ(h.machine().jobs_considered(), kJobs);
  EXPECT_TRUE(h.Cancel(JobId{kJobs / 2}).ok());
  EXPECT_EQ(h.machine().jobs_considered(), kJobs);
  EXPECT_EQ(h.Phase(h.Submit(AJob("small", 1))), JobPhase::kStarting);
  EXPECT_EQ(h.machine().jobs_considered(), kJobs + 1);
}

// Among owners that take turns a newcomer may go ahead of any, so all are looked at: not for each.
TEST(AdmissionTest, SubmitsOfSeveralOwnersBehindMany_LookAtThemNowAndThen) {
  constexpr int kJobs = 2000;
  Harness h;
  h.Open("n", 2);
  const auto submit = [&h](const std::string& name, int devices, const std::string& owner) {
    JobRequest request = *AJob(name, devices);
    request.owner = owner;
    return h.Submit(std::make_shared<const JobRequest>(std::move(request)));
  };
  for (int i = 0; i < kJobs / 2; ++i) submit(absl::StrCat("large", i), 64, i % 2 == 0 ? "a" : "b");
  const uint64_t before = h.machine().jobs_considered();
  for (int i = kJobs / 2; i < kJobs; ++i)
    submit(absl::StrCat("large", i), 64, i % 2 == 0 ? "a" : "b");
  const JobId small = submit("small", 1, "c");
  const uint64_t submitted = h.machine().jobs_considered();
  EXPECT_LE(submitted, before + 2 * kJobs);
  h.Advance(absl::Milliseconds(50));
  EXPECT_EQ(h.machine().jobs_considered(), submitted);
  h.Advance(absl::Milliseconds(100));
  EXPECT_EQ(h.Phase(small), JobPhase::kStarting);
  EXPECT_LE(h.machine().jobs_considered(), before + 4 * kJobs);
}

TEST(AdmissionTest, NodesThatJoinTogether_LookAtTheQueueOnce) {
  constexpr int kJobs = 100;
  Harness h;
  for (int i = 0; i < kJobs; ++i) h.Submit(AJob(absl::StrCat("large", i), 64));
  const uint64_t before = h.machine().jobs_considered();
  for (uint64_t node = 1; node <= 10; ++node) {
    static_cast<void>(h.machine().Step(
        h.now(), SessionOpened{SessionId{node}, WorkerHello{.node = absl::StrCat("n", node),
                                                            .incarnation = Incarnation{node},
                                                            .devices = 2}}));
  }
  EXPECT_EQ(h.machine().jobs_considered(), before);
  EXPECT_LE(h.machine().NextDeadline(), h.now());
  static_cast<void>(h.machine().Step(h.now(), DeadlineReached{}));
  EXPECT_EQ(h.machine().jobs_considered(), before + kJobs);
}

TEST(AdmissionTest, Job_WithFreeDevices_StartsAtOnce) {
  Harness h;
  const SessionId node = h.Open("n", 2);
  const JobId job = h.Submit(AJob("a", 2));
  EXPECT_EQ(h.Phase(job), JobPhase::kStarting);
  EXPECT_THAT(h.State(job).layout->nodes, ElementsAre(On("n", {0, 1})));
  EXPECT_EQ(h.Commands<PrepareData>(node).size(), 1u);
  EXPECT_EQ(h.Free("n"), 0);
}

TEST(AdmissionTest, Job_WaitsForAllItsDevices) {
  Harness h;
  h.Open("n", 2);
  const JobId job = h.Submit(AJob("a", 3));
  EXPECT_EQ(h.Phase(job), JobPhase::kQueued);
  h.Open("m", 1);
  EXPECT_EQ(h.Phase(job), JobPhase::kStarting);
}

TEST(AdmissionTest, LaterJob_ThatWouldFit_DoesNotOvertake) {
  Harness h;
  h.Open("n", 3);
  h.Submit(AJob("runs", 1));
  const JobId large = h.Submit(AJob("large", 3));
  const JobId small = h.Submit(AJob("small", 1));
  EXPECT_EQ(h.Phase(small), JobPhase::kQueued);
  ASSERT_TRUE(h.Cancel(large).ok());
  EXPECT_EQ(h.Phase(small), JobPhase::kStarting);
}

TEST(AdmissionTest, LaterJob_OnNodesTheEarlierCannotUse_Starts) {
  Harness h;
  h.Open("n", 2);
  auto gpu = std::make_shared<JobRequest>(*AJob("gpu", 8));
  gpu->device_kind = job::DeviceKind::kGpu;
  const JobId first = h.Submit(gpu);
  const JobId second = h.Submit(AJob("cpu", 2));
  EXPECT_EQ(h.Phase(first), JobPhase::kQueued);
  EXPECT_EQ(h.Phase(second), JobPhase::kStarting);
}

TEST(AdmissionTest, NodeSelector_TakesOnlyNodesWithTheLabels) {
  Harness h;
  h.Open("n", 2);
  auto picky = std::make_shared<JobRequest>(*AJob("a", 1));
  picky->node_selector = {{"zone", "b"}};
  const JobId job = h.Submit(picky);
  EXPECT_EQ(h.Phase(job), JobPhase::kQueued);
  h.Feed(SessionOpened{
      SessionId{77},
      WorkerHello{
          .node = "m", .incarnation = Incarnation{5}, .devices = 1, .labels = {{"zone", "b"}}}});
  EXPECT_THAT(h.State(job).layout->nodes, ElementsAre(On("m", {0})));
}

TEST(AdmissionTest, FailureDomainOfANode_IsInTheLayout) {
  Harness h;
  h.Feed(
      SessionOpened{SessionId{77}, WorkerHello{.node = "a",
                                               .incarnation = Incarnation{5},
                                               .devices = 2,
                                               .labels = {{"phalanx/failure-domain", "rack-7"}}}});
  h.Open("b", 1);
  const JobId job = h.Submit(AJob("both", 3));
  EXPECT_THAT(h.State(job).layout->nodes,
              ElementsAre(NodeDevices{"a", {0, 1}, "rack-7"}, On("b", {0})));
  EXPECT_EQ(h.State(job).layout->derivation, plan::kDerivation);
}

TEST(AdmissionTest, LayoutWithANodeOfTheReleaseBefore_IsAsItsRanksReadIt) {
  Harness h;
  h.Open("a", 1);
  h.Feed(SessionOpened{SessionId{77}, WorkerHello{.node = "b",
                                                  .incarnation = Incarnation{5},
                                                  .devices = 2,
                                                  .labels = {{"phalanx/failure-domain", "rack-7"}},
                                                  .derivation = plan::kOldestDerivation}});
  const JobId job = h.Submit(AJob("both", 3));
  EXPECT_THAT(h.State(job).layout->nodes, ElementsAre(On("b", {0, 1}), On("a", {0})));
  EXPECT_EQ(h.State(job).layout->derivation, plan::kOldestDerivation);
}

TEST(AdmissionTest, NewLayout_IsOfTheNewestDerivationThatAllOfItsNodesAndTheCoordinatorKnow) {
  Harness h;
  h.OpenOf(plan::kDerivation + 1, "newer", 1);
  h.OpenOf(plan::kDerivation, "this", 1);
  const JobId both = h.Submit(AJob("both", 2));
  EXPECT_EQ(h.State(both).layout->derivation, plan::kDerivation);
  h.OpenOf(plan::kDerivation + 1, "newer-2", 1);
  h.OpenOf(plan::kDerivation, "this-2", 1);
  h.OpenOf(plan::kOldestDerivation, "older", 1);
  const JobId all = h.Submit(AJob("all", 3));
  EXPECT_EQ(h.State(all).layout->derivation, plan::kOldestDerivation);
}

TEST(AdmissionTest, TableOfProducts_IsThatOfAllNodes_OrNone) {
  Harness h;
  uint64_t session = 70;
  const auto open = [&](const NodeName& node, std::map<std::string, std::string> labels) {
    h.Feed(SessionOpened{SessionId{++session}, WorkerHello{.node = node,
                                                           .incarnation = Incarnation{5},
                                                           .devices = 1,
                                                           .labels = std::move(labels)}});
  };
  const std::string label = "phalanx/products";
  open("a", {{label, "table@1"}});
  open("b", {{label, "table@1"}});
  EXPECT_EQ(h.State(h.Submit(AJob("alike", 2))).layout->products, "table@1");
  open("c", {{label, "table@1"}});
  open("d", {{label, "table@2"}});
  EXPECT_EQ(h.State(h.Submit(AJob("other", 2))).layout->products, "");
  open("e", {{label, "table@1"}});
  open("f", {});
  EXPECT_EQ(h.State(h.Submit(AJob("without", 2))).layout->products, "");
  open("g", {{label, "none"}});
  EXPECT_EQ(h.State(h.Submit(AJob("off", 1))).layout->products, "");
}

TEST(AdmissionTest, Unplannable_JobFailsAndHoldsNothing) {
  Harness h;
  h.Open("n", 2);
  const JobId job = h.Submit(AJob("a", 2, "unplannable"));
  EXPECT_EQ(h.Phase(job), JobPhase::kFailed);
  EXPECT_EQ(h.State(job).failure->kind, job::FailureKind::kPlanInvalid);
  EXPECT_EQ(h.Free("n"), 2);
}

TEST(AdmissionTest, JobThatNeedsMoreMemoryThanItsDevices_FailsBeforeAnyProcess) {
  Harness h;
  h.Open("large", 2, 1, {}, 0, {100, 100});
  h.Open("small", 1, 2, {}, 0, {99});
  const JobId job = h.Submit(AJob("a", 3, "needs 100 bytes a rank"));
  EXPECT_EQ(h.Phase(job), JobPhase::kFailed);
  EXPECT_EQ(h.State(job).failure->kind, job::FailureKind::kPlanInvalid);
  EXPECT_EQ(h.State(job).failure->message, "rank 2 needs 100 B") << "in the order of the placement";
  EXPECT_THAT(h.Explain(job),
              ElementsAre("PlanInvalid: rank 2 needs 100 B", ::testing::HasSubstr("what to do: ")));
  EXPECT_THAT(h.commands, IsEmpty());
  EXPECT_EQ(h.Free("large"), 2);
  EXPECT_EQ(h.Phase(h.Submit(AJob("b", 2, "needs 100 bytes a rank"))), JobPhase::kStarting);
}

TEST(PlanningTest, WhileAPlanIsMade_TheDevicesAreHeldAndOthersGoOn) {
  Harness h;
  h.Open("n", 3);
  h.plans_held = true;
  const JobId first = h.Submit(AJob("a", 2));
  const JobId second = h.Submit(AJob("b", 2));
  EXPECT_EQ(h.Phase(first), JobPhase::kQueued);
  EXPECT_EQ(h.Free("n"), 1);
  EXPECT_THAT(h.Explain(first), ElementsAre("its plan on 2 on n is being made"));
  EXPECT_EQ(h.plans.size(), 1u) << "the second waits for devices";
  h.AnswerPlans();
  EXPECT_EQ(h.Phase(first), JobPhase::kStarting);
  EXPECT_EQ(h.Phase(second), JobPhase::kQueued);
}

TEST(PlanningTest, JobCancelledMeanwhile_FreesItsDevicesAndThePlanIsIgnored) {
  Harness h;
  h.Open("n", 2);
  h.plans_held = true;
  const JobId job = h.Submit(AJob("a", 2));
  ASSERT_TRUE(h.Cancel(job).ok());
  EXPECT_EQ(h.Free("n"), 2);
  h.AnswerPlans();
  EXPECT_EQ(h.Phase(job), JobPhase::kCancelled);
  EXPECT_EQ(h.Free("n"), 2);
}

TEST(PlanningTest, NodeGoneMeanwhile_LetsTheJobWaitAgain) {
  Harness h;
  const SessionId node = h.Open("n", 2);
  h.plans_held = true;
  const JobId job = h.Submit(AJob("a", 2));
  h.Feed(SessionClosed{node});
  h.AnswerPlans();
  EXPECT_EQ(h.Phase(job), JobPhase::kQueued);
  h.plans_held = false;
  h.Open("n", 2, 1);
  EXPECT_EQ(h.Phase(job), JobPhase::kStarting);
}

TEST(PlanningTest, MorePlansThanMayBeMade_WaitInTheQueue) {
  CoordinatorOptions options = Harness::Options();
  options.plans_max = 4;
  Harness h(options);
  h.Open("n", 100);
  h.plans_held = true;
  std::vector<JobId> jobs;
  for (int i = 0; i < 20; ++i) {
    jobs.push_back(h.Submit(AJob(absl::StrCat("j", i), 1)));
    // Cancelled ones have their places until the planner has let them go.
    if (i < 4) {
      ASSERT_TRUE(h.Cancel(jobs.back()).ok());
    }
  }
  EXPECT_EQ(h.plans.size(), 4u);
  EXPECT_EQ(h.dropped_plans.size(), 4u);
  EXPECT_THAT(h.Explain(jobs.back()), Contains(HasSubstr("the plans of 4 jobs are being made")));
  while (!h.plans.empty()) {
    EXPECT_LE(h.plans.size(), 4u);
    h.AnswerPlans(1);
    h.Commit();
  }
  for (size_t i = 4; i < jobs.size(); ++i) EXPECT_EQ(h.Phase(jobs[i]), JobPhase::kStarting);
}

TEST(PlanningTest, CoordinatorThatDiesMeanwhile_PlansAgain) {
  Harness h;
  h.Open("n", 2);
  h.plans_held = true;
  const JobId job = h.Submit(AJob("a", 2));
  h.Restart();
  h.Open("n", 2);
  EXPECT_EQ(h.plans.size(), 1u);
  h.AnswerPlans();
  h.Commit();
  EXPECT_EQ(h.Phase(job), JobPhase::kStarting);
}

TEST(AdmissionTest, DevicesOfUnknownMemory_TakeAnyJob) {
  Harness h;
  h.Open("n", 2, 1, {}, 0, {0, 100});
  h.Open("m", 1, 2);
  EXPECT_EQ(h.Phase(h.Submit(AJob("a", 3, "needs 100 bytes a rank"))), JobPhase::kStarting);
}

TEST(AdmissionTest, NodeThatComesBackWithOtherMemory_IsBelieved) {
  Harness h;
  h.Open("n", 1, 1, {}, 0, {50});
  EXPECT_EQ(h.Phase(h.Submit(AJob("a", 1, "needs 100 bytes a rank"))), JobPhase::kFailed);
  h.Feed(SessionClosed{h.NodeNamed("n").session});
  h.Open("n", 1, 2, {}, 0, {100});
  EXPECT_EQ(h.Phase(h.Submit(AJob("a", 1, "needs 100 bytes a rank"))), JobPhase::kStarting);
}

TEST(AdmissionTest, DrainingNode_GetsNothing) {
  Harness h;
  const SessionId node = h.Open("n", 2);
  h.Feed(HeartbeatReceived{.session = node, .draining = true});
  const JobId job = h.Submit(AJob("a", 1));
  EXPECT_EQ(h.Phase(job), JobPhase::kQueued);
}

TEST(ExplainTest, Queued_NamesWhatIsMissingAndWhoHoldsIt) {
  Harness h;
  h.Open("n", 4);
  h.Submit(AJob("holder", 3));
  const JobId job = h.Submit(AJob("waiter", 2));
  EXPECT_THAT(h.Explain(job), ElementsAre("it needs 2 cpu devices at once; 1 of 4 are free",
                                          "job-1 (holder) holds 3"));
}

TEST(ExplainTest, QueuedBehindAnother_NamesIt) {
  Harness h;
  h.Open("n", 3);
  h.Submit(AJob("runs", 1));
  h.Submit(AJob("large", 3));
  const JobId job = h.Submit(AJob("small", 1));
  EXPECT_THAT(h.Explain(job), Contains(HasSubstr("job-2 (large) came first and waits for 3")));
}

TEST(ExplainTest, QueuedWithoutAnyNode_SaysSo) {
  Harness h;
  const JobId job = h.Submit(AJob("a", 1));
  EXPECT_THAT(h.Explain(job), Contains(HasSubstr("no connected node has cpu devices")));
}

TEST(ExplainTest, QueuedTooLargeForTheCluster_SaysHowLargeThatIs) {
  Harness h;
  h.Open("n", 2);
  const JobId job = h.Submit(AJob("a", 5));
  EXPECT_THAT(h.Explain(job), ElementsAre(HasSubstr("the 1 connected nodes that match have 2")));
}

// Of a job that no node will ever do for: its reason, which lists show too, and what `why` says.
TEST(ExplainTest, JobThatFitsNoNodes_SaysWhatTheyLack) {
  Harness h;
  uint64_t session = 100;
  const auto open = [&](const NodeName& node, int32_t devices,
                        std::map<std::string, std::string> labels) {
    h.Feed(SessionOpened{SessionId{++session}, WorkerHello{.node = node,
                                                           .incarnation = Incarnation{session},
                                                           .devices = devices,
                                                           .labels = std::move(labels)}});
  };
  open("a", 2, {{"rack", "1"}, {"zone", "x"}});
  open("b", 4, {{"rack", "2"}, {"zone", "y"}});
  const auto reason = [&h](JobId job) {
    EXPECT_TRUE(h.views[job]->fits_no_nodes);
    return h.views[job]->reason;
  };
  int number = 0;
  const auto wants = [&](int32_t devices, std::map<std::string, std::string> labels) {
    JobRequest request = *AJob(absl::StrCat("j", ++number), devices);
    request.node_selector = std::move(labels);
    return h.Submit(std::make_shared<const JobRequest>(request));
  };
  const std::string end = "; it waits for more nodes and holds nobody up";
  const JobId large = wants(8, {}), label = wants(1, {{"rack", "7"}}),
              none = wants(1, {{"k", "v"}}), both = wants(1, {{"rack", "1"}, {"zone", "y"}});
  EXPECT_EQ(
      reason(large),
      "needs 8 devices, and all nodes that match have fewer: 6 in all, 4 on the largest" + end);
  EXPECT_EQ(
      reason(label),
      "needs 1 devices, and no connected node with cpu devices has the label rack=7; there are "
      "rack=1, rack=2" +
          end);
  EXPECT_THAT(h.Explain(label), ElementsAre(HasSubstr("it needs 1 cpu devices; no connected node "
                                                      "with cpu devices has the label rack=7")));
  EXPECT_EQ(reason(none),
            "needs 1 devices, and no connected node with cpu devices has the label k=v" + end);
  EXPECT_EQ(
      reason(both),
      "needs 1 devices, and no connected node with cpu devices has both rack=1, zone=y" + end);
  // More of them change what is said, and one that is enough that there is something to say.
  open("c", 1, {{"rack", "7"}});
  EXPECT_FALSE(h.views[label]->fits_no_nodes);
  EXPECT_THAT(reason(large), HasSubstr("have fewer: 7 in all, 4 on the largest"));
}

TEST(PlacementTest, OneNodeThatFitsBest_IsPreferred) {
  Harness h;
  h.Open("large", 8);
  h.Open("middle", 4);
  h.Open("small", 2);
  const JobId job = h.Submit(AJob("a", 3));
  EXPECT_THAT(h.State(job).layout->nodes, ElementsAre(On("middle", {0, 1, 2})));
}

TEST(PlacementTest, SeveralNodes_WholeOnesFirstAndAsFewAsPossible) {
  Harness h;
  h.Open("a", 2);
  h.Open("b", 4);
  h.Open("c", 1);
  const JobId job = h.Submit(AJob("a", 5));
  EXPECT_THAT(h.State(job).layout->nodes, ElementsAre(On("b", {0, 1, 2, 3}), On("c", {0})));
}

}  // namespace
}  // namespace phalanx::coordinator
