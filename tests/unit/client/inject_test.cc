// `phalanx inject` against a server of the test's own.
#include <atomic>

#include "client/commands.h"
#include "client/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using ::testing::HasSubstr;

TEST(InjectTest, Fault_IsAskedForAndItsNodeNamed) {
  FakeServer server;
  v1::InjectFaultRequest asked;
  server.inject = [&](const v1::InjectFaultRequest& request, v1::InjectFaultResponse* response) {
    asked = request;
    response->set_job(7);
    response->set_epoch(2);
    response->set_node("b");
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  const InjectOptions options{.job = "demo",
                              .fault = {.rank = "3",
                                        .fault = "stop",
                                        .at_step = "20",
                                        .phase = "backward",
                                        .duration = "1500ms"}};
  Captured table, json, name;
  EXPECT_EQ(Inject(connection, options, table.io), kSuccess);
  EXPECT_EQ(table.talk.str(),
            "job-7 epoch 2: rank 3 (node b): stop in backward of step 20 for 1.5s\n");
  EXPECT_EQ(table.out.str(), "");
  EXPECT_EQ(asked.job(), "demo");
  EXPECT_EQ(asked.fault().kind(), v1::FAULT_KIND_STOP);
  EXPECT_EQ(asked.fault().rank(), 3);
  EXPECT_EQ(asked.fault().at_step(), 20);
  EXPECT_EQ(asked.fault().phase(), v1::FAULT_PHASE_BACKWARD);
  EXPECT_EQ(asked.fault().duration().seconds(), 1);
  EXPECT_EQ(asked.fault().duration().nanos(), 500'000'000);
  InjectOptions other = options;
  other.format = Format::kJson;
  EXPECT_EQ(Inject(connection, other, json.io), kSuccess);
  EXPECT_EQ(json.out.str(), "{\n  \"job\": 7,\n  \"epoch\": 2,\n  \"node\": \"b\"\n}\n");
  other.format = Format::kName;
  EXPECT_EQ(Inject(connection, other, name.io), kSuccess);
  EXPECT_EQ(name.out.str(), "job-7\n");
}

TEST(InjectTest, WrongFlags_AreToldAllAtOnceAndNobodyIsAsked) {
  Connection nobody({.server = "127.0.0.1:1", .timeout = absl::Milliseconds(100)});
  Captured captured;
  EXPECT_EQ(Inject(nobody, {.job = "7", .fault = {.rank = "x", .fault = "kill", .duration = "1s"}},
                   captured.io),
            kUsage);
  EXPECT_EQ(captured.talk.str(),
            "--rank: x: must be a rank such as 3\n"
            "--for: 1s: kill is for good; only stop, hang, slow and partition end\n"
            "2 violations\n");
}

// Whether it was carried out is not known, and twice would be once too often.
TEST(InjectTest, CoordinatorThatFails_IsNotAskedAgain) {
  FakeServer server;
  std::atomic<int> calls = 0;
  server.inject = [&](const v1::InjectFaultRequest&, v1::InjectFaultResponse*) {
    ++calls;
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "stopping");
  };
  Connection connection = server.Connect();
  Captured captured;
  EXPECT_EQ(Inject(connection, {.job = "7", .fault = {.rank = "1", .fault = "kill"}}, captured.io),
            kUnreachable);
  EXPECT_EQ(calls, 1);
}

TEST(InjectTest, NotAllowed_HasItsCode) {
  FakeServer server;
  server.inject = [](const v1::InjectFaultRequest&, v1::InjectFaultResponse*) {
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "no");
  };
  Connection connection = server.Connect();
  Captured captured;
  EXPECT_EQ(Inject(connection, {.job = "7", .fault = {.rank = "1", .fault = "kill"}}, captured.io),
            kNotAllowed);
  EXPECT_EQ(captured.talk.str(),
            "error: no\nwhat to do: ask somebody who may do it, or for a certificate whose role "
            "may; phalanx config show tells which one is shown now\n");
}

// The name was right.
TEST(InjectTest, PhaseThatTheJobHasNot_IsNoWrongName) {
  FakeServer server;
  server.inject = [](const v1::InjectFaultRequest&, v1::InjectFaultResponse*) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND,
                        "job-7 writes no checkpoints: it has no phase checkpoint");
  };
  Connection connection = server.Connect();
  Captured captured;
  const InjectOptions options{.job = "7",
                              .fault = {.rank = "1", .fault = "kill", .phase = "checkpoint"}};
  EXPECT_NE(Inject(connection, options, captured.io), kSuccess);
  EXPECT_THAT(captured.talk.str(), testing::Not(HasSubstr("see that the name is right")));
}

}  // namespace
}  // namespace phalanx::client
