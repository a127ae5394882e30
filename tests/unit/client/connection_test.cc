// What becomes of a call: codes as exit codes, what is tried again, and for how long.
#include "client/connection.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/list.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/example.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

struct Ending {
  grpc::StatusCode code;
  int exit_code;
};
class EndingTest : public ::testing::TestWithParam<Ending> {};

TEST_P(EndingTest, ServersCode_BecomesAnExitCode) {
  FakeServer server;
  server.get = [](const v1::GetJobRequest&, v1::GetJobResponse*) {
    return grpc::Status(GetParam().code, "no");
  };
  Connection connection = server.Connect();
  Captured captured;
  EXPECT_EQ(Get(connection, "job-7", Format::kTable, captured.io), GetParam().exit_code);
  EXPECT_EQ(captured.out.str(), "");
  EXPECT_THAT(captured.talk.str(), HasSubstr("no"));
}
INSTANTIATE_TEST_SUITE_P(Codes, EndingTest,
                         ::testing::Values(Ending{grpc::StatusCode::NOT_FOUND, kFailure},
                                           Ending{grpc::StatusCode::PERMISSION_DENIED, kNotAllowed},
                                           Ending{grpc::StatusCode::UNAUTHENTICATED, kNotAllowed},
                                           Ending{grpc::StatusCode::INTERNAL, kInternal},
                                           Ending{grpc::StatusCode::FAILED_PRECONDITION,
                                                  kFailure}));

// As of a request with a text that is no UTF-8, or of a coordinator of another version.
TEST(ConnectionTest, CallThatIsNotKnown_IsToldOf) {
  FakeServer server;
  Connection connection = server.Connect();
  Captured captured;
  EXPECT_EQ(Get(connection, "job-7", Format::kTable, captured.io), kFailure);
  EXPECT_THAT(captured.talk.str(), HasSubstr(" does not know this call, or cannot read what it "));
  EXPECT_THAT(captured.talk.str(),
              HasSubstr("\nwhat to do: give names, texts and folders in UTF-8"));
}

TEST(ConnectionTest, NobodyThere_IsUnreachable) {
  Connection connection({.server = "127.0.0.1:1", .timeout = absl::Milliseconds(200)});
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(List(connection, {.format = Format::kTable}, stopper, captured.io), kUnreachable);
  EXPECT_THAT(captured.talk.str(), HasSubstr("127.0.0.1:1"));
  EXPECT_THAT(captured.talk.str(), HasSubstr("\nwhat to do: see that phalanx-coordinator runs"));
}

// A coordinator that answers is there.
TEST(ConnectionTest, StoreThatIsFull_IsSaidWithinTheTimeoutAndNotCalledSilence) {
  FakeServer server;
  server.submit = [](const v1::SubmitJobRequest&, v1::SubmitJobResponse*) {
    google::rpc::ErrorInfo info;
    info.set_domain("phalanx");
    return WithDetails(grpc::StatusCode::UNAVAILABLE, info, "the store is full");
  };
  server.cancel = [](const v1::CancelJobRequest&, v1::CancelJobResponse*) {
    google::rpc::ErrorInfo info;
    info.set_domain("phalanx");
    return WithDetails(grpc::StatusCode::UNAVAILABLE, info, "the store is full");
  };
  Connection connection({.server = server.address(), .timeout = absl::Seconds(1)});
  Captured captured;
  Stopper stopper;
  const absl::Time start = absl::Now();
  EXPECT_EQ(Submit(connection, {.file = kExample}, stopper, captured.io), kUnreachable);
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  EXPECT_EQ(captured.talk.str(),
            "error: the coordinator at " + server.address() +
                " cannot serve this now: the store is full\nwhat to do: see that "
                "phalanx-coordinator serves, then look with phalanx list: it may be a job all the "
                "same; submit it again only where it is not\n");
  Captured other;
  EXPECT_EQ(Cancel(connection, {.job = "7"}, other.io), kUnreachable);
  EXPECT_EQ(other.talk.str(),
            "error: the coordinator at " + server.address() +
                " cannot serve this now: the store is full\nwhat to do: see that "
                "phalanx-coordinator serves, then look: it may have been done all the same; do it "
                "again only where it has not\n");
}

TEST(ConnectionTest, ChangeThatNobodyAnswers_MayHaveBeenDone) {
  absl::Notification over;
  FakeServer server;
  server.suspend = [&](const v1::SuspendJobRequest&, v1::SuspendJobResponse*) {
    over.WaitForNotification();
    return grpc::Status::OK;
  };
  Connection connection({.server = server.address(), .timeout = absl::Milliseconds(500)});
  Captured captured;
  EXPECT_EQ(Suspend(connection, "7", Format::kTable, captured.io), kUnreachable);
  over.Notify();
  EXPECT_THAT(captured.talk.str(), HasSubstr("it may have been done all the same"));
}

TEST(ConnectionTest, SubmitThatNobodyAnswers_MayBeAJob) {
  absl::Notification over;
  FakeServer server;
  server.submit = [&](const v1::SubmitJobRequest&, v1::SubmitJobResponse*) {
    over.WaitForNotification();
    return grpc::Status::OK;
  };
  Connection connection({.server = server.address(), .timeout = absl::Milliseconds(500)});
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Submit(connection, {.file = kExample}, stopper, captured.io), kUnreachable);
  over.Notify();
  EXPECT_THAT(captured.talk.str(), HasSubstr("look with phalanx list: it may be a job"));
}

// It has gone to nobody.
TEST(ConnectionTest, SubmitWhereNobodyIs_IsNoJob) {
  Connection connection({.server = "127.0.0.1:1", .timeout = absl::Milliseconds(200)});
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Submit(connection, {.file = kExample}, stopper, captured.io), kUnreachable);
  EXPECT_THAT(captured.talk.str(), HasSubstr("\nwhat to do: see that phalanx-coordinator runs"));
  EXPECT_THAT(captured.talk.str(), Not(HasSubstr("may be a job")));
}

TEST(ConnectionTest, Unavailable_IsTriedAgainWithTheSameRequestId) {
  FakeServer server;
  std::vector<std::string> ids;
  server.submit = [&](const v1::SubmitJobRequest& request, v1::SubmitJobResponse* response) {
    ids.push_back(request.request_id());
    if (ids.size() < 3) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "starting");
    *response->mutable_job() = AJob(v1::JOB_PHASE_QUEUED);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Submit(connection, {.file = kExample}, stopper, captured.io), kSuccess);
  ASSERT_THAT(ids, SizeIs(3));
  EXPECT_EQ(std::set<std::string>(ids.begin(), ids.end()).size(), 1u);
  EXPECT_THAT(ids[0], SizeIs(32));
}

TEST(ConnectionTest, OverALimit_IsTriedAgainAfterTheHint_WithinTheTimeout) {
  FakeServer server;
  std::atomic<int> calls = 0;
  server.get = [&](const v1::GetJobRequest&, v1::GetJobResponse* response) {
    google::rpc::RetryInfo retry;
    if (++calls < 0) {
      retry.mutable_retry_delay()->set_seconds(10);
    } else {
      retry.mutable_retry_delay()->set_nanos(100'000'000);
    }
    if (calls < 3)
      return WithDetails(grpc::StatusCode::RESOURCE_EXHAUSTED, retry, "vera calls too often");
    *response->mutable_job() = AJob(v1::JOB_PHASE_QUEUED);
    return grpc::Status::OK;
  };
  const absl::Time start = absl::Now();
  Connection connection = server.Connect();
  Captured captured;
  EXPECT_EQ(Get(connection, "7", Format::kTable, captured.io), kSuccess);
  EXPECT_EQ(calls, 3);
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(200));

  calls = -1000;
  Connection hasty({.server = server.address(), .timeout = absl::Seconds(3)});
  EXPECT_EQ(Get(hasty, "7", Format::kTable, captured.io), kFailure);
  EXPECT_EQ(calls, -999);
  EXPECT_THAT(captured.talk.str(), HasSubstr("vera calls too often"));
}

TEST(ConnectionTest, OtherErrors_AreNotTriedAgain) {
  FakeServer server;
  std::atomic<int> calls = 0;
  server.get = [&](const v1::GetJobRequest&, v1::GetJobResponse*) {
    ++calls;
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full");
  };
  Connection connection = server.Connect();
  Captured captured;
  Get(connection, "7", Format::kTable, captured.io);
  EXPECT_EQ(calls, 1);
}

TEST(ConnectionTest, OfSeveralServers_OneThatDoesNotAnswerInItsTurn_IsLeftForTheNext) {
  absl::Notification answered;
  FakeServer hangs, answers;
  hangs.submit = [&](const v1::SubmitJobRequest&, v1::SubmitJobResponse*) {
    answered.WaitForNotificationWithTimeout(absl::Seconds(30));
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "late");
  };
  answers.submit = [&](const v1::SubmitJobRequest&, v1::SubmitJobResponse* response) {
    *response->mutable_job() = AJob(v1::JOB_PHASE_QUEUED);
    if (!answered.HasBeenNotified()) answered.Notify();
    return grpc::Status::OK;
  };
  Connection connection({.server = hangs.address() + "," + answers.address(),
                         .timeout = absl::Seconds(30),
                         .turn = absl::Milliseconds(500)});
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Submit(connection, {.file = kExample}, stopper, captured.io), kSuccess);
  EXPECT_TRUE(answered.HasBeenNotified());
}

// Whatever the pause between two attempts has grown to meanwhile.
TEST(ConnectionTest, CoordinatorThatWasDown_IsAskedAsSoonAsItIsBack) {
  const std::string address = FakeServer().address();
  Connection connection({.server = address});
  absl::Notification waited;
  std::thread waiter([&] {
    connection.Wait(grpc::Status(grpc::StatusCode::UNAVAILABLE, "connection refused"),
                    absl::Minutes(1));
    waited.Notify();
  });
  EXPECT_FALSE(waited.WaitForNotificationWithTimeout(absl::Milliseconds(200))) << "nobody is there";
  const FakeServer back(address);
  EXPECT_TRUE(waited.WaitForNotificationWithTimeout(absl::Seconds(30)));
  waiter.join();
}

TEST(ConnectionTest, PausesBetweenAttempts_GrowToASecond) {
  Backoff backoff(/*seed=*/1);
  absl::Duration longest;
  for (int i = 0; i < 100; ++i) longest = std::max(longest, backoff.Next());
  EXPECT_GT(longest, absl::Milliseconds(900));
  EXPECT_LE(longest, absl::Seconds(1));
}

}  // namespace
}  // namespace phalanx::client
