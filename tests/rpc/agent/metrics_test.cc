// The daemon's port for Prometheus and probes.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "core/base/host_port.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/agent/fake_coordinator.h"
#include "tests/e2e/agent/worker_process.h"
#include "tests/rpc/plain_http.h"
#include "tests/rpc/tls_http.h"
#include "tests/support/authority.h"
#include "tests/support/files.h"
#include "transport/http/http_server.h"
#include "worker/agent/agent.h"

namespace phalanx::agent {
namespace {

using coordinator::Get;
using coordinator::TlsGet;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kOk[] = "HTTP/1.1 200 OK\r\n";

int PortIn(const std::string& address) { return ParseHostPort(address, 1)->port; }

// Until it has `text`; what was said last, where it never has.
std::string Await(const std::function<std::string()>& get, const std::string& text) {
  const absl::Time end = absl::Now() + absl::Seconds(30);
  std::string got = get();
  while (!absl::StrContains(got, text) && absl::Now() < end) got = get();
  return got;
}

TEST(MetricsPortTest, Worker_TellsOfItsRanksAndItsSession) {
  auto coordinator = std::make_unique<FakeCoordinator>();
  const std::string ready = support::MakeFolder("worker-metrics") + "/ready";
  WorkerProcess worker(coordinator->address(), {"--metrics", "127.0.0.1:0", "--ready-file", ready});
  coordinator->AwaitHello();
  coordinator->AwaitHeartbeat([](const auto&) { return true; });
  const int port =
      PortIn(nlohmann::json::parse(support::ReadFile(ready)).at("metrics").get<std::string>());
  const auto ask = [port](const char* path) { return [port, path] { return Get(port, path); }; };
  EXPECT_THAT(Get(port, "/livez"), StartsWith(kOk));
  EXPECT_THAT(Await(ask("/readyz?verbose"), "200 OK"),
              EndsWith("[+]daemon ok\n[+]session ok\n[+]drain ok\nreadyz check passed\n"));

  coordinator->AwaitResult(coordinator->Send(AssignCommandOf(7, 1, Job("wait"), {0})));
  const std::string running = Await(ask("/metrics"), "phalanx_worker_ranks{state=\"running\"} 1\n");
  EXPECT_THAT(running, HasSubstr("phalanx_worker_ranks{state=\"running\"} 1\n"));
  EXPECT_THAT(running, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(running, HasSubstr("phalanx_worker_rank_starts_total 1\n"));
  EXPECT_THAT(running, HasSubstr("phalanx_worker_session_open 1\n"));
  EXPECT_THAT(running, ::testing::Not(HasSubstr("phalanx_worker_resident_bytes 0\n")));

  coordinator.reset();
  EXPECT_THAT(Await(ask("/readyz"), "503"),
              EndsWith("not ready: the coordinator has not let the node in\n"));
  EXPECT_THAT(Get(port, "/livez"), StartsWith(kOk)) << "to start it anew would end its ranks";
  EXPECT_THAT(Await(ask("/metrics"), "phalanx_worker_session_breaks_total 1\n"),
              HasSubstr("phalanx_worker_session_open 0\n"));
}

// A daemon whose thread is not there: nobody calls Run.
class MetricsOfAgentTest : public ::testing::Test {
 protected:
  void Create(AgentOptions options) {
    options.coordinator = "127.0.0.1:1";
    options.node = "here";
    options.state = support::MakeFolder("metrics-of-agent");
    options.rank_program = "/bin/true";
    options.metrics.address = "127.0.0.1:0";
    auto agent = Agent::Create(
        options, [](const PrepareData&, data::ReadProgress&) { return DataOutcome(); });
    ASSERT_TRUE(agent.ok()) << agent.status();
    agent_ = *std::move(agent);
    port_ = PortIn(agent_->metrics_address());
  }

  std::unique_ptr<Agent> agent_;
  int port_ = 0;
};

TEST_F(MetricsOfAgentTest, ThreadThatHangs_IsNotLive) {
  AgentOptions options;
  options.silence_max = absl::ZeroDuration();
  Create(std::move(options));
  for (const char* path : {"/livez", "/healthz", "/readyz"}) {
    EXPECT_THAT(Get(port_, path),
                AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("the daemon has not run for ")));
  }
}

TEST_F(MetricsOfAgentTest, ThreadThatIsGivenTime_IsLive) {
  Create({});
  EXPECT_THAT(Get(port_, "/livez?verbose"),
              AllOf(StartsWith(kOk), EndsWith("[+]daemon ok\nlivez check passed\n")));
}

TEST_F(MetricsOfAgentTest, Certificates_SayWhoMayRead) {
  const support::Authority authority;
  AgentOptions options;
  options.metrics.tls = authority.Node("gpu-1");
  Create(std::move(options));
  const transport::TlsFiles nobody{.ca = authority.folder() + "/ca.pem"};
  for (const char* role : {"viewer", "submitter", "operator"}) {
    const std::string got = TlsGet(port_, authority.User("alice", role), "/metrics");
    EXPECT_THAT(got, AllOf(StartsWith(kOk), HasSubstr("phalanx_worker_session_open 0\n"))) << role;
  }
  EXPECT_THAT(TlsGet(port_, authority.Worker("here"), "/metrics"),
              StartsWith("HTTP/1.1 403 Forbidden\r\n"));
  EXPECT_THAT(TlsGet(port_, nobody, "/metrics"), StartsWith("HTTP/1.1 401 Unauthorized\r\n"));
  EXPECT_THAT(TlsGet(port_, nobody, "/livez"), StartsWith(kOk));
  EXPECT_THAT(Get(port_, "/metrics"), ::testing::Not(HasSubstr("phalanx_")))
      << "in plaintext there is nothing";
}

// Of the file of authorities one is added; the certificate is replaced.
TEST_F(MetricsOfAgentTest, FilesInPlaceOfOthers_AreUsedWithoutARestart) {
  const support::Authority authority, next;
  AgentOptions options;
  options.metrics.tls = authority.Node("gpu-1");
  options.metrics.tls.ca = support::MakeFolder("metrics-authorities") + "/ca.pem";
  const std::string older = support::ReadFile(authority.folder() + "/ca.pem");
  support::ReplaceFile(options.metrics.tls.ca, older);
  Create(options);
  const transport::TlsFiles nobody{.ca = authority.folder() + "/ca.pem"};
  transport::TlsFiles nina = next.User("nina", "viewer");
  nina.ca = nobody.ca;
  const auto metrics = [&] { return TlsGet(port_, nina, "/metrics"); };
  EXPECT_EQ(metrics(), "");
  support::ReplaceFile(options.metrics.tls.ca,
                       older + support::ReadFile(next.folder() + "/ca.pem"));
  EXPECT_THAT(Await(metrics, "200 OK"), StartsWith(kOk));

  const auto shown = [&] { return coordinator::TlsClient(port_, nobody).Certificate(); };
  const std::string renewed = support::ReadFile(authority.Node("gpu-1").certificate);
  EXPECT_EQ(Await(shown, renewed), renewed);
}

TEST_F(MetricsOfAgentTest, WhoeverIsRefused_IsCounted_AndHoldsUpNobody) {
  const support::Authority authority, foreign;
  AgentOptions options;
  options.metrics.tls = authority.Node("gpu-1");
  Create(std::move(options));
  const transport::TlsFiles vera = authority.User("vera", "viewer");
  const auto refused = [&](const std::string& reason) {
    const std::string line =
        "\nphalanx_worker_metrics_refused_total{reason=\"" + reason + "\"} 1\n";
    EXPECT_THAT(Await([&] { return TlsGet(port_, vera, "/metrics"); }, line), HasSubstr(line));
  };
  transport::TlsFiles stranger = foreign.User("vera", "viewer");
  stranger.ca = vera.ca;
  EXPECT_EQ(TlsGet(port_, stranger, "/livez"), "");
  refused("untrusted");
  EXPECT_EQ(TlsGet(port_, authority.User("late", "viewer", -1), "/livez"), "");
  refused("expired");
  EXPECT_EQ(TlsGet(port_, authority.Node("gpu-2"), "/livez"), "") << "is for serving";
  refused("bad_certificate");
  EXPECT_THAT(Get(port_, "/livez"), ::testing::Not(HasSubstr("200 OK")));
  refused("plaintext");
  EXPECT_THAT(TlsGet(port_, {.ca = vera.ca}, "/metrics"), StartsWith("HTTP/1.1 401 "));
  refused("unauthenticated");
  EXPECT_THAT(TlsGet(port_, authority.Worker("here"), "/metrics"), StartsWith("HTTP/1.1 403 "));
  refused("denied");
  coordinator::TlsClient drips(port_, vera);
  drips.Send("GET /metr");
  coordinator::TlsClient large(port_, vera);
  large.Send(std::string(transport::HttpOptions::kRequestBytesMax + 1, 'a'));
  EXPECT_THAT(large.ReadAll(), StartsWith("HTTP/1.1 431 "));
  refused("too_large");
  EXPECT_EQ(drips.ReadAll(), "") << "its time is over";
  refused("too_slow");
}

TEST_F(MetricsOfAgentTest, CertificateThatIsRevoked_IsRefusedFromThenOn) {
  const support::Authority authority;
  AgentOptions options;
  options.metrics.tls = authority.Node("gpu-1");
  options.metrics.revoked = authority.revoked();
  Create(std::move(options));
  const transport::TlsFiles gone = authority.User("gone", "operator");
  ASSERT_THAT(TlsGet(port_, gone, "/metrics"), StartsWith(kOk));
  authority.Revoke("user-gone");
  const auto ask = [&] { return TlsGet(port_, gone, "/metrics"); };
  EXPECT_THAT(Await(ask, "401 Unauthorized"),
              AllOf(StartsWith("HTTP/1.1 401 Unauthorized\r\n"),
                    HasSubstr("the certificate is revoked; ask for another one")));
  EXPECT_THAT(TlsGet(port_, gone, "/livez"), StartsWith(kOk)) << "probes answer everybody";
  EXPECT_THAT(
      TlsGet(port_, authority.User("gone", "operator"), "/metrics"),
      AllOf(StartsWith(kOk),
            HasSubstr("\nphalanx_worker_metrics_refused_total{reason=\"unauthenticated\"} 1\n")))
      << "another certificate of the same name";
}

TEST(MetricsPortReaderTest, Certificate_NamesOneIdentity_ByTheRulesOfTheCoordinator) {
  const auto judge = [](std::vector<std::string> uris) {
    return MayReadMetrics({.uris = std::move(uris), .chain = "PEM"}).code();
  };
  EXPECT_EQ(judge({"phalanx:viewer/a._@+-9"}), absl::StatusCode::kOk);
  EXPECT_EQ(judge({"https://example.com", "phalanx:operator/olga"}), absl::StatusCode::kOk);
  for (const std::vector<std::string>& uris :
       std::vector<std::vector<std::string>>{{},
                                             {"phalanx:worker/a"},
                                             {"phalanx:viewer/a", "phalanx:worker/a"},
                                             {"phalanx:viewer/a", "phalanx:viewer/b"},
                                             {"phalanx:viewer/a", "phalanx:auditor/a"},
                                             {"phalanx:viewer/"},
                                             {"phalanx:viewer/a\n"},
                                             {"phalanx:viewer/a/b"},
                                             {"phalanx:viewer/" + std::string(254, 'a')},
                                             {"phalanx:Viewer/a"}}) {
    EXPECT_EQ(judge(uris), absl::StatusCode::kPermissionDenied) << ::testing::PrintToString(uris);
  }
}

TEST(MetricsPortOptionsTest, Plaintext_IsForLoopbackAlone_WhateverAsksForIt) {
  const support::Authority authority;
  const transport::TlsFiles tls = authority.Node("gpu-1");
  const auto check = [](MetricsPortOptions options) {
    return std::string(CheckMetricsPort(options).message());
  };
  EXPECT_EQ(check({}), "");
  EXPECT_EQ(check({.address = "127.0.0.1:0"}), "");
  EXPECT_EQ(check({.address = "[::1]:4446"}), "");
  EXPECT_EQ(check({.address = "127.0.0.1:0", .plaintext = true}), "");
  EXPECT_EQ(check({.address = "0.0.0.0:4446"}),
            "--metrics: 0.0.0.0:4446: plaintext is for loopback alone; give --tls-ca, "
            "--metrics-certificate and --metrics-key: scripts/make_ca makes them for development");
  EXPECT_THAT(check({.address = "0.0.0.0:4446", .plaintext = true}),
              StartsWith("--metrics: 0.0.0.0:4446: plaintext is for loopback alone, so "
                         "--metrics-plaintext does not go with it; give "));
  EXPECT_EQ(check({.address = "0.0.0.0:4446", .tls = tls}), "");
  EXPECT_THAT(check({.address = "0.0.0.0:4446", .plaintext = true, .tls = tls}),
              StartsWith("--metrics-plaintext: leave it out"));
  EXPECT_THAT(check({.address = "a:1", .tls = {.certificate = tls.certificate, .key = tls.key}}),
              StartsWith("--metrics-certificate: give --tls-ca too"));
  EXPECT_THAT(check({.address = "a:1", .tls = {.ca = tls.ca, .certificate = tls.certificate}}),
              HasSubstr("--metrics-key"));
  EXPECT_THAT(check({.address = "a:b"}), StartsWith("--metrics: "));
  EXPECT_THAT(check({.plaintext = true}), HasSubstr("they go with --metrics HOST:PORT"));
  EXPECT_THAT(check({.revoked = "revoked.pem"}), HasSubstr("they go with --metrics HOST:PORT"));
  EXPECT_THAT(check({.address = "127.0.0.1:0", .revoked = "revoked.pem"}),
              StartsWith("--tls-revoked: there are no certificates of readers"));
  EXPECT_EQ(check({.address = "127.0.0.1:0", .tls = tls, .revoked = authority.revoked()}), "");
  EXPECT_THAT(check({.address = "127.0.0.1:0", .tls = tls, .revoked = tls.ca}),
              StartsWith("--tls-revoked: "));
}

}  // namespace
}  // namespace phalanx::agent
