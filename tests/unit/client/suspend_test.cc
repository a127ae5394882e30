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
