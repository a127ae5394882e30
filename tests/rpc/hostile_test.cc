// Garbage on the ports harms nothing: after it the coordinator answers as before.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/prng.h"
#include "core/posix/unique_fd.h"
#include "tests/rpc/access_fixture.h"
#include "tests/rpc/fixture.h"
#include "tests/rpc/plain_http.h"
#include "tests/rpc/raw_http2.h"
#include "tests/rpc/tls_http.h"
#include "transport/http/http_server.h"

namespace phalanx::coordinator {
namespace {

enum class Then { kListen, kHangUp };  // kHangUp: says that it will send no more

// Sends `bytes` to a local port and reads until the peer closes.
std::string Exchange(int port, const std::string& bytes, Then then) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  timeval timeout{.tv_sec = 1, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) break;
      sent += static_cast<size_t>(n);
    }
    if (then == Then::kHangUp) shutdown(fd, SHUT_WR);
    char buffer[4096];
    for (ssize_t n = 0; (n = recv(fd, buffer, sizeof(buffer), 0)) > 0;) {
      answer.append(buffer, static_cast<size_t>(n));
    }
  }
  close(fd);
  return answer;
}

std::vector<std::string> Garbage() {
  Prng prng(1);
  std::vector<std::string> list = {
      "",
      "\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
      "GET " + std::string(100'000, 'a'),
      std::string(1000, '\0'),
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"};
  for (int i = 0; i < 30; ++i) {
    std::string bytes = i % 2 == 0 ? "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" : "";
    for (uint64_t n = prng.Below(2000); n > 0; --n) bytes.push_back(static_cast<char>(prng.Next()));
    list.push_back(std::move(bytes));
  }
  return list;
}

TEST_F(RpcTest, GarbageOnTheGrpcPort_HarmsNothing) {
  for (const std::string& bytes : Garbage()) Exchange(server_->port(), bytes, Then::kHangUp);
  EXPECT_EQ(MustSubmit(JobText("a")), 1);
}

// Limits that a test can wait for.
void KeepShort(ServerOptions& options) {
  options.handshake_timeout = absl::Seconds(2);
  options.ping_interval = absl::Seconds(1);
  options.ping_timeout = absl::Seconds(3);
}

TEST_F(RpcTest, WhoeverStopsInTheMidstOfSomething_IsEnded_AndHoldsUpNobody) {
  server_.reset();
  ServerOptions options;
  KeepShort(options);
  Start(std::move(options));
  std::vector<std::pair<std::string, UniqueFd>> open;
  for (int i = 0; i < 10; ++i) {
    for (const auto& [name, bytes] : Drips()) {
      open.emplace_back(name, UniqueFd(Connect(server_->port())));
      send(open.back().second.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    }
  }
  MustSubmit(JobText("a"));
  const size_t records = disk->records().size();
  for (const auto& [name, fd] : open) {
    char buffer[4096];
    ssize_t n = 1;
    while (n > 0) n = recv(fd.get(), buffer, sizeof(buffer), 0);
    EXPECT_TRUE(n == 0 || errno == ECONNRESET) << name << " is not ended";
  }
  EXPECT_EQ(disk->records().size(), records) << "nothing has changed";
  EXPECT_EQ(MustSubmit(JobText("b")), 2);
}

TEST_F(AccessTest, WhoeverStopsInTheMidstOfSomething_IsEndedOverTlsToo) {
  server_.reset();
  Open([](ServerOptions& options) { KeepShort(options); });
  Be("sam", "submitter");
  const transport::TlsFiles sam = authority().User("sam", "submitter");
  const int half = Connect(server_->port());
  send(half, "\x16\x03\x01\x02\x00half", 9, MSG_NOSIGNAL);
  std::vector<std::pair<std::string, std::unique_ptr<TlsClient>>> open;
  for (const auto& [name, bytes] : Drips()) {
    open.emplace_back(name, std::make_unique<TlsClient>(server_->port(), sam, "h2"));
    ASSERT_TRUE(open.back().second->connected()) << name;
    if (!bytes.empty()) open.back().second->Send(bytes);
  }
  MustSubmit(JobText("a"));
  const size_t records = disk->records().size();
  for (const auto& [name, client] : open)
    EXPECT_TRUE(client->ReadsToTheEnd()) << name << " is not ended";
  char byte = 0;
  EXPECT_TRUE(recv(half, &byte, 1, 0) == 0 || errno == ECONNRESET)
      << "half a handshake is not ended";
  close(half);
  ExpectFailedHandshake("grpc", "broken_off", 0, "it was broken off");
  EXPECT_EQ(disk->records().size(), records) << "nothing has changed";
  EXPECT_EQ(MustSubmit(JobText("b")), 2);
}

TEST_F(RpcTest, GarbageInASession_HarmsNothing) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  Prng prng(2);
  for (int i = 0; i < 200; ++i) {
    std::string bytes;
    for (uint64_t n = prng.Below(40); n > 0; --n) bytes.push_back(static_cast<char>(prng.Next()));
    v1::OpenSessionRequest request;
    if (!request.ParseFromString(bytes)) {
      v1::RankReport* report = request.mutable_rank_report();
      report->set_job(static_cast<int64_t>(prng.Below(3)));
      report->set_epoch(static_cast<int64_t>(prng.Next()));
      report->set_rank(static_cast<int32_t>(prng.Next()));
      report->mutable_ready();
    }
    ASSERT_TRUE(worker.Write(request));
  }
  MustSubmit(JobText("a"));
  EXPECT_TRUE(worker.Command().has_prepare_data());
}

class HttpTest : public RpcTest {
 protected:
  void SetUp() override {
    RpcTest::SetUp();
    http_ = *transport::HttpServer::Start({.metrics = [this] { return server_->MetricsText(); },
                                           .live = [this] { return server_->liveness(); },
                                           .ready = [this] { return server_->readiness(); }});
  }
  void TearDown() override {
    http_.reset();
    RpcTest::TearDown();
  }
  std::string Get(const std::string& path, const std::string& host = "Host: localhost\r\n") {
    return Exchange(http_->port(),
                    absl::StrCat("GET ", path, " HTTP/1.1\r\n", host, "Connection: close\r\n\r\n"),
                    Then::kListen);
  }
  std::unique_ptr<transport::HttpServer> http_;
};

TEST_F(HttpTest, Pages_AnswerAndReadinessFollowsTheServer) {
  MustSubmit(JobText("a"));
  EXPECT_THAT(Get("/healthz"), ::testing::HasSubstr("200 OK"));
  EXPECT_THAT(Get("/readyz"), ::testing::HasSubstr("200 OK"));
  EXPECT_THAT(Get("/metrics"), ::testing::HasSubstr("phalanx_jobs{phase=\"queued\"} 1"));
  EXPECT_THAT(
      Get("/metrics"),
      ::testing::HasSubstr("phalanx_rpc_handled_total{code=\"OK\",method=\"SubmitJob\"} 1"));
  EXPECT_THAT(Get("/../etc/passwd"), ::testing::HasSubstr("404"));
  server_->Shutdown(absl::Seconds(1));
  EXPECT_THAT(Get("/readyz"), ::testing::HasSubstr("503"));
}

TEST_F(HttpTest, WhoeverWasLedHereByAnotherName_SeesNoPageInPlaintext) {
  for (const std::string host : {"evil.example", "evil.example:80", "localhost.evil.example",
                                 "127.0.0.1.evil.example:1", "10.0.0.1:80", "[::2]:80", ":80"}) {
    const std::string field = absl::StrCat("hOsT:  ", host, "\r\n");
    EXPECT_THAT(Get("/metrics", field), ::testing::HasSubstr("403 Forbidden")) << host;
    EXPECT_THAT(Get("/metrics", field), ::testing::HasSubstr("ask localhost")) << host;
    EXPECT_THAT(Get("/livez", field), ::testing::HasSubstr("200 OK")) << host;
  }
  for (const std::string host :
       {"localhost", "LOCALHOST:81", "127.0.0.1", "127.8.0.1:80", "[::1]", "[::1]:80"}) {
    EXPECT_THAT(Get("/metrics", absl::StrCat("Host: ", host, "\r\n")),
                ::testing::HasSubstr("200 OK"))
        << host;
  }
  EXPECT_THAT(Get("/metrics", ""), ::testing::HasSubstr("200 OK"));  // HTTP/1.0: no browser
  EXPECT_THAT(Get("/metrics", "Host: localhost\r\nHost: evil.example\r\n"),
              ::testing::HasSubstr("400 Bad Request"));
}

TEST_F(HttpTest, GarbageOnTheHttpPort_HarmsNothing) {
  for (const std::string& bytes : Garbage()) Exchange(http_->port(), bytes, Then::kHangUp);
  EXPECT_THAT(Get("/healthz"), ::testing::HasSubstr("200 OK"));
}

}  // namespace
}  // namespace phalanx::coordinator
