// Who may see the pages of the HTTP port, where there are certificates.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/status/status_page.h"
#include "gmock/gmock.h"
#include "tests/rpc/access_fixture.h"
#include "tests/rpc/tls_http.h"
#include "transport/http/http_server.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kOk[] = "HTTP/1.1 200 OK\r\n";

class HttpAccessTest : public AccessTest {
 protected:
  void SetUp() override {
    Serve([](ServerOptions&) {});
  }
  void Serve(const std::function<void(ServerOptions& options)>& change) {
    http_.reset();
    page_.reset();
    server_.reset();
    Open(change);
    auto tls = transport::ServerTls::Open(files_, [](const std::string&) {});
    ASSERT_TRUE(tls.ok()) << tls.status();
    (*tls)->OnFailedHandshake([this](const transport::FailedHandshake& failed) {
      server_->NoteFailedHandshake("http", failed);
    });
    page_ = std::make_unique<StatusPage>(server_->board(),
                                         [this](std::vector<JobId> jobs, QueueCallback answer) {
                                           server_->AskQueue(std::move(jobs), std::move(answer));
                                         });
    auto http = transport::HttpServer::Start(
        {.tls = *std::move(tls),
         .guard = {.admit = [this](const transport::ShownCertificate& who,
                                   absl::string_view) { return server_->AdmitToPage(who); },
                   .holds =
                       [this](const transport::ShownCertificate& who) {
                         return server_->Holds(who);
                       }},
         .unread = [this](const transport::ShownCertificate& who,
                          const absl::Status& why) { server_->NoteUnreadPage(who, why); },
         .metrics = [this] { return server_->MetricsText(); },
         .live = [this] { return server_->liveness(); },
         .ready = [this] { return server_->readiness(); },
         .pages = [this](
                      const std::string& target,
                      transport::HttpAnswer answer) { page_->Serve(target, std::move(answer)); }});
    ASSERT_TRUE(http.ok()) << http.status();
    http_ = *std::move(http);
  }
  void TearDown() override {
    http_.reset();
    page_.reset();
    AccessTest::TearDown();
  }
  int port() const { return http_->port(); }
  static transport::TlsFiles Nobody() { return {.ca = authority().folder() + "/ca.pem"}; }
  std::string GetAs(const transport::TlsFiles& files, const std::string& path) {
    return TlsGet(port(), files, path);
  }

  transport::TlsFiles files_ = authority().Coordinator();
  std::unique_ptr<StatusPage> page_;
  std::unique_ptr<transport::HttpServer> http_;
};

TEST_F(HttpAccessTest, Probes_AnswerEverybody_AndNothingElseDoes) {
  for (const char* path : {"/livez", "/healthz", "/readyz", "/readyz?verbose"})
    EXPECT_THAT(GetAs(Nobody(), path), StartsWith(kOk)) << path;
  for (const char* path : {"/metrics", "/", "/api/overview", "/api/stream?/api/overview",
                           "/healthz/../metrics", "//healthz", "/HEALTHZ"}) {
    EXPECT_THAT(GetAs(Nobody(), path), AllOf(StartsWith("HTTP/1.1 401 Unauthorized\r\n"),
                                             HasSubstr("show a certificate of a viewer")))
        << path;
  }
  EXPECT_THAT(Audit(), Contains(HasSubstr("audit who=- role=- method=http "
                                          "outcome=UNAUTHENTICATED")));
}

TEST_F(HttpAccessTest, EachRole_SeesWhatItMay) {
  for (const Role role : {Role::kViewer, Role::kSubmitter, Role::kOperator}) {
    for (const char* path : {"/metrics", "/", "/api/overview"})
      EXPECT_THAT(GetAs(FilesOf(role), path), StartsWith(kOk)) << RoleName(role) << " " << path;
  }
  EXPECT_THAT(GetAs(FilesOf(Role::kWorker), "/metrics"),
              AllOf(StartsWith("HTTP/1.1 403 Forbidden\r\n"),
                    HasSubstr("http is for viewer, submitter, operator; the role here is worker")));
  EXPECT_THAT(GetAs(FilesOf(Role::kWorker), "/healthz"), StartsWith(kOk));
  EXPECT_THAT(Audit(), Contains(HasSubstr("audit who=here role=worker method=http "
                                          "outcome=PERMISSION_DENIED")));
}

TEST_F(HttpAccessTest, CertificateThatIsNotSound_GetsNowhere_AndIsTold) {
  const std::string before = Everything();
  const support::Authority foreign;
  transport::TlsFiles stranger = foreign.User("vera", "viewer");
  stranger.ca = authority().folder() + "/ca.pem";
  EXPECT_EQ(GetAs(stranger, "/healthz"), "");
  ExpectFailedHandshake("http", "untrusted", 0,
                        "the certificate is refused: unable to get local issuer certificate");
  EXPECT_EQ(GetAs(authority().User("late", "viewer", -1), "/healthz"), "");
  ExpectFailedHandshake("http", "expired", 0,
                        "the certificate is refused: certificate has expired");
  EXPECT_EQ(GetAs(authority().Coordinator(), "/healthz"), "") << "is for serving";
  ExpectFailedHandshake("http", "bad_certificate", 0,
                        "the certificate is refused: unsuitable certificate purpose");
  EXPECT_THAT(coordinator::Get(port(), "/healthz"), Not(HasSubstr("HTTP/1.1 200")))
      << "in plaintext";
  ExpectFailedHandshake("http", "plaintext", 0, "what came first is no TLS");
  EXPECT_THAT(coordinator::Get(port(), "/metrics"), Not(HasSubstr("phalanx_")));
  EXPECT_THAT(GetAs(Nobody(), "/healthz"), StartsWith(kOk));
  EXPECT_EQ(HandshakesFailed("http", "no_certificate"), 0) << "none is asked for";
  EXPECT_EQ(Everything(), before) << "nothing has changed";
  const transport::TlsFiles revoked = authority().User("gone", "viewer");
  ASSERT_THAT(GetAs(revoked, "/metrics"), StartsWith(kOk));
  authority().Revoke("user-gone");
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  std::string answer = kOk;
  while (absl::StartsWith(answer, kOk) && absl::Now() < deadline)
    answer = GetAs(revoked, "/metrics");
  EXPECT_THAT(answer,
              AllOf(StartsWith("HTTP/1.1 401 "), HasSubstr("the certificate of gone is revoked")));
}

// As a browser does that has to ask its person first which certificate to show.
TEST_F(HttpAccessTest, HandshakeThatIsBrokenOff_IsTold) {
  const int fd = Connect(port());
  send(fd, "\x16\x03\x01\x02\x00half", 9, MSG_NOSIGNAL);
  close(fd);
  ExpectFailedHandshake("http", "broken_off", 0, "it was broken off");
}

TEST_F(HttpAccessTest, StreamOfWhoseCertificateIsRevoked_Ends) {
  const transport::TlsFiles files = authority().User("reader", "viewer");
  TlsClient reader(port(), files);
  reader.SendGet("/api/stream?/api/overview");
  EXPECT_THAT(reader.ReadTo("event: page"), HasSubstr("text/event-stream"));
  authority().Revoke("user-reader");
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  // Each job changes the page, and each change asks again.
  Be("olga", "operator");
  bool open = true;
  for (int i = 0; open && absl::Now() < deadline; ++i) {
    MustSubmit(JobText(absl::StrCat("job-of-olga-", i)));
    open = absl::StrContains(reader.ReadTo("event: page"), "event: page");
  }
  EXPECT_LT(absl::Now(), deadline) << "the stream goes on";
}

TEST_F(HttpAccessTest, StreamsOfOnePerson_AreBounded) {
  std::vector<std::unique_ptr<TlsClient>> open;
  const transport::TlsFiles vera = authority().User("vera", "viewer");
  for (size_t i = 0; i < transport::StreamOptions().person_streams_max; ++i) {
    open.push_back(std::make_unique<TlsClient>(port(), vera));
    open.back()->SendGet("/api/stream?/api/overview");
    ASSERT_THAT(open.back()->ReadTo("event: page"), HasSubstr("event: page")) << i;
  }
  EXPECT_THAT(GetAs(vera, "/api/stream?/api/overview"),
              AllOf(StartsWith("HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\n"),
                    HasSubstr("too many streams of yours")));
  TlsClient other(port(), authority().User("sam", "submitter"));
  other.SendGet("/api/stream?/api/overview");
  EXPECT_THAT(other.ReadTo("event: page"), HasSubstr("event: page"));
}

TEST_F(HttpAccessTest, WhoeverIsSlowOrSaysTooMuch_IsBounded_AndHoldsUpNobody) {
  std::vector<int> slow;
  for (int i = 0; i < 10; ++i) {
    slow.push_back(Connect(port()));
    send(slow.back(), "\x16\x03", 2, MSG_NOSIGNAL);  // the beginning of a handshake
  }
  TlsClient drips(port(), FilesOf(Role::kViewer));
  drips.Send("GET /metr");
  EXPECT_THAT(GetAs(FilesOf(Role::kViewer), "/metrics"), StartsWith(kOk));
  TlsClient large(port(), FilesOf(Role::kViewer));
  large.Send(std::string(transport::HttpOptions::kRequestBytesMax + 1, 'a'));
  EXPECT_THAT(large.ReadAll(), StartsWith("HTTP/1.1 431 "));
  EXPECT_EQ(drips.ReadAll(), "") << "its time is over";
  EXPECT_THAT(Audit(), AllOf(Contains("audit who=a-viewer role=viewer method=http "
                                      "outcome=INVALID_ARGUMENT reason=\"the request has more than "
                                      "16384 bytes\""),
                             Contains("audit who=a-viewer role=viewer method=http "
                                      "outcome=DEADLINE_EXCEEDED reason=\"the request did not come "
                                      "whole within 5s\"")));
  EXPECT_THAT(
      server_->MetricsText(),
      AllOf(HasSubstr("phalanx_rpc_handled_total{code=\"INVALID_ARGUMENT\",method=\"http\"} 1"),
            HasSubstr("phalanx_rpc_handled_total{code=\"DEADLINE_EXCEEDED\",method=\"http\"} 1")));
  for (const int fd : slow) {
    char byte;
    EXPECT_LE(recv(fd, &byte, 1, 0), 0);
    close(fd);
  }
}

TEST_F(HttpAccessTest, PersonWhoAsksTooOften_IsToldWhenToAskAgain_AndOthersNoticeNothing) {
  Serve([](ServerOptions& options) {
    options.rate = {.calls_per_second = 0.001, .calls_at_once = 2};
  });
  const transport::TlsFiles vera = authority().User("vera", "viewer");
  for (int i = 0; i < 2; ++i) EXPECT_THAT(GetAs(vera, "/metrics"), StartsWith(kOk)) << i;
  EXPECT_THAT(GetAs(vera, "/metrics"),
              AllOf(StartsWith("HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\n"),
                    HasSubstr("vera calls more often than 0.001 times a second")));
  EXPECT_THAT(Audit(), Contains(HasSubstr("audit who=vera role=viewer method=http "
                                          "outcome=RESOURCE_EXHAUSTED")));
  EXPECT_THAT(GetAs(authority().User("sam", "submitter"), "/metrics"), StartsWith(kOk));
  EXPECT_THAT(GetAs(vera, "/healthz"), StartsWith(kOk)) << "probes are not counted";
}

TEST_F(HttpAccessTest, CertificateInPlaceOfAnother_IsShownWithoutARestart) {
  const std::string first = TlsClient(port(), Nobody()).Certificate();
  const std::string renewed = support::ReadFile(authority().Coordinator().certificate);
  ASSERT_NE(first, "");
  ASSERT_NE(first, renewed);
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (TlsClient(port(), Nobody()).Certificate() != renewed && absl::Now() < deadline) continue;
  EXPECT_EQ(TlsClient(port(), Nobody()).Certificate(), renewed);
}

TEST_F(HttpAccessTest, AuthorityInPlaceOfAnother_IsAskedWithoutARestart) {
  const support::Authority next;
  transport::TlsFiles older = authority().User("vera", "viewer");
  transport::TlsFiles newer = next.User("nina", "viewer");
  newer.ca = older.ca;
  files_.ca = support::MakeFolder("http-authorities") + "/ca.pem";
  support::ReplaceFile(files_.ca, support::ReadFile(older.ca));
  Serve([](ServerOptions&) {});
  const auto becomes = [this](const transport::TlsFiles& who, bool let_in) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (absl::StartsWith(GetAs(who, "/metrics"), kOk) != let_in && absl::Now() < deadline)
      continue;
    return absl::StartsWith(GetAs(who, "/metrics"), kOk) == let_in;
  };
  EXPECT_TRUE(becomes(newer, false));
  const std::string own = support::ReadFile(next.folder() + "/ca.pem");
  support::ReplaceFile(files_.ca, support::ReadFile(older.ca) + own);
  EXPECT_TRUE(becomes(newer, true)) << "it was added";
  EXPECT_TRUE(becomes(older, true));
  support::ReplaceFile(files_.ca, own);
  EXPECT_TRUE(becomes(older, false)) << "its own was taken away";
  EXPECT_TRUE(becomes(newer, true));
}

}  // namespace
}  // namespace phalanx::coordinator
