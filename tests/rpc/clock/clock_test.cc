// A wall clock that is set an hour forward or back while a coordinator serves.
#include <gmock/gmock.h>

#include "coordinator/runtime/system_clock.h"
#include "core/posix/waker.h"
#include "tests/rpc/fixture.h"
#include "tests/support/wall_clock.h"

namespace phalanx::coordinator {
namespace {

TEST(SystemClockTest, WallClockThatIsSet_IsNotFollowed) {
  const SystemClock clock;
  const absl::Time wall = absl::Now();
  const Instant start = clock.Now();
  support::SetWallClockBy(absl::Hours(1));
  EXPECT_GT(absl::Now() - wall, absl::Minutes(59)) << "the test sets the wall clock";
  EXPECT_LT(clock.Now() - start, absl::Minutes(1));
  support::SetWallClockBy(-absl::Hours(2));
  EXPECT_GE(clock.Now(), start);
  EXPECT_LT(clock.Now() - start, absl::Minutes(1));
  support::SetWallClockBy(absl::Hours(1));
}

class ClockTest : public RpcTest, public ::testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    ServerOptions options;
    options.sessions.heartbeat_interval = absl::Milliseconds(100);
    options.sessions.heartbeat_timeout = absl::Seconds(2);
    Start(std::move(options));
  }
  void TearDown() override {
    RpcTest::TearDown();
    support::ResetWallClock();
  }
  void Jump() { support::SetWallClockBy(absl::Hours(GetParam())); }
  // Waits, on its session, until the coordinator has heard this worker.
  static void Beat(FakeWorker& worker) {
    v1::OpenSessionRequest request;
    request.mutable_heartbeat();
    ASSERT_TRUE(worker.Write(request));
  }
  v1::NodeStatus::State StateOfTheNode() {
    v1::ListNodesResponse nodes;
    grpc::ClientContext context;
    SetDeadline(context);
    EXPECT_TRUE(jobs->ListNodes(&context, {}, &nodes).ok());
    return nodes.nodes_size() == 1 ? nodes.nodes(0).state() : v1::NodeStatus::STATE_UNSPECIFIED;
  }
};

TEST_P(ClockTest, JobOfANodeThatIsHeard_TrainsOn) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  MustSubmit(JobText("a"));
  const v1::Assign assign = worker.TakeAssignment();
  worker.Ready(assign, 0);
  WaitFor("a", v1::JOB_PHASE_RUNNING);
  Jump();
  MustSubmit(JobText("b"));  // decided and stored after the jump
  EXPECT_EQ(StateOfTheNode(), v1::NodeStatus::STATE_READY);
  EXPECT_EQ(Get("a").phase(), v1::JOB_PHASE_RUNNING);
  EXPECT_LT(std::abs(Get("b").submitted().seconds() - Get("a").submitted().seconds()), 60);
  Beat(worker);
  worker.Step(assign, 1);
  worker.Succeed(assign, 0);
  WaitFor("a", v1::JOB_PHASE_SUCCEEDED);
}

TEST_P(ClockTest, NodeThatFallsSilent_IsGivenUpInTime) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  Jump();
  const grpc::Status closed = worker.Finish();
  EXPECT_EQ(closed.error_code(), grpc::StatusCode::UNAVAILABLE) << closed.error_message();
  EXPECT_THAT(closed.error_message(), ::testing::HasSubstr("no heartbeat"));
}

TEST_P(ClockTest, StoreThatFails_IsTriedAgainInTime) {
  disk->FailCommits(absl::UnavailableError("input/output error"));
  v1::SubmitJobResponse response;
  EXPECT_EQ(Submit(JobText("a"), response).error_code(), grpc::StatusCode::UNAVAILABLE);
  Jump();
  disk->FailCommits(absl::OkStatus());
  const SteadyTime start = SteadyNow();
  grpc::Status status = Submit(JobText("b"), response);
  while (!status.ok() && Since(start) < absl::Seconds(20)) {
    status = Submit(JobText("b"), response);
  }
  EXPECT_TRUE(status.ok()) << status.error_message();
}

INSTANTIATE_TEST_SUITE_P(Hours, ClockTest, ::testing::Values(1, -1), [](const auto& info) {
  return std::string(info.param > 0 ? "Forward" : "Back");
});

}  // namespace
}  // namespace phalanx::coordinator
