// A wall clock that is set an hour forward or back while a coordinator serves. This program's own
// clock_gettime stands before the system's, for all libraries in it.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <sys/prctl.h>
#include <time.h>

#include <atomic>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "coordinator/net/waker.h"
#include "coordinator/runtime/system_clock.h"
#include "tests/rpc/fixture.h"

namespace {

std::atomic<int64_t> g_set_by_seconds = 0;

// gRPC's own threads wait until a time of the wall clock, and the kernel's is not set: they would
// wait for the whole hour.
bool IsOfGrpc() {
  char name[16] = {};
  prctl(PR_GET_NAME, name);
  const absl::string_view thread = name;
  return absl::StartsWith(thread, "grpc") || thread == "timer_manager" ||
         thread == "event_engine" || thread == "nexting_thread" || thread == "default-executo" ||
         thread == "resolver-execut";
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  using Function = int (*)(clockid_t, timespec*);
  static const auto system = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "clock_gettime"));
  const int result = system(clock, time);
  if (clock == CLOCK_REALTIME && result == 0 && !IsOfGrpc()) time->tv_sec += g_set_by_seconds;
  return result;
}

namespace phalanx::coordinator {
namespace {

void SetBy(absl::Duration duration) { g_set_by_seconds += absl::ToInt64Seconds(duration); }

TEST(SystemClockTest, WallClockThatIsSet_IsNotFollowed) {
  const SystemClock clock;
  const absl::Time wall = absl::Now();
  const Instant start = clock.Now();
  SetBy(absl::Hours(1));
  EXPECT_GT(absl::Now() - wall, absl::Minutes(59)) << "the test sets the wall clock";
  EXPECT_LT(clock.Now() - start, absl::Minutes(1));
  SetBy(-absl::Hours(2));
  EXPECT_GE(clock.Now(), start);
  EXPECT_LT(clock.Now() - start, absl::Minutes(1));
  SetBy(absl::Hours(1));
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
    g_set_by_seconds = 0;
  }
  void Jump() { SetBy(absl::Hours(GetParam())); }
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
