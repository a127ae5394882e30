// A coordinator that stands by answers who leads, and nothing else.
#include "coordinator/rpc/standby.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/posix/socket.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/rpc/fixture.h"
#include "tests/rpc/health_check.h"
#include "tests/rpc/plain_http.h"
#include "tests/support/authority.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class StandbyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ServerOptions options;
    options.listening = listening_.get();
    standby_ = *StandbyServer::Start(options, metrics_);
    OpenChannel();
  }
  // From here on calls come on a connection of their own.
  void OpenChannel() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel_ = grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", PortOf(listening_.get())),
                                         grpc::InsecureChannelCredentials(), arguments);
  }
  grpc::Status ListNodes() {
    grpc::ClientContext context;
    SetDeadline(context);
    context.set_wait_for_ready(true);
    v1::ListNodesResponse nodes;
    return v1::JobService::NewStub(channel_)->ListNodes(&context, {}, &nodes);
  }
  const UniqueFd listening_ = *Listen("127.0.0.1", 0);
  Metrics metrics_;
  std::unique_ptr<StandbyServer> standby_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(StandbyTest, Call_EndsWithTheAddressOfWhoeverLeads) {
  EXPECT_THAT(ListNodes().error_message(), HasSubstr("nobody leads"));
  standby_->SetLeader("10.0.0.5:4444");
  const grpc::Status status = ListNodes();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("10.0.0.5:4444 leads"));
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  ASSERT_TRUE(details.details(0).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "STANDBY");
  EXPECT_EQ(info.metadata().at("leader"), "10.0.0.5:4444");
}

// An alert on coordinators that do not serve is to leave this one out, unless nobody leads.
TEST_F(StandbyTest, Metrics_SayThatAnotherOneLeads) {
  const auto metrics = [this] { return standby_->MetricsText(); };
  EXPECT_THAT(metrics(),
              AllOf(HasSubstr("\nphalanx_serving 0\n"), HasSubstr("\nphalanx_standby 0\n")));
  standby_->SetLeader("10.0.0.5:4444");
  EXPECT_THAT(metrics(),
              AllOf(HasSubstr("\nphalanx_serving 0\n"), HasSubstr("\nphalanx_standby 1\n")));
  standby_->SetLeader("");
  EXPECT_THAT(metrics(), HasSubstr("\nphalanx_standby 0\n"));
}

TEST_F(StandbyTest, Session_EndsAtOnce) {
  FakeWorker worker(channel_);
  worker.SayHello(FakeWorker::Hello("n", 1, 1));
  EXPECT_FALSE(worker.Read().has_value());
  EXPECT_EQ(worker.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(StandbyTest, Health_IsNotServing) { EXPECT_EQ(HealthOf(channel_), kServesNot); }

TEST(StandbyTlsTest, HandshakeThatFails_IsCountedAndTold) {
  const support::Authority authority;
  const UniqueFd listening = *Listen("127.0.0.1", 0);
  Mutex mutex;
  CondVar changed;
  std::vector<std::string> lines;
  ServerOptions options;
  options.listening = listening.get();
  options.tls = authority.Coordinator();
  options.audit = [&](const std::string& line) {
    MutexLock lock(&mutex);
    lines.push_back(line);
    changed.SignalAll();
  };
  Metrics metrics;
  const auto standby = *StandbyServer::Start(options, metrics);
  for (const char* reason : {"plaintext", "other"}) {
    EXPECT_THAT(metrics.Text({}), HasSubstr(absl::StrCat(
                                      "phalanx_tls_handshakes_failed_total{port=\"grpc\",reason=\"",
                                      reason, "\"} 0\n")))
        << "an alert on its growth is to see the first";
  }
  const int fd = Connect(PortOf(listening.get()));
  send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL);
  {
    MutexLock lock(&mutex);
    while (lines.empty()) changed.Wait(&mutex);
    EXPECT_THAT(lines[0], HasSubstr("method=handshake port=grpc peer=ipv4:127.0.0.1:"));
  }
  close(fd);
  EXPECT_THAT(
      metrics.Text({}),
      HasSubstr("phalanx_tls_handshakes_failed_total{port=\"grpc\",reason=\"plaintext\"} 1\n"));
}

// Callers that come between the two find the one that takes over.
TEST_F(StandbyTest, ServerThatTakesOver_HasTheSameSocket) {
  ASSERT_EQ(ListNodes().error_code(), grpc::StatusCode::UNAVAILABLE);
  standby_.reset();
  ServerOptions options;
  options.listening = listening_.get();
  const auto server =
      *Server::Start(options, std::make_unique<MemoryBackend>(std::make_shared<MemoryDisk>()));
  EXPECT_EQ(server->port(), PortOf(listening_.get()));
  OpenChannel();  // a call that is sent on the old connection as that goes ends with it
  const grpc::Status listed = ListNodes();
  EXPECT_TRUE(listed.ok()) << listed.error_message();
}

}  // namespace
}  // namespace phalanx::coordinator
