// A wall clock that is set an hour forward or back while a daemon serves.
#include <signal.h>

#include <memory>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "tests/e2e/agent/fake_coordinator.h"
#include "tests/e2e/agent/worker_process.h"
#include "tests/support/files.h"
#include "tests/support/wall_clock.h"
#include "worker/agent/agent.h"

namespace phalanx::agent {
namespace {

// A daemon in this process, so that it has this process's clock.
class DaemonClockTest : public ::testing::TestWithParam<int> {
 protected:
  DaemonClockTest() {
    AgentOptions options;
    options.coordinator = coordinator_->address();
    options.node = "here";
    options.state = support::MakeFolder("clock");
    options.rank_program = PHALANX_FAKE_RANK;
    const std::string indexes = options.state + "/indexes";
    auto agent =
        Agent::Create(options, [indexes](const PrepareData& order, data::ReadProgress& progress) {
          return CheckData(order.document, order.choose_checkpoint, indexes, progress);
        });
    EXPECT_TRUE(agent.ok()) << agent.status();
    agent_ = *std::move(agent);
    serves_ = std::thread([this] { EXPECT_TRUE(agent_->Run().ok()); });
    coordinator_->AwaitHello();
  }
  ~DaemonClockTest() override {
    support::ResetWallClock();
    agent_->Terminate();
    serves_.join();
  }
  void Jump() { support::SetWallClockBy(absl::Hours(GetParam())); }
  void RunOne(const std::string& behaviour) {
    coordinator_->AwaitResult(coordinator_->Send(AssignCommandOf(7, 1, Job(behaviour), {0})));
    coordinator_->AwaitReport([](const auto& r) { return r.has_ready(); });
  }

  std::unique_ptr<FakeCoordinator> coordinator_ = std::make_unique<FakeCoordinator>();
  std::unique_ptr<Agent> agent_;
  std::thread serves_;
};

TEST_P(DaemonClockTest, Heartbeats_GoOn) {
  Jump();
  for (int i = 0; i < 3; ++i) coordinator_->AwaitHeartbeat([](const auto&) { return true; });
}

TEST_P(DaemonClockTest, RankThatDoesNotListen_IsKilledInTime) {
  RunOne("hang");
  const uint64_t stop = coordinator_->Send(StopCommandOf(7, 1, 1));
  Jump();
  const v1::RankReport report =
      coordinator_->AwaitReport([](const auto& r) { return r.has_exited(); });
  EXPECT_EQ(report.exited().signal(), SIGKILL);
  EXPECT_EQ(coordinator_->AwaitResult(stop).code(), 0);
}

TEST_P(DaemonClockTest, CoordinatorThatComesBack_IsFoundInTime) {
  RunOne("wait");
  const int port = coordinator_->port();
  coordinator_.reset();
  Jump();
  coordinator_ = std::make_unique<FakeCoordinator>(port, /*incarnation=*/2);
  const v1::WorkerHello hello = coordinator_->AwaitHello();
  ASSERT_EQ(hello.running_size(), 1);
  EXPECT_EQ(hello.running(0).job(), 7);
}

INSTANTIATE_TEST_SUITE_P(Hours, DaemonClockTest, ::testing::Values(1, -1), [](const auto& info) {
  return std::string(info.param > 0 ? "Forward" : "Back");
});

}  // namespace
}  // namespace phalanx::agent
