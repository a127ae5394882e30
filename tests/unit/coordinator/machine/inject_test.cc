// Faults on demand: who may have one, and that it is told once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/machine/harness.h"

namespace phalanx::coordinator {
namespace {

using job::FaultKind;
using job::FaultPhase;
using job::InjectedFault;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kFaultNobodyKnows[] =
    "node n disconnected before it answered: whether it has taken the fault on nobody knows";

InjectedFault Kill(int32_t rank) { return {.kind = FaultKind::kKill, .rank = rank}; }

class InjectTest : public testing::Test {
 protected:
  static CoordinatorOptions Allowing() {
    CoordinatorOptions options;
    options.allow_inject = true;
    return options;
  }
  // Trains on three devices of node n.
  JobId Train() {
    node_ = h_.Open("n", 3);
    const JobId job = h_.Run(node_, AJob("a", 3));
    h_.commands.clear();
    return job;
  }
  // The refusal of the last request, as "CODE: message".
  std::string Refused() const {
    if (h_.injected.empty()) return "no answer";
    return h_.injected.back().status().ToString(absl::StatusToStringMode::kWithNoExtraData);
  }
  std::vector<std::string> Events(JobId job) {
    std::vector<std::string> messages;
    for (const JobEvent& event : h_.events[job]) {
      if (event.type == "FaultInjected" || event.type == "FaultNotInjected")
        messages.push_back(absl::StrCat(event.type, " ", event.message));
    }
    return messages;
  }

  Harness h_{Allowing()};
  SessionId node_;
};

TEST_F(InjectTest, WhereItIsNotAllowed_IsDeniedWhateverElseIsWrong) {
  Harness h;
  const JobId job = h.Run(h.Open("n", 1), AJob("a", 1));
  h.commands.clear();
  h.Inject(job, Kill(0));
  h.Inject(JobId{99}, {.rank = -1});
  ASSERT_THAT(h.injected, SizeIs(2));
  for (const auto& answer : h.injected) {
    EXPECT_EQ(answer.status(),
              absl::PermissionDeniedError("this coordinator brings no faults about on demand: it "
                                          "runs without --allow-inject; ask an operator for one "
                                          "that has it"));
  }
  EXPECT_THAT(h.commands, IsEmpty());
}

TEST_F(InjectTest, Fault_IsRecordedThenToldThenAnswered) {
  const JobId job = Train();
  const InjectedFault fault{.kind = FaultKind::kStop,
                            .rank = 1,
                            .at_step = 8,
                            .phase = FaultPhase::kBackward,
                            .duration = absl::Seconds(2)};
  h_.store_held = true;
  h_.Inject(job, fault);
  EXPECT_THAT(h_.Commands<InjectFault>(node_), IsEmpty()) << "it is not stored yet";
  h_.Commit();
  const auto told = h_.Commands<InjectFault>(node_);
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].second.job, job);
  EXPECT_EQ(told[0].second.epoch, Epoch{1});
  EXPECT_EQ(told[0].second.fault, fault);
  EXPECT_THAT(Events(job),
              ElementsAre("FaultInjected rank 1 (node n): stop in backward of step 8 for 2s"));
  EXPECT_THAT(h_.injected, IsEmpty()) << "its node has not taken it on yet";
  h_.Answer<InjectFault>(node_);
  ASSERT_THAT(h_.injected, SizeIs(1));
  ASSERT_TRUE(h_.injected[0].ok());
  EXPECT_EQ(h_.injected[0]->job, job);
  EXPECT_EQ(h_.injected[0]->epoch, Epoch{1});
  EXPECT_EQ(h_.injected[0]->node, "n");
}

TEST_F(InjectTest, WrongFault_IsInvalidWithEveryViolation) {
  const JobId job = Train();
  h_.Inject(job, {.kind = FaultKind::kXid, .rank = -1, .duration = absl::Seconds(1)});
  EXPECT_EQ(Refused(),
            "INVALID_ARGUMENT: fault.rank: -1: must be 0 or more\n"
            "fault.kind: xid:0: the number must be in [1, 1000000]\n"
            "fault.duration: 1s: xid is for good; only stop, hang, slow and partition end");
  EXPECT_THAT(ViolationsOf(h_.injected.back().status()), SizeIs(3));
}

TEST_F(InjectTest, JobThatIsNotThere_IsNotFound) {
  Train();
  h_.Inject(JobId{9}, Kill(0));
  EXPECT_EQ(Refused(), "NOT_FOUND: there is no job-9");
}

TEST_F(InjectTest, RankThatIsNotThere_IsNotFound) {
  const JobId job = Train();
  h_.Inject(job, Kill(3));
  EXPECT_EQ(Refused(), "NOT_FOUND: job-1 has no rank 3; its ranks are 0 to 2");
}

TEST_F(InjectTest, RankWithoutWork_IsNotFound) {
  node_ = h_.Open("n", 3);
  const JobId job = h_.Submit(AJob("a", 3, "last rank idle"));
  h_.Prepare(node_);
  h_.Answer<Assign>(node_);
  h_.Ready(node_, job, 0, 2);
  h_.Inject(job, Kill(2));
  EXPECT_EQ(Refused(), "NOT_FOUND: rank 2 of job-1 has no work in epoch 1");
}

TEST_F(InjectTest, StepOrPhaseThatTheJobNeverComesTo_IsNotFound) {
  const JobId job = Train();
  h_.Inject(job, {.kind = FaultKind::kKill, .rank = 1, .at_step = 11});
  EXPECT_EQ(Refused(), "NOT_FOUND: job-1 has no step 11; its last one is 10");
  h_.Inject(job, {.kind = FaultKind::kKill, .rank = 1, .phase = FaultPhase::kCheckpoint});
  EXPECT_EQ(Refused(), "NOT_FOUND: job-1 writes no checkpoints: it has no phase checkpoint");
  EXPECT_THAT(Events(job), IsEmpty());
  h_.Inject(job, {.kind = FaultKind::kKill, .rank = 1, .at_step = 10});
  EXPECT_THAT(h_.Commands<InjectFault>(node_), SizeIs(1)) << "its last step is there";
}

TEST_F(InjectTest, MuteOfARankOnAGpuOrAlone_IsAFailedPrecondition) {
  const InjectedFault mute{.kind = FaultKind::kMute, .rank = 0};
  auto on_gpus = std::make_shared<JobRequest>(*AJob("a", 2));
  on_gpus->device_kind = job::DeviceKind::kGpu;
  const SessionId gpus{70};
  h_.Feed(SessionOpened{gpus, WorkerHello{.node = "n",
                                          .incarnation = Incarnation{5},
                                          .device_kind = job::DeviceKind::kGpu,
                                          .devices = 2}});
  h_.Inject(h_.Run(gpus, on_gpus), mute);
  EXPECT_EQ(
      Refused(),
      "FAILED_PRECONDITION: rank 0 of job-1 is on a GPU, where NCCL carries messages: mute is "
      "of ranks on CPU");
  const SessionId one = h_.Open("o", 1);
  h_.Inject(h_.Run(one, AJob("b", 1)), mute);
  EXPECT_EQ(Refused(),
            "FAILED_PRECONDITION: rank 0 of job-2 trains alone: mute is of a message to another "
            "rank");
  const SessionId two = h_.Open("p", 2);
  h_.Inject(h_.Run(two, AJob("c", 2)), mute);
  EXPECT_THAT(h_.Commands<InjectFault>(two), SizeIs(1));
}

TEST_F(InjectTest, JobThatDoesNotTrain_IsAFailedPrecondition) {
  const JobId queued = h_.Submit(AJob("queued", 3));
  h_.Inject(queued, Kill(0));
  EXPECT_EQ(Refused(),
            "FAILED_PRECONDITION: job-1 is Queued; faults are for a job that is Running");
  node_ = h_.Open("n", 3);
  h_.Inject(queued, Kill(0));
  EXPECT_EQ(Refused(),
            "FAILED_PRECONDITION: job-1 is Starting; faults are for a job that is Running");
  ASSERT_TRUE(h_.Cancel(queued).ok());
  h_.Inject(queued, Kill(0));
  EXPECT_EQ(Refused(),
            "FAILED_PRECONDITION: job-1 is Cancelled; faults are for a job that is Running");
}

TEST_F(InjectTest, NodeThatIsAway_IsAFailedPrecondition) {
  const JobId job = Train();
  h_.Feed(SessionClosed{node_});
  h_.Inject(job, Kill(2));
  EXPECT_EQ(Refused(), "FAILED_PRECONDITION: node n, which has rank 2 of job-1, is not connected");
  EXPECT_THAT(Events(job), IsEmpty());
}

TEST_F(InjectTest, NodeThatGoesBeforeItIsTold_IsNeverTold) {
  const JobId job = Train();
  h_.store_held = true;
  h_.Inject(job, Kill(0));
  h_.Feed(SessionClosed{node_});
  h_.Commit();
  EXPECT_EQ(Refused(), absl::StrCat("FAILED_PRECONDITION: ", kFaultNobodyKnows));
  const SessionId again = h_.Open("n", 3, 1, {{job, Epoch{1}}}, 2);
  h_.Commit();
  EXPECT_THAT(h_.Commands<InjectFault>(again), IsEmpty());
}

TEST_F(InjectTest, NodeThatGoesBeforeItAnswers_IsNotToldAgain) {
  const JobId job = Train();
  h_.Inject(job, Kill(0));
  const auto told = h_.Commands<InjectFault>(node_);
  ASSERT_THAT(told, SizeIs(1));
  h_.Feed(SessionClosed{node_});
  ASSERT_THAT(h_.injected, SizeIs(1));
  EXPECT_EQ(Refused(), absl::StrCat("FAILED_PRECONDITION: ", kFaultNobodyKnows));
  // It never came there; the number that it had is not left out.
  const SessionId again = h_.Open("n", 3, 1, {{job, Epoch{1}}}, told[0].first - 1);
  EXPECT_THAT(h_.Commands<InjectFault>(again), IsEmpty());
  const auto instead = h_.Commands<Rendezvous>(again);
  ASSERT_THAT(instead, SizeIs(1));
  EXPECT_EQ(instead[0].first, told[0].first);
  EXPECT_EQ(h_.Phase(job), job::JobPhase::kRunning);
  EXPECT_THAT(h_.injected, SizeIs(1)) << "one answer";
}

TEST_F(InjectTest, NewerStreamOfTheSameNode_AnswersWhoWaits) {
  const JobId job = Train();
  h_.Inject(job, Kill(0));
  const SessionId again = h_.Open("n", 3, 1, {{job, Epoch{1}}}, 3);
  ASSERT_THAT(h_.injected, SizeIs(1));
  EXPECT_EQ(Refused(), absl::StrCat("FAILED_PRECONDITION: ", kFaultNobodyKnows));
  EXPECT_THAT(h_.Commands<InjectFault>(again), IsEmpty());
}

TEST_F(InjectTest, NodeThatSaysNothing_IsWaitedForUntilItIsLost) {
  const JobId job = Train();
  h_.Inject(job, Kill(0));
  EXPECT_THAT(h_.injected, IsEmpty());
  h_.Advance(absl::Seconds(15));
  EXPECT_EQ(Refused(), absl::StrCat("FAILED_PRECONDITION: ", kFaultNobodyKnows));
}

TEST_F(InjectTest, NodeThatRefuses_IsSaidAndRecorded) {
  const JobId job = Train();
  h_.Inject(job, Kill(1));
  h_.Answer<InjectFault>(node_, {.code = static_cast<int32_t>(absl::StatusCode::kNotFound),
                                 .message = "rank 1 of job-1 has no process here"});
  EXPECT_EQ(
      Refused(),
      "FAILED_PRECONDITION: node n has not taken the fault on: rank 1 of job-1 has no process "
      "here");
  EXPECT_THAT(
      Events(job),
      ElementsAre("FaultInjected rank 1 (node n): kill",
                  "FaultNotInjected rank 1 (node n): kill: rank 1 of job-1 has no process here"));
  EXPECT_EQ(h_.Phase(job), job::JobPhase::kRunning);
}

}  // namespace
}  // namespace phalanx::coordinator
