// What is said next to an error: of every code, and never twice.
#include "client/advice.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/rpc_status.h"
#include "core/base/terminal_text.h"
#include "core/base/violation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// What `fail` writes about `status`.
std::string Told(int (*fail)(const absl::Status&, Io&), const absl::Status& status) {
  Captured captured;
  fail(status, captured.io);
  EXPECT_EQ(captured.out.str(), "");
  return captured.talk.str();
}

// All codes of gRPC but OK.
class AdviceTest : public ::testing::TestWithParam<int> {
 protected:
  absl::Status Error(const std::string& message) const {
    return absl::Status(static_cast<absl::StatusCode>(GetParam()), message);
  }
};

TEST_P(AdviceTest, ErrorThatOnlySaysWhatIsWrong_EndsWithWhatToDo) {
  for (const auto fail : {&Fail, &FailCall, &FailFile}) {
    const std::string told = Told(fail, Error("it is so"));
    EXPECT_THAT(told, StartsWith("error: it is so\nwhat to do: "));
    EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 2) << told;
    EXPECT_EQ(told.back(), '\n');
    EXPECT_GT(told.size(), std::string("error: it is so\nwhat to do: \n").size() + 10) << told;
  }
}

TEST_P(AdviceTest, ErrorThatSaysItItself_IsLeftAsItIs) {
  for (const char* message :
       {"node a is drained; phalanx uncordon a lets it take jobs again",
        "vera calls more often than 50 times a second; ask again in 1 s",
        "3 requests wait for the store; try again later", "--items needs --search",
        "unknown field; did you mean steps?", "job-1 has no step 9; its last one is 8",
        "two lines:\ncorrect the file\n"}) {
    const std::string told = absl::StrCat("error: ", TerminalText(message), "\n");
    EXPECT_EQ(Told(&Fail, Error(message)), told);
    EXPECT_EQ(Told(&FailCall, Error(message)), told);
  }
}

TEST_P(AdviceTest, WhatIsKnownBetter_IsSaidInstead) {
  const absl::Status status = WithNext(Error("it is so"), "turn the page");
  EXPECT_EQ(Told(&FailCall, status), "error: it is so\nwhat to do: turn the page\n");
  EXPECT_EQ(Told(&Fail, status), "error: it is so\nwhat to do: turn the page\n");
}

INSTANTIATE_TEST_SUITE_P(Codes, AdviceTest, ::testing::Range(1, 17));

struct Known {
  absl::StatusCode code;
  const char* message;
  const char* advice;
};
class KnownErrorTest : public ::testing::TestWithParam<Known> {};

// As coordinators word them.
TEST_P(KnownErrorTest, OfACall_LeadsOn) {
  EXPECT_THAT(Told(&FailCall, absl::Status(GetParam().code, GetParam().message)),
              HasSubstr(absl::StrCat("\nwhat to do: ", GetParam().advice)));
}

INSTANTIATE_TEST_SUITE_P(
    Messages, KnownErrorTest,
    ::testing::Values(
        Known{absl::StatusCode::kNotFound, "there is no job \"x\"",
              "phalanx list shows the jobs that there are"},
        Known{absl::StatusCode::kNotFound, "there is no incident 3", "see that the name is right"},
        Known{absl::StatusCode::kResourceExhausted, "vera has 256 connections open; at most 256",
              "wait and run the command again, and end calls"},
        Known{absl::StatusCode::kResourceExhausted, "4096 such calls are open; at most 4096",
              "wait and run the command again, and end calls"},
        Known{absl::StatusCode::kUnauthenticated, "there is no certificate",
              "show a certificate that the coordinator's authority has signed"},
        Known{absl::StatusCode::kFailedPrecondition,
              "node a, which has rank 1 of job-7, is not connected",
              "run the command again when that has changed"},
        Known{absl::StatusCode::kFailedPrecondition, "job-7 has already ended: Succeeded",
              "there is nothing to cancel: it has ended; phalanx rerun queues it again\n"},
        Known{absl::StatusCode::kFailedPrecondition, "job-7 has already ended: Failed",
              "there is nothing to cancel: it has ended; phalanx rerun queues it again\n"},
        Known{absl::StatusCode::kFailedPrecondition,
              "job-7 is Failed; faults are for a job that is Running",
              "it has ended: phalanx rerun queues it again"},
        Known{absl::StatusCode::kFailedPrecondition,
              "job-7 is Queued; faults are for a job that is Running",
              "run the command again when that has changed"},
        Known{absl::StatusCode::kPermissionDenied,
              "job-7 is ann's; only they or an operator may cancel it", "ask somebody who may"},
        Known{absl::StatusCode::kUnimplemented, "", "the coordinator is of another version"},
        Known{absl::StatusCode::kInternal, "no plan", "this is a fault of Phalanx"}));

TEST(FailTest, Violations_NameTheirRules) {
  EXPECT_EQ(Told(&FailCall, ViolationsStatus({{.field = "steps",
                                               .value = "0",
                                               .rule = "must be at "
                                                       "least 1"}})),
            "steps: 0: must be at least 1\n1 violation\n");
}

TEST(FailTest, FileThatIsNotThere_IsToBeNamedAnew) {
  EXPECT_EQ(Told(&FailFile, absl::NotFoundError("x.yaml: No such file or directory")),
            "error: x.yaml: No such file or directory\nwhat to do: name one that is there and that "
            "you can read\n");
}

// One that goes over the wire, as each command's does.
TEST(FailTest, AnswerOfACoordinator_EndsWithWhatToDo) {
  for (int code = 1; code <= 16; ++code) {
    if (code == static_cast<int>(grpc::StatusCode::UNAVAILABLE)) continue;  // is tried again
    FakeServer server;
    server.get = [code](const v1::GetJobRequest&, v1::GetJobResponse*) {
      return grpc::Status(static_cast<grpc::StatusCode>(code), "no");
    };
    Connection connection = server.Connect();
    Captured captured;
    Get(connection, "job-7", Format::kTable, captured.io);
    EXPECT_THAT(captured.talk.str(), HasSubstr("\nwhat to do: ")) << code;
  }
}

}  // namespace
}  // namespace phalanx::client
