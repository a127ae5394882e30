#include <gmock/gmock.h>

#include <atomic>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "coordinator/rpc/session_registry.h"
#include "core/base/stall_watch.h"
#include "core/posix/waker.h"
#include "tests/rpc/fixture.h"

namespace phalanx::coordinator {
namespace {

v1::ListNodesResponse Nodes(v1::JobService::Stub& jobs) {
  v1::ListNodesResponse response;
  grpc::ClientContext context;
  SetDeadline(context);
  EXPECT_TRUE(jobs.ListNodes(&context, {}, &response).ok());
  return response;
}

class KeepingStream final : public SessionStream {
 public:
  void Send(Outgoing message) override { sent.push_back(std::move(message)); }
  void Close(const absl::Status&) override {}
  std::vector<Outgoing> sent;
};

TEST(SessionRegistryTest, LargeCommandForManySessions_IsSharedUntilItIsWritten) {
  LogRelay logs;
  SessionRegistry registry({}, Incarnation{1}, logs);
  const Rendezvous command{JobId{1}, Epoch{1},
                           std::map<std::string, std::string>{{"k", std::string(1 << 20, 'x')}},
                           (1 << 20) + 1};
  std::vector<std::shared_ptr<KeepingStream>> streams;
  for (int i = 0; i < 3; ++i) {
    streams.push_back(std::make_shared<KeepingStream>());
    registry.Send(*registry.Add(streams.back()), 7, command);
  }
  for (const auto& stream : streams) {
    ASSERT_EQ(stream->sent.size(), 1u);
    EXPECT_EQ(stream->sent[0].bytes, command.bytes);
    v1::OpenSessionResponse out;
    stream->sent[0].encode(out);
    EXPECT_EQ(out.command().command_number(), 7u);
    EXPECT_EQ(out.command().rendezvous().entries().at("k").size(), size_t{1} << 20);
  }
}

TEST_F(RpcTest, Hello_IsWelcomedWithTheTimesOfThisCoordinator) {
  FakeWorker worker(channel);
  const v1::Welcome welcome = worker.Join("n", 3);
  EXPECT_EQ(welcome.heartbeat_interval().seconds(), 3);
  EXPECT_EQ(welcome.heartbeat_timeout().seconds(), 15);
  EXPECT_NE(welcome.coordinator_incarnation(), 0u);
  const v1::ListNodesResponse nodes = Nodes(*jobs);
  ASSERT_EQ(nodes.nodes_size(), 1);
  EXPECT_EQ(nodes.nodes(0).devices(), 3);
  EXPECT_EQ(nodes.nodes(0).state(), v1::NodeStatus::STATE_READY);
}

TEST_F(RpcTest, FirstMessageThatIsNoHello_IsInvalidArgument) {
  FakeWorker worker(channel);
  v1::OpenSessionRequest request;
  request.mutable_heartbeat();
  worker.Write(request);
  EXPECT_FALSE(worker.Read().has_value());
  EXPECT_EQ(worker.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RpcTest, NoHelloInTime_IsInvalidArgument) {
  ServerOptions options;
  options.sessions.hello_timeout = absl::Milliseconds(20);
  server_.reset();
  Start(options);
  FakeWorker worker(channel);
  EXPECT_FALSE(worker.Read().has_value());
  EXPECT_EQ(worker.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RpcTest, OtherProtocolVersion_IsFailedPrecondition) {
  FakeWorker worker(channel);
  v1::WorkerHello hello = FakeWorker::Hello("n", 1, 1);
  hello.set_protocol_version(99);
  worker.SayHello(hello);
  EXPECT_FALSE(worker.Read().has_value());
  EXPECT_EQ(worker.Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(RpcTest, SecondWorkerOfALiveName_IsAlreadyExists) {
  ServerOptions options;
  options.driver.machine.name_grace = absl::ZeroDuration();
  server_.reset();
  Start(options);
  FakeWorker first(channel);
  first.Join("n", 1, 1);
  FakeWorker second(channel);
  second.SayHello(FakeWorker::Hello("n", 1, 2));
  std::jthread beats([&first](std::stop_token stop) {
    v1::OpenSessionRequest request;
    request.mutable_heartbeat();
    while (!stop.stop_requested() && first.Write(request)) {
    }
  });
  EXPECT_FALSE(second.Read().has_value());
  const grpc::Status status = second.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_THAT(status.error_message(), ::testing::HasSubstr("node n is the name of another worker"));
}

TEST_F(RpcTest, WorkerOfANameThatIsFreeAgain_TakesOverAndTheOlderIsAborted) {
  {
    FakeWorker old_worker(channel);
    old_worker.Join("n", 1, 1);
  }
  FakeWorker new_worker(channel);
  new_worker.Join("n", 1, 2);
  FakeWorker late(channel);
  late.SayHello(FakeWorker::Hello("n", 1, 1));
  EXPECT_FALSE(late.Read().has_value());
  EXPECT_EQ(late.Finish().error_code(), grpc::StatusCode::ABORTED);
}

TEST_F(RpcTest, TooManySessions_AreResourceExhausted) {
  ServerOptions options;
  options.sessions.sessions_max = 1;
  server_.reset();
  Start(options);
  FakeWorker first(channel);
  first.Join("a", 1);
  FakeWorker second(channel);
  EXPECT_FALSE(second.Read().has_value());
  EXPECT_EQ(second.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(RpcTest, Job_GoesThroughAllItsPhases) {
  FakeWorker worker(channel);
  worker.Join("n", 2);
  MustSubmit(JobText("a", 2));
  const v1::Assign assign = worker.TakeAssignment();
  EXPECT_EQ(assign.layout().placement().nodes(0).devices_size(), 2);
  EXPECT_EQ(assign.document().directory(), "/tmp");
  v1::OpenSessionRequest entry;
  worker.Report(entry, assign, 0)->mutable_rendezvous()->set_key("k");
  entry.mutable_rank_report()->mutable_rendezvous()->set_value("v");
  worker.Write(entry);
  const v1::Command rendezvous = worker.Command();
  ASSERT_TRUE(rendezvous.has_rendezvous());
  EXPECT_EQ(rendezvous.rendezvous().entries().at("k"), "v");
  worker.Done(rendezvous);
  worker.Ready(assign, 0);
  worker.Ready(assign, 1);
  worker.Step(assign, 10);
  worker.Succeed(assign, 0);
  worker.Succeed(assign, 1);
  const v1::Command stop = worker.Command();
  ASSERT_TRUE(stop.has_stop());
  worker.Done(stop);
  const v1::JobStatus job = WaitFor("a", v1::JOB_PHASE_SUCCEEDED);
  EXPECT_EQ(job.last_step().step(), 10);
  EXPECT_EQ(job.plan_digest(), assign.plan_digest());
}

TEST_F(RpcTest, ReportBehindAHeartbeat_DoesNotWaitForIt) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  MustSubmit(JobText("a"));
  const v1::Assign assign = worker.TakeAssignment();
  worker.Ready(assign, 0);
  v1::OpenSessionRequest heartbeat;
  heartbeat.mutable_heartbeat();
  constexpr int kSteps = 40;
  const SteadyTime start = SteadyNow();
  for (int step = 1; step <= kSteps; ++step) {
    worker.Write(heartbeat);
    worker.Step(assign, step);
    while (Get("a").last_step().step() != step) ASSERT_LT(Since(start), absl::Seconds(60));
  }
  EXPECT_LT(Since(start), kSteps * StallWatch::kTick / 2);
}

TEST_F(RpcTest, HeartbeatWithNews_IsSeenAtOnce) {
  std::atomic<int> told = 0;
  ServerOptions options;
  options.driver.log = [&told](const std::string& line) {
    told += absl::StrContains(line, "draining") ? 1 : 0;
  };
  server_.reset();
  Start(options);
  FakeWorker worker(channel);
  worker.Join("n", 1);
  constexpr int kHeartbeats = 40;
  const SteadyTime start = SteadyNow();
  for (int i = 1; i <= kHeartbeats; ++i) {
    v1::OpenSessionRequest heartbeat;
    heartbeat.mutable_heartbeat()->set_draining(i % 2 == 1);
    worker.Write(heartbeat);
    while (told != i) {
      ASSERT_LT(Since(start), absl::Seconds(60));
      std::this_thread::yield();
    }
  }
  EXPECT_LT(Since(start), kHeartbeats * StallWatch::kTick / 2);
  server_.reset();  // it logs into this test
}

TEST_F(RpcTest, RestartedCoordinator_FindsTheJobRunningAndSendsNothing) {
  uint64_t before = 0;
  v1::Assign assign;
  {
    FakeWorker worker(channel);
    before = worker.Join("n", 1).coordinator_incarnation();
    MustSubmit(JobText("a"));
    assign = worker.TakeAssignment();
    worker.Ready(assign, 0);
    WaitFor("a", v1::JOB_PHASE_RUNNING);
    server_.reset();
    EXPECT_FALSE(worker.Read().has_value());
    EXPECT_EQ(worker.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  Start();
  EXPECT_EQ(Get("a").phase(), v1::JOB_PHASE_RUNNING);
  FakeWorker worker(channel);
  v1::WorkerHello hello = FakeWorker::Hello("n", 1, 1);
  hello.set_last_command_number(2);
  hello.add_running()->set_job(assign.job());
  hello.mutable_running(0)->set_epoch(assign.epoch());
  worker.SayHello(hello);
  const auto welcome = worker.Read();
  ASSERT_TRUE(welcome.has_value() && welcome->has_welcome());
  EXPECT_NE(welcome->welcome().coordinator_incarnation(), before);
  worker.Succeed(assign, 0);
  const v1::Command stop = worker.Command();
  EXPECT_TRUE(stop.has_stop()) << "the first command after the restart is the end of the job";
  EXPECT_EQ(stop.command_number(), 3u);
  WaitFor("a", v1::JOB_PHASE_SUCCEEDED);
}

TEST_F(RpcTest, BrokenSession_ShowsTheNodeDisconnected) {
  {
    FakeWorker worker(channel);
    worker.Join("n", 1);
  }
  // The stream's end reaches the coordinator when it does; each call gives it time.
  while (Nodes(*jobs).nodes(0).state() != v1::NodeStatus::STATE_DISCONNECTED) continue;
  SUCCEED();
}

}  // namespace
}  // namespace phalanx::coordinator
