#include <gmock/gmock.h>

#include "tests/rpc/fixture.h"

namespace phalanx::coordinator {
namespace {

using ::testing::ElementsAre;

TEST_F(RpcTest, Watch_SeesEveryPhaseAndEnds) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  MustSubmit(JobText("first"));
  const v1::Assign first = worker.TakeAssignment();
  MustSubmit(JobText("a"));  // waits for the first
  v1::WatchJobRequest request;
  request.set_job("a");
  grpc::ClientContext context;
  SetDeadline(context);
  auto stream = jobs->WatchJob(&context, request);
  std::vector<v1::JobPhase> phases;
  std::vector<std::string> events;
  std::vector<int64_t> steps;
  v1::WatchJobResponse response;
  const auto read = [&] {
    if (!stream->Read(&response)) return false;
    if (phases.empty() || phases.back() != response.job().phase())
      phases.push_back(response.job().phase());
    for (const v1::JobEvent& event : response.events()) events.push_back(event.type());
    for (const v1::StepReport& step : response.steps()) steps.push_back(step.step());
    return true;
  };
  ASSERT_TRUE(read());
  EXPECT_EQ(response.job().document().text(), JobText("a"));

  worker.Ready(first, 0);
  worker.Die(first, 0, 9);
  const v1::Command stop = worker.Command();
  ASSERT_TRUE(stop.has_stop());
  worker.Done(stop);
  const v1::Assign assign = worker.TakeAssignment();
  worker.Ready(assign, 0);
  worker.Step(assign, 9);
  worker.Step(assign, 10);
  worker.Succeed(assign, 0);
  while (read()) continue;
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_THAT(phases, ElementsAre(v1::JOB_PHASE_QUEUED, v1::JOB_PHASE_STARTING,
                                  v1::JOB_PHASE_RUNNING, v1::JOB_PHASE_SUCCEEDED));
  EXPECT_THAT(steps, ElementsAre(9, 10));
  // What losing the device costs, and that its module tolerates no loss.
  EXPECT_THAT(events,
              ElementsAre("Planned", "PlanNote", "PlanNote", "Starting", "Running", "Succeeded"));
}

TEST_F(RpcTest, Watch_KilledRank_IsToldWithItsCause) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  MustSubmit(JobText("a"));
  const v1::Assign assign = worker.TakeAssignment();
  worker.Ready(assign, 0);
  WaitFor("a", v1::JOB_PHASE_RUNNING);
  worker.Die(assign, 0, 9);
  const v1::JobStatus job = WaitFor("a", v1::JOB_PHASE_FAILED);
  EXPECT_EQ(job.failure().cause(), "RankKilled");
  EXPECT_EQ(job.failure().rank(), 0);
  EXPECT_EQ(job.failure().node(), "n");
  EXPECT_EQ(job.failure().signal(), 9);
}

TEST_F(RpcTest, Watch_EndedJob_GivesItsStatusAndEnds) {
  MustSubmit(JobText("a"));
  v1::CancelJobRequest cancel;
  cancel.set_job("a");
  v1::CancelJobResponse cancelled;
  grpc::ClientContext cancel_context;
  ASSERT_TRUE(jobs->CancelJob(&cancel_context, cancel, &cancelled).ok());
  v1::WatchJobRequest request;
  request.set_job("a");
  grpc::ClientContext context;
  SetDeadline(context);
  auto stream = jobs->WatchJob(&context, request);
  v1::WatchJobResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.job().phase(), v1::JOB_PHASE_CANCELLED);
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(RpcTest, Watch_UnknownJob_IsNotFound) {
  v1::WatchJobRequest request;
  request.set_job("nobody");
  grpc::ClientContext context;
  SetDeadline(context);
  auto stream = jobs->WatchJob(&context, request);
  v1::WatchJobResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(RpcTest, Watch_StoppingCoordinator_IsUnavailable) {
  MustSubmit(JobText("a"));
  v1::WatchJobRequest request;
  request.set_job("a");
  grpc::ClientContext context;
  SetDeadline(context);
  auto stream = jobs->WatchJob(&context, request);
  v1::WatchJobResponse response;
  ASSERT_TRUE(stream->Read(&response));
  server_->Shutdown(absl::Seconds(5));
  while (stream->Read(&response)) continue;
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(RpcTest, Watch_TooMany_AreResourceExhausted) {
  ServerOptions options;
  options.watchers_max = 1;
  server_.reset();
  Start(options);
  MustSubmit(JobText("a"));
  v1::WatchJobRequest request;
  request.set_job("a");
  grpc::ClientContext first_context, second_context;
  SetDeadline(first_context);
  SetDeadline(second_context);
  auto first = jobs->WatchJob(&first_context, request);
  v1::WatchJobResponse response;
  ASSERT_TRUE(first->Read(&response));
  auto second = jobs->WatchJob(&second_context, request);
  EXPECT_FALSE(second->Read(&response));
  EXPECT_EQ(second->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  first_context.TryCancel();
}

TEST_F(RpcTest, Watch_WhoseMessageHasNoRoom_IsResourceExhausted) {
  ServerOptions options;
  options.watch_bytes_max = 100;  // less than a document
  server_.reset();
  Start(options);
  MustSubmit(JobText("a"));
  v1::WatchJobRequest request;
  request.set_job("a");
  grpc::ClientContext context;
  SetDeadline(context);
  auto stream = jobs->WatchJob(&context, request);
  v1::WatchJobResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

}  // namespace
}  // namespace phalanx::coordinator
