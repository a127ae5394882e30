// What happens at a limit: one caller more is told when to ask again, and nobody else notices.
#include <gmock/gmock.h>

#include <memory>
#include <thread>

#include "absl/strings/match.h"
#include "core/posix/waker.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/rpc/fixture.h"

namespace phalanx::coordinator {
namespace {

constexpr int kWatchers = 1000;

// What the status says of when to ask again; zero: nothing.
int64_t RetrySecondsOf(const grpc::Status& status) {
  google::rpc::Status details;
  details.ParseFromString(status.error_details());
  for (const google::protobuf::Any& any : details.details()) {
    google::rpc::RetryInfo retry;
    if (any.UnpackTo(&retry)) return retry.retry_delay().seconds();
  }
  return 0;
}

class LimitsTest : public RpcTest {
 protected:
  struct Watcher {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::WatchJobResponse>> stream;
    v1::WatchJobResponse response;
  };
  std::unique_ptr<Watcher> Watch() {
    auto watcher = std::make_unique<Watcher>();
    SetDeadline(watcher->context, 60);
    v1::WatchJobRequest request;
    request.set_job("a");
    watcher->stream = jobs->WatchJob(&watcher->context, request);
    return watcher;
  }
  // A heartbeat that the coordinator has counted as its `number`th.
  void Beat(FakeWorker& worker, int number) {
    v1::OpenSessionRequest heartbeat;
    heartbeat.mutable_heartbeat();
    worker.Write(heartbeat);
    const std::string counted = absl::StrCat("\nphalanx_heartbeats_total ", number, "\n");
    const SteadyTime start = SteadyNow();
    while (!absl::StrContains(server_->MetricsText(), counted)) {
      ASSERT_LT(Since(start), absl::Seconds(20)) << "heartbeat " << number << " is not heard";
      std::this_thread::yield();
    }
  }
};

TEST_F(LimitsTest, ThousandWatchersOfOneJob_OneMoreIsToldWhenToAskAgainAndHeartbeatsGetThrough) {
  ServerOptions options;
  options.watchers_max = kWatchers;
  server_.reset();
  Start(options);
  FakeWorker worker(channel);
  worker.Join("n", 1);
  MustSubmit(JobText("a"));
  const v1::Assign assign = worker.TakeAssignment();
  worker.Ready(assign, 0);
  std::vector<std::unique_ptr<Watcher>> watchers;
  for (int i = 0; i < kWatchers; ++i) {
    watchers.push_back(Watch());
    ASSERT_TRUE(watchers.back()->stream->Read(&watchers.back()->response)) << i;
  }
  for (int number = 1; number <= 20; ++number) {
    const auto refused = Watch();
    EXPECT_FALSE(refused->stream->Read(&refused->response));
    const grpc::Status status = refused->stream->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    EXPECT_EQ(RetrySecondsOf(status), 1);
    Beat(worker, number);
  }
  for (int64_t step = 1; step <= 10; ++step) worker.Step(assign, step);
  worker.Succeed(assign, 0);
  for (int i = 0; i < kWatchers; ++i) {
    SCOPED_TRACE(i);
    Watcher& watcher = *watchers[static_cast<size_t>(i)];
    while (watcher.stream->Read(&watcher.response)) continue;
    EXPECT_TRUE(watcher.stream->Finish().ok());
    EXPECT_EQ(watcher.response.job().phase(), v1::JOB_PHASE_SUCCEEDED);
    EXPECT_EQ(watcher.response.job().last_step().step(), 10);
  }
}

// Submits beyond the limit are refused likewise.
TEST_F(LimitsTest, JobsBeyondTheLimit_AreToldWhenToAskAgainAndHeartbeatsGetThrough) {
  ServerOptions options;
  options.driver.machine.live_jobs_max = 1;
  server_.reset();
  Start(options);
  FakeWorker worker(channel);
  worker.Join("n", 1);
  MustSubmit(JobText("a"));
  for (int number = 1; number <= 20; ++number) {
    v1::SubmitJobResponse response;
    const grpc::Status status = Submit(JobText("b"), response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    EXPECT_EQ(RetrySecondsOf(status), 1);
    Beat(worker, number);
  }
}

}  // namespace
}  // namespace phalanx::coordinator
