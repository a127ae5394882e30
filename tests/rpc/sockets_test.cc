// Connections that stand open, and callers that are slow, lock nobody out.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "core/posix/socket.h"
#include "nlohmann/json.hpp"
#include "tests/rpc/fixture.h"
#include "tests/rpc/health_check.h"
#include "tests/rpc/plain_http.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

namespace phalanx::coordinator {
namespace {

// phalanx-coordinator with 128 descriptors.
class LimitedCoordinator {
 public:
  explicit LimitedCoordinator(const std::vector<std::string>& flags = {})
      : folder_(support::MakeFolder("sockets")),
        process_(Command(flags), support::NewMark(), "/dev/stdout", "/dev/stderr") {
    support::AwaitFile(folder_ + "/ready", process_);
    addresses_ = nlohmann::json::parse(support::ReadFile(folder_ + "/ready"));
  }
  int grpc() const { return PortOf("grpc"); }
  int http() const { return PortOf("http"); }

 private:
  std::vector<std::string> Command(const std::vector<std::string>& flags) const {
    std::vector<std::string> command = {
        "/usr/bin/prlimit", "--nofile=100:128", support::Program("phalanx-coordinator"),
        "--listen",         "127.0.0.1:0",      "--http",
        "127.0.0.1:0",      "--store",          folder_ + "/store",
        "--ready-file",     folder_ + "/ready"};
    command.insert(command.end(), flags.begin(), flags.end());
    return command;
  }
  // Of {"grpc":"127.0.0.1:1","http":"127.0.0.1:2"}.
  int PortOf(const char* key) const {
    const std::string address = addresses_.at(key).get<std::string>();
    return std::stoi(address.substr(address.rfind(':') + 1));
  }

  const std::string folder_;
  support::Process process_;
  nlohmann::json addresses_;
};

// Whether the health service says SERVING.
bool Serves(int port, int seconds = 20) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const std::shared_ptr<grpc::Channel> channel = grpc::CreateCustomChannel(
      absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials(), arguments);
  return HealthOf(channel, "", seconds) == kServes;
}

TEST(SocketsTest, Probes_AnswerWhileMoreConnectionsStandOpenThanThereAreDescriptors) {
  const LimitedCoordinator coordinator;
  std::vector<int> standing;
  for (int i = 0; i < 200; ++i) standing.push_back(Connect(coordinator.grpc()));
  EXPECT_TRUE(Serves(coordinator.grpc()));
  EXPECT_THAT(Get(coordinator.http(), "/healthz"), ::testing::HasSubstr("200 OK"));
  EXPECT_THAT(Get(coordinator.http(), "/readyz"), ::testing::HasSubstr("200 OK"));
  for (int fd : standing) close(fd);
  EXPECT_TRUE(Serves(coordinator.grpc()));
}

TEST(SocketsTest, ASession_IsKeptWhileOthersStandOpen) {
  const LimitedCoordinator coordinator;
  FakeWorker worker(grpc::CreateChannel(absl::StrCat("127.0.0.1:", coordinator.grpc()),
                                        grpc::InsecureChannelCredentials()));
  worker.Join("n", 1);
  std::vector<int> standing;
  for (int i = 0; i < 200; ++i) {
    standing.push_back(Connect(coordinator.grpc()));
    v1::OpenSessionRequest heartbeat;
    heartbeat.mutable_heartbeat();
    ASSERT_TRUE(worker.Write(heartbeat)) << "after " << i << " connections";
  }
  EXPECT_TRUE(Serves(coordinator.grpc()));
  for (int fd : standing) close(fd);
}

// More descriptors than the gate leaves to connections are taken while the worker has nothing to
// say.
TEST_F(RpcTest, WorkerThatIsSilentWithinItsInterval_KeepsItsConnection) {
  const int free = open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(free);
  server_.reset();
  ServerOptions options;
  options.sessions.heartbeat_interval = absl::Minutes(1);
  options.sessions.heartbeat_timeout = absl::Minutes(2);
  options.gate = {.reserved_descriptors = DescriptorLimit() - (free + 40),
                  .silence_min = absl::ZeroDuration(),
                  .mute_min = absl::Hours(1)};
  Start(options);
  FakeWorker worker(channel);
  worker.Join("n", 1);
  std::vector<int> standing;
  bool turned_away = false;
  while (!turned_away && standing.size() < 100) {
    standing.push_back(Connect(server_->port()));
    char byte;
    // Whoever is let in is sent the server's settings.
    turned_away = recv(standing.back(), &byte, 1, 0) <= 0;
  }
  EXPECT_TRUE(turned_away) << "somebody was shut down for each newcomer";
  v1::ListNodesResponse nodes;
  grpc::ClientContext context;
  SetDeadline(context);
  ASSERT_TRUE(jobs->ListNodes(&context, {}, &nodes).ok());
  ASSERT_EQ(nodes.nodes_size(), 1);
  EXPECT_EQ(nodes.nodes(0).state(), v1::NodeStatus::STATE_READY);
  for (int fd : standing) close(fd);
}

// Else whoever opens connections keeps callers out until their handshakes time out, after 10 s.
TEST(SocketsTest, ConnectionsThatNeverSpoke_MakeRoomSoonerThanAWorkerCouldBeSilent) {
  const LimitedCoordinator coordinator({"--heartbeat-interval=60s", "--heartbeat-timeout=120s"});
  std::vector<int> standing;
  for (int i = 0; i < 200; ++i) standing.push_back(Connect(coordinator.grpc()));
  EXPECT_TRUE(Serves(coordinator.grpc(), /*seconds=*/7));
  for (int fd : standing) close(fd);
}

TEST(SocketsTest, SlowHttpCallers_HoldUpNobody) {
  const LimitedCoordinator coordinator;
  std::vector<int> slow;
  for (int i = 0; i < 60; ++i) {
    slow.push_back(Connect(coordinator.http()));
    send(slow.back(), "GET /heal", 9, MSG_NOSIGNAL);
    for (int fd : slow) send(fd, "t", 1, MSG_NOSIGNAL);
    EXPECT_THAT(Get(coordinator.http(), "/healthz"), ::testing::HasSubstr("200 OK"));
    EXPECT_THAT(Get(coordinator.http(), "/readyz"), ::testing::HasSubstr("200 OK"));
  }
  for (int fd : slow) close(fd);
}

TEST(SocketsTest, HttpCallersOfOneAddress_TakeNobodyElsesPlace) {
  const LimitedCoordinator coordinator;
  const int other = Connect(coordinator.http(), "127.0.0.2");
  std::vector<int> many;
  for (int i = 0; i < 60; ++i) many.push_back(Connect(coordinator.http()));
  // All of them have been let in when this one is answered.
  EXPECT_THAT(Get(coordinator.http(), "/healthz"), ::testing::HasSubstr("200 OK"));
  const std::string request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
  send(other, request.data(), request.size(), MSG_NOSIGNAL);
  char answer[4096];
  const ssize_t size = recv(other, answer, sizeof(answer), 0);
  EXPECT_THAT(std::string(answer, size > 0 ? static_cast<size_t>(size) : 0),
              ::testing::HasSubstr("200 OK"));
  close(other);
  for (const int fd : many) close(fd);
}

TEST_F(RpcTest, LogReaders_NewestTakesThePlaceOfTheOldest) {
  server_.reset();
  Start({.log_calls_max = 2});
  FakeWorker worker(channel);
  worker.Join("n", 1);
  MustSubmit(JobText("a"));
  worker.TakeAssignment();
  v1::GetLogsRequest request;
  request.set_job("a");
  request.set_follow(true);
  grpc::ClientContext contexts[3];
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GetLogsResponse>>> readers;
  for (grpc::ClientContext& context : contexts) {
    SetDeadline(context);
    readers.push_back(jobs->GetLogs(&context, request));
    EXPECT_TRUE(worker.Command().has_fetch_logs());
  }
  v1::GetLogsResponse response;
  while (readers[0]->Read(&response)) continue;
  const grpc::Status oldest = readers[0]->Finish();
  EXPECT_EQ(oldest.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(oldest.error_message(), ::testing::HasSubstr("newer calls took the place"));
  contexts[1].TryCancel();
  contexts[2].TryCancel();
}

TEST_F(RpcTest, LogReaders_OfOneNode_OneMoreThanItSendsToEndsTheOldestWithTheBound) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  MustSubmit(JobText("a"));
  worker.TakeAssignment();
  v1::GetLogsRequest request;
  request.set_job("a");
  request.set_follow(true);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GetLogsResponse>>> readers;
  for (size_t i = 0; i <= LogRelay::kUploadsMax; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    SetDeadline(*contexts.back());
    readers.push_back(jobs->GetLogs(contexts.back().get(), request));
    EXPECT_TRUE(worker.Command().has_fetch_logs());
  }
  v1::GetLogsResponse first;
  EXPECT_TRUE(readers[0]->Read(&first));
  EXPECT_EQ(first.text(), "");
  EXPECT_FALSE(readers[0]->Read(&first));
  const grpc::Status oldest = readers[0]->Finish();
  EXPECT_EQ(oldest.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(oldest.error_message(),
            "readers of logs of node n: 17: at most 16 at one time, and a newer one took the "
            "place of this one; end another, or name ranks of other nodes");
  for (const auto& context : contexts) context->TryCancel();
}

}  // namespace
}  // namespace phalanx::coordinator
