// The daemon's session with a coordinator that goes, comes back, or refuses it.
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "gmock/gmock.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "phalanx/v1/worker_service.grpc.pb.h"
#include "tests/e2e/agent/fake_coordinator.h"
#include "tests/e2e/agent/worker_process.h"
#include "tests/support/process.h"

namespace phalanx::agent {
namespace {

using ::testing::ElementsAre;

bool IsStep(const v1::RankReport& report) { return report.has_step(); }

pid_t PidOf(const v1::RankReport& up) {
  pid_t pid = 0;
  const std::string& text = up.event().message();
  EXPECT_TRUE(absl::SimpleAtoi(text.substr(4, text.find(' ') - 4), &pid)) << text;
  return pid;
}

// A rank of job 7 that has begun.
pid_t RunOne(FakeCoordinator& coordinator) {
  coordinator.AwaitResult(coordinator.Send(AssignCommandOf(7, 1, Job("wait"), {0})));
  const pid_t pid =
      PidOf(coordinator.AwaitReport([](const auto& r) { return r.event().type() == "Up"; }));
  coordinator.AwaitReport([](const auto& r) { return r.has_ready(); });
  return pid;
}

// One that refuses every session for the certificate of who calls.
class RefusingCoordinator final : public v1::WorkerService::Service {
 public:
  RefusingCoordinator() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~RefusingCoordinator() override { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  // Who has called, once there are so many calls.
  std::vector<std::string> AwaitPeers(size_t count) {
    const auto deadline =
        std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(support::kPatience);
    MutexLock lock(&mutex_);
    while (peers_.size() < count && !changed_.WaitUntil(&mutex_, deadline)) continue;
    return peers_;
  }

 private:
  grpc::Status OpenSession(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::OpenSessionResponse, v1::OpenSessionRequest>*) override {
    MutexLock lock(&mutex_);
    peers_.push_back(context->peer());
    changed_.SignalAll();
    return {grpc::StatusCode::UNAUTHENTICATED, "the certificate of here is revoked"};
  }

  int port_ = 0;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> peers_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Server> server_;
};

// So that a certificate that has been renewed meanwhile is the one that is shown.
TEST(SessionTest, WorkerWhoseCertificateIsRefused_ComesOverAnotherConnection) {
  RefusingCoordinator coordinator;
  WorkerProcess worker(coordinator.address());
  const std::vector<std::string> peers = coordinator.AwaitPeers(2);
  ASSERT_GE(peers.size(), 2u);
  EXPECT_NE(peers[0], peers[1]);
}

TEST(SessionTest, Coordinator_ThatComesUpLate_IsFound) {
  int port = 0;
  { port = FakeCoordinator().port(); }
  const std::string address = "127.0.0.1:" + std::to_string(port);
  WorkerProcess worker(address);
  FakeCoordinator coordinator(port);
  EXPECT_EQ(coordinator.AwaitHello().node(), "here");
}

TEST(SessionTest, RestartedCoordinator_GetsTheSameIncarnation_TheRunningJob_AndTheMissedSteps) {
  auto coordinator = std::make_unique<FakeCoordinator>(0, /*incarnation=*/1);
  WorkerProcess worker(coordinator->address());
  const v1::WorkerHello first = coordinator->AwaitHello();
  const pid_t rank = RunOne(*coordinator);
  const support::ProcessWatch watch(rank);
  kill(rank, SIGUSR1);
  EXPECT_EQ(coordinator->AwaitReport(IsStep).step().step(), 1);

  const int port = coordinator->port();
  coordinator.reset();
  kill(rank, SIGUSR1);  // training goes on
  coordinator = std::make_unique<FakeCoordinator>(port, /*incarnation=*/2);
  const v1::WorkerHello second = coordinator->AwaitHello();
  EXPECT_EQ(second.incarnation(), first.incarnation());
  EXPECT_EQ(second.last_command_number(), 1u);
  ASSERT_EQ(second.running_size(), 1);
  EXPECT_EQ(second.running(0).job(), 7);
  EXPECT_EQ(second.running(0).epoch(), 1);
  // Step 1 may have died with the first coordinator, so it comes again.
  std::vector<int64_t> steps;
  for (int i = 0; i < 2; ++i) steps.push_back(coordinator->AwaitReport(IsStep).step().step());
  EXPECT_THAT(steps, ElementsAre(1, 2));
  coordinator->AwaitHeartbeat([](const auto& heartbeat) {
    return heartbeat.progress_size() == 1 && heartbeat.progress(0).step() == 2;
  });
  // The new coordinator has the job in its hands.
  coordinator->ContinueNumbersFrom(second.last_command_number());
  const uint64_t stop = coordinator->Send(StopCommandOf(7, 1, 20));
  EXPECT_EQ(coordinator->AwaitResult(stop).code(), 0);
  EXPECT_TRUE(watch.AwaitEnd());
}

TEST(SessionTest, RankThatDiesWhileTheCoordinatorIsAway_IsReportedAfterwards) {
  auto coordinator = std::make_unique<FakeCoordinator>(0, /*incarnation=*/1);
  WorkerProcess worker(coordinator->address());
  coordinator->AwaitHello();
  const pid_t rank = RunOne(*coordinator);
  const int port = coordinator->port();
  coordinator.reset();
  const support::ProcessWatch watch(rank);
  kill(rank, SIGKILL);
  ASSERT_TRUE(watch.AwaitEnd());
  coordinator = std::make_unique<FakeCoordinator>(port, /*incarnation=*/2);
  const v1::RankReport report =
      coordinator->AwaitReport([](const auto& r) { return r.has_exited(); });
  EXPECT_EQ(report.exited().signal(), SIGKILL);
  EXPECT_EQ(report.job(), 7);
  EXPECT_EQ(report.rank(), 0);
}

TEST(SessionTest, Machine_IsToldOfOnceInEachSession) {
  auto coordinator = std::make_unique<FakeCoordinator>(0, /*incarnation=*/1);
  WorkerProcess worker(coordinator->address(), {"--write-folder", "/nowhere/at/all"});
  const auto tells = [](const v1::Heartbeat& heartbeat) { return heartbeat.has_examination(); };
  const v1::MachineExamination first = coordinator->AwaitHeartbeat(tells).examination();
  ASSERT_EQ(first.findings_size(), 9);
  EXPECT_EQ(first.findings(8).check(), "folders");
  EXPECT_EQ(first.findings(8).verdict(), v1::MachineFinding::VERDICT_PROBLEM);
  EXPECT_EQ(first.findings(8).found(), "/nowhere/at/all: No such file or directory");
  EXPECT_GT(first.sent().seconds(), 0);
  EXPECT_GT(first.round_trip_seconds(), 0);
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(coordinator->AwaitHeartbeat([](const auto&) { return true; }).has_examination());
  }
  const int port = coordinator->port();
  coordinator.reset();
  coordinator = std::make_unique<FakeCoordinator>(port, /*incarnation=*/2);
  const v1::Heartbeat second = coordinator->AwaitHeartbeat([](const auto&) { return true; });
  ASSERT_TRUE(second.has_examination()) << "with the first heartbeat";
  EXPECT_EQ(second.examination().findings_size(), 9);
}

TEST(SessionTest, Peer_IsListenedFor_AndConnectedTo) {
  FakeCoordinator coordinator;
  WorkerProcess worker(coordinator.address());
  coordinator.AwaitHello();
  v1::Command trial;
  trial.mutable_try_peer()->set_word(std::string(32, 'a'));
  const v1::CommandResult listens = coordinator.AwaitResult(coordinator.Send(trial));
  EXPECT_EQ(listens.code(), 0) << listens.message();
  EXPECT_THAT(listens.listens_at(), ::testing::StartsWith("127.0.0.1:"));
  trial.mutable_try_peer()->set_peer(listens.listens_at());
  const v1::CommandResult connects = coordinator.AwaitResult(coordinator.Send(trial));
  EXPECT_EQ(connects.code(), 0) << connects.message();
}

TEST(SessionTest, Aborted_EndsTheDaemonWithAnErrorAndItsRanksWithIt) {
  auto coordinator = std::make_unique<FakeCoordinator>();
  WorkerProcess worker(coordinator->address());
  coordinator->AwaitHello();
  const support::ProcessWatch rank(RunOne(*coordinator));
  const int port = coordinator->port();
  coordinator.reset();
  FakeCoordinator refusing(port, 2, grpc::Status(grpc::StatusCode::ABORTED, "a newer incarnation"));
  const int status = worker.AwaitEnd();
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_TRUE(rank.AwaitEnd());
}

TEST(SessionTest, Terminated_WithoutACoordinator_StillEndsInGoodOrder) {
  auto coordinator = std::make_unique<FakeCoordinator>();
  WorkerProcess worker(coordinator->address());
  coordinator->AwaitHello();
  const support::ProcessWatch rank(RunOne(*coordinator));
  coordinator.reset();
  worker.Signal(SIGTERM);
  const int status = worker.AwaitEnd();
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(rank.AwaitEnd());
}

}  // namespace
}  // namespace phalanx::agent
