// `phalanx top` against a server of the test's own.
#include "client/top.h"

#include <string>

#include "client/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class TopTest : public ::testing::Test {
 protected:
  TopTest() {
    server_.nodes = [](const v1::ListNodesRequest&, v1::ListNodesResponse* response) {
      v1::NodeStatus& node = *response->add_nodes();
      node.set_name("a");
      node.set_state(v1::NodeStatus::STATE_READY);
      node.set_device_kind("gpu");
      node.set_devices(3);
      for (const int64_t job : {7, 0, 7}) node.add_device_jobs(job);
      for (int i = 0; i < 3; ++i) node.add_device_memory(int64_t{80} << 30);
      for (const int32_t degrees : {41, 63, 0}) node.add_device_temperatures(degrees);
      for (const int64_t gib : {50, 0, 10}) node.add_device_used_memory(gib << 30);
      response->add_nodes()->set_name("b");
      v1::NodeStatus& slots = *response->add_nodes();
      slots.set_device_kind("cpu");
      slots.set_devices(2);
      for (const int64_t mib : {300, 212}) slots.add_device_used_memory(mib << 20);
      v1::NodeStatus& older = *response->add_nodes();
      older.set_devices(1);
      older.add_device_memory(int64_t{80} << 30);
      older.add_device_used_memory(-1);
      return grpc::Status::OK;
    };
    server_.list = [this](const v1::ListJobsRequest& request, v1::ListJobsResponse* response) {
      asked_ = request;
      *response->add_jobs() = AJob(v1::JOB_PHASE_RUNNING, 12);
      return grpc::Status::OK;
    };
  }

  FakeServer server_;
  v1::ListJobsRequest asked_;
  Connection connection_ = server_.Connect();
  Captured captured_;
  Stopper stopper_;
};

TEST_F(TopTest, Terminal_IsRedrawnUntilItIsStopped) {
  stopper_.Stop();  // after the first drawing
  EXPECT_EQ(Top(connection_, {.terminal = true}, stopper_, captured_.io), kSuccess);
  const std::string out = captured_.out.str();
  EXPECT_THAT(out, StartsWith("\x1b[H" + server_.address()));
  EXPECT_THAT(out, HasSubstr("2 of 6 devices busy  2.00k tokens/s"));
  EXPECT_THAT(out, HasSubstr("job-7  demo  Running  12/300  1.25  2.00k     6      1"));
  EXPECT_THAT(out, HasSubstr("2/3   60.0 GiB/240.0 GiB  63 C"));
  EXPECT_THAT(out, HasSubstr("0/0   -                   -"));
  EXPECT_THAT(out, HasSubstr("0/2   512.0 MiB/-         -"));
  EXPECT_THAT(out, HasSubstr("0/1   -/80.0 GiB          -"));
  EXPECT_THAT(out, HasSubstr("  job-7\x1b[K\n"));
  EXPECT_THAT(asked_.phases(),
              ElementsAre(v1::JOB_PHASE_QUEUED, v1::JOB_PHASE_STARTING, v1::JOB_PHASE_RUNNING));
}

TEST_F(TopTest, Wide_HasALineForEachDevice_UpToItsMost) {
  stopper_.Stop();
  EXPECT_EQ(Top(connection_, {.format = Format::kWide, .terminal = true}, stopper_, captured_.io),
            kSuccess);
  const std::string out = captured_.out.str();
  EXPECT_THAT(out, HasSubstr("NODE  DEVICE  JOB    MEMORY"));
  EXPECT_THAT(out, HasSubstr("a     0       job-7  50.0 GiB/80.0 GiB  41 C"));
  EXPECT_THAT(out, HasSubstr("a     1       -      0 B/80.0 GiB       63 C"));
  EXPECT_THAT(out, HasSubstr("a     2       job-7  10.0 GiB/80.0 GiB  -"));
  EXPECT_EQ(out.find("more"), std::string::npos);
  server_.nodes = [](const v1::ListNodesRequest&, v1::ListNodesResponse* response) {
    for (int i = 0; i < 40; ++i) response->add_nodes()->set_devices(8);
    return grpc::Status::OK;
  };
  Captured many;
  EXPECT_EQ(Top(connection_, {.format = Format::kWide, .terminal = true}, stopper_, many.io),
            kSuccess);
  EXPECT_THAT(many.out.str(), HasSubstr("... and 64 more\x1b[K\n"));
}

TEST_F(TopTest, WithoutATerminal_ItIsRefused) {
  EXPECT_EQ(Top(connection_, {.terminal = false}, stopper_, captured_.io), kUsage);
  EXPECT_EQ(captured_.out.str(), "");
  EXPECT_THAT(captured_.talk.str(), HasSubstr("-o json prints one sample"));
}

TEST_F(TopTest, Json_IsOneSampleOfJobsAndNodes) {
  EXPECT_EQ(Top(connection_, {.format = Format::kJson}, stopper_, captured_.io), kSuccess);
  EXPECT_THAT(captured_.out.str(), HasSubstr("\"jobs\""));
  EXPECT_THAT(captured_.out.str(), HasSubstr("\"device_jobs\""));
  EXPECT_THAT(captured_.out.str(), HasSubstr("\"device_temperatures\""));
  EXPECT_THAT(captured_.out.str(), HasSubstr("\"device_used_memory\""));
  Captured names;
  EXPECT_EQ(Top(connection_, {.format = Format::kName}, stopper_, names.io), kSuccess);
  EXPECT_EQ(names.out.str(), "job-7\n");
}

TEST_F(TopTest, CoordinatorThatRefuses_EndsIt) {
  server_.nodes = [](const v1::ListNodesRequest&, v1::ListNodesResponse*) {
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "not you");
  };
  EXPECT_EQ(Top(connection_, {.terminal = true}, stopper_, captured_.io), kNotAllowed);
  EXPECT_THAT(captured_.talk.str(), HasSubstr("not you"));
}

}  // namespace
}  // namespace phalanx::client
