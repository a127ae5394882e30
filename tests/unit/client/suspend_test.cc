// What a person reads of jobs that are suspended, or cancelled with a checkpoint.
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/list.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_text.h"
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

TEST(CancelTest, WithACheckpoint_IsToldToTheCoordinator_AndRefusedWhereThereIsNone) {
  FakeServer server;
  std::vector<bool> asked;
  std::string text = support::JobText({.name = "demo"}) + "  checkpoint: {every: 10}\n";
  server.get = [&text](const v1::GetJobRequest&, v1::GetJobResponse* response) {
    *response->mutable_job() = AJob(v1::JOB_PHASE_RUNNING, 12);
    response->mutable_job()->mutable_document()->set_text(text);
    return grpc::Status::OK;
  };
  server.cancel = [&asked](const v1::CancelJobRequest& request, v1::CancelJobResponse* response) {
    asked.push_back(request.checkpoint());
    *response->mutable_job() =
        AJob(request.checkpoint() ? v1::JOB_PHASE_RUNNING : v1::JOB_PHASE_CANCELLED, 12);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured saved, ended, refused;
  EXPECT_EQ(Cancel(connection, {.job = "7", .checkpoint = true}, saved.io), kSuccess);
  EXPECT_EQ(saved.talk.str(), "job-7 saves its state, and then ends\n");
  EXPECT_EQ(Cancel(connection, {.job = "7"}, ended.io), kSuccess);
  EXPECT_EQ(ended.talk.str(), "job-7 is Cancelled\n");
  text = support::JobText({.name = "demo"});
  EXPECT_EQ(Cancel(connection, {.job = "7", .checkpoint = true}, refused.io), kFailure);
  EXPECT_EQ(refused.talk.str(),
            "error: job-7 has no checkpoint section, so what it has trained would be lost; phalanx "
            "cancel job-7 ends it\n");
  EXPECT_THAT(asked, testing::ElementsAre(true, false));
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

TEST(SuspendTest, JobThatFitsNoNodes_IsShownAsSuchInsteadOfANumber) {
  FakeServer server;
  server.list = [](const v1::ListJobsRequest&, v1::ListJobsResponse* response) {
    *response->add_jobs() = AJob(v1::JOB_PHASE_QUEUED);
    response->mutable_jobs(0)->set_fits_no_nodes(true);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured listed;
  Stopper stopper;
  EXPECT_EQ(List(connection, {.format = Format::kTable}, stopper, listed.io), kSuccess);
  EXPECT_THAT(listed.out.str(), HasSubstr("Queued (fits no nodes)  "));
}

TEST(SuspendTest, GuessOfAStart_StandsBesideTheLatest) {
  FakeServer server;
  server.list = [](const v1::ListJobsRequest&, v1::ListJobsResponse* response) {
    const int64_t about = absl::ToUnixSeconds(absl::Now() + absl::Minutes(12) + absl::Seconds(5));
    for (const bool limited : {false, true}) {
      v1::JobStatus* job = response->add_jobs();
      *job = AJob(v1::JOB_PHASE_QUEUED);
      job->set_queue_number(limited ? 2 : 1);
      job->mutable_starts_about()->set_seconds(about);
      if (limited) job->mutable_starts_by()->set_seconds(about + 3600);
    }
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured, json;
  Stopper stopper;
  EXPECT_EQ(List(connection, {.format = Format::kTable}, stopper, captured.io), kSuccess);
  EXPECT_THAT(captured.out.str(), HasSubstr("Queued (number 1, in about 12 min)  "));
  EXPECT_THAT(captured.out.str(), HasSubstr("Queued (number 2, in about 12 min, by 20"));
  EXPECT_EQ(List(connection, {.format = Format::kJson}, stopper, json.io), kSuccess);
  EXPECT_THAT(json.out.str(), HasSubstr("\"starts_about\": \"20"));
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
