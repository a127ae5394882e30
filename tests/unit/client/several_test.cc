// Several coordinators, of which one serves: each is asked in turn.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/connection.h"
#include "client/exit_code.h"
#include "client/logs.h"
#include "client/watch.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using ::testing::HasSubstr;

// As a coordinator that stands by.
grpc::Status Standby() {
  google::rpc::ErrorInfo info;
  info.set_domain("phalanx");
  info.set_reason("STANDBY");
  return WithDetails(grpc::StatusCode::UNAVAILABLE, info, "this coordinator stands by: a:1 leads");
}

class SeveralServersTest : public ::testing::Test {
 protected:
  // The first is dead, the second stands by.
  std::string Servers() const {
    return absl::StrCat(dead_, ",", standby_.address(), ",", leader_.address());
  }
  const std::string dead_ = FakeServer().address();
  FakeServer standby_, leader_;
};

TEST_F(SeveralServersTest, Call_FindsTheOneThatServes) {
  int asked = 0;
  standby_.get = [&](const auto&, auto*) { return ++asked, Standby(); };
  leader_.get = [](const auto&, auto* response) {
    *response->mutable_job() = AJob(v1::JOB_PHASE_RUNNING);
    return grpc::Status::OK;
  };
  Connection connection({.server = Servers()});
  v1::GetJobResponse response;
  for (int call = 0; call < 2; ++call) {
    EXPECT_TRUE(connection.Call(&v1::JobService::Stub::GetJob, {}, &response).ok());
  }
  EXPECT_EQ(asked, 1) << "whoever serves is asked first the next time";
}

TEST_F(SeveralServersTest, CallThatMustNotBeCarriedOutTwice_FindsItToo) {
  int carried_out = 0;
  standby_.inject = [](const auto&, auto*) { return Standby(); };
  leader_.inject = [&](const auto&, auto*) {
    ++carried_out;
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the node is gone");
  };
  Connection connection({.server = Servers()});
  v1::InjectFaultResponse response;
  const absl::Status status =
      connection.CallOnce(&v1::JobService::Stub::InjectFault, {}, &response);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the node is gone"));
  EXPECT_EQ(carried_out, 1);
}

TEST_F(SeveralServersTest, Watch_FindsTheOneThatServes) {
  standby_.watch = [](grpc::ServerContext*, auto*) { return Standby(); };
  leader_.watch = [](grpc::ServerContext*, auto* writer) {
    v1::WatchJobResponse response;
    *response.mutable_job() = AJob(v1::JOB_PHASE_SUCCEEDED, 300);
    writer->Write(response);
    return grpc::Status::OK;
  };
  Connection connection({.server = Servers()});
  Captured captured;
  Stopper stopper;
  const absl::StatusOr<Watched> watched =
      WatchJob(connection, "demo", stopper, captured.io, absl::Minutes(1));
  ASSERT_TRUE(watched.ok()) << watched.status();
  EXPECT_EQ(watched->job.phase(), v1::JOB_PHASE_SUCCEEDED);
}

TEST_F(SeveralServersTest, Logs_AreOfTheOneThatServes) {
  standby_.logs = [](const auto&, auto*) { return Standby(); };
  leader_.logs = [](const auto&, auto* writer) {
    v1::GetLogsResponse response;
    response.set_text("one\n");
    writer->Write(response);
    return grpc::Status::OK;
  };
  Connection connection({.server = Servers()});
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Logs(connection, {.job = "7", .ranks = {0}}, stopper, captured.io), kSuccess);
  EXPECT_EQ(captured.out.str(), "one\n");
}

TEST_F(SeveralServersTest, LogsThatNobodyServes_EndWithinTheTimeout) {
  standby_.logs = [](const auto&, auto*) { return Standby(); };
  leader_.logs = [](const auto&, auto*) { return Standby(); };
  Connection connection({.server = Servers(), .timeout = absl::Milliseconds(500)});
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Logs(connection, {.job = "7"}, stopper, captured.io), kUnreachable);
}

TEST_F(SeveralServersTest, NobodyServes_TellsWhatWasSaid) {
  standby_.get = [](const auto&, auto*) { return Standby(); };
  leader_.get = [](const auto&, auto*) { return Standby(); };
  Connection connection({.server = Servers(), .timeout = absl::Milliseconds(500)});
  v1::GetJobResponse response;
  const absl::Status status = connection.Call(&v1::JobService::Stub::GetJob, {}, &response);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a:1 leads"));
}

}  // namespace
}  // namespace phalanx::client
