// What a person reads of jobs that are suspended.
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/list.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using ::testing::HasSubstr;

TEST(SuspendTest, SaysWhatBecomesOfTheJob) {
  FakeServer server;
  server.suspend = [](const v1::SuspendJobRequest& request, v1::SuspendJobResponse* response) {
    EXPECT_EQ(request.job(), "demo");
    *response->mutable_job() = AJob(v1::JOB_PHASE_RUNNING, 12);
    response->mutable_job()->set_suspended(true);
    return grpc::Status::OK;
  };
  server.resume = [](const v1::ResumeJobRequest&, v1::ResumeJobResponse* response) {
    *response->mutable_job() = AJob(v1::JOB_PHASE_QUEUED);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured suspended, listed, resumed;
  EXPECT_EQ(Suspend(connection, "demo", Format::kTable, suspended.io), kSuccess);
  EXPECT_EQ(suspended.talk.str(),
            "job-7 saves its state, and then waits until phalanx resume lets it go on\n");
  EXPECT_EQ(Suspend(connection, "demo", Format::kJson, listed.io), kSuccess);
  EXPECT_THAT(listed.out.str(), HasSubstr("\"suspended\": true"));
  EXPECT_EQ(Resume(connection, "demo", Format::kTable, resumed.io), kSuccess);
  EXPECT_EQ(resumed.talk.str(), "job-7 is Queued\n");
}

TEST(SuspendTest, JobThatWaits_IsShownWithItsPlaceInTheQueue) {
  FakeServer server;
  server.list = [](const v1::ListJobsRequest&, v1::ListJobsResponse* response) {
    *response->add_jobs() = AJob(v1::JOB_PHASE_QUEUED);
    response->mutable_jobs(0)->set_queue_number(3);
    return grpc::Status::OK;
  };
  server.get = [](const v1::GetJobRequest&, v1::GetJobResponse* response) {
    *response->mutable_job() = AJob(v1::JOB_PHASE_QUEUED);
    response->mutable_job()->set_queue_number(1);
    response->mutable_job()->mutable_starts_by()->set_seconds(1'700'000'000);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured listed, got;
  Stopper stopper;
  EXPECT_EQ(List(connection, {.format = Format::kTable}, stopper, listed.io), kSuccess);
  EXPECT_THAT(listed.out.str(), HasSubstr("Queued (number 3)  "));
  EXPECT_EQ(Get(connection, "demo", Format::kTable, got.io), kSuccess);
  EXPECT_THAT(got.out.str(), HasSubstr("Queued (number 1, by 2023-11-1"));
}

TEST(SuspendTest, SuspendedJob_IsShownAsSuch) {
  FakeServer server;
  server.list = [](const v1::ListJobsRequest&, v1::ListJobsResponse* response) {
    *response->add_jobs() = AJob(v1::JOB_PHASE_QUEUED);
    response->mutable_jobs(0)->set_suspended(true);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(List(connection, {.format = Format::kTable}, stopper, captured.io), kSuccess);
  EXPECT_THAT(captured.out.str(), HasSubstr("demo  job-7  Queued (suspended)  "));
}

}  // namespace
}  // namespace phalanx::client
