// Certificates that are foreign, expired, revoked, spoilt, or renewed.
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "coordinator/rpc/audit.h"
#include "gmock/gmock.h"
#include "tests/rpc/access_fixture.h"
#include "tests/rpc/plain_http.h"
#include "tests/support/files.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "transport/revocation.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

TEST_F(AccessTest, CertificateThatIsNotOurs_GetsNowhere_AndIsTold) {
  const support::Authority foreign;
  const std::string get = "/phalanx.v1.JobService/ListJobs";
  Be("olga", "operator");
  MustSubmit(JobText("a"));
  ASSERT_TRUE(Cancel("a").ok()) << "nothing becomes of it any more";
  const std::string before = Everything();
  const auto refused = [&](const std::shared_ptr<grpc::Channel>& to, const std::string& reason,
                           const std::string& why) {
    const int count = HandshakesFailed("grpc", reason);
    EXPECT_EQ(Call(to, get).error_code(), grpc::StatusCode::UNAVAILABLE) << reason;
    ExpectFailedHandshake("grpc", reason, count, why);
  };
  transport::TlsFiles stranger = foreign.User("olga", "operator");
  stranger.ca = authority().User("olga", "operator").ca;
  refused(ChannelOf(stranger), "untrusted",
          "the certificate is refused: unable to get local issuer certificate");

  const transport::TlsFiles expired = authority().User("late", "operator", -1);
  refused(ChannelOf(expired), "expired", "the certificate is refused: certificate has expired");

  // That of a coordinator is for serving.
  refused(ChannelOf(authority().Coordinator()), "bad_certificate",
          "the certificate is refused: unsuitable certificate purpose");

  grpc::experimental::TlsChannelCredentialsOptions none;
  none.set_certificate_provider(std::make_shared<grpc::experimental::StaticDataCertificateProvider>(
      support::ReadFile(stranger.ca)));
  none.watch_root_certs();
  refused(ChannelWith(grpc::experimental::TlsCredentials(none)), "no_certificate",
          "no certificate was shown");

  refused(ChannelWith(grpc::InsecureChannelCredentials()), "plaintext",
          "what came first is no TLS");

  // And somebody else's coordinator is not ours.
  transport::TlsFiles elsewhere = authority().User("olga", "operator");
  EXPECT_TRUE(Call(ChannelOf(elsewhere), get).ok());
  elsewhere.ca = foreign.folder() + "/ca.pem";
  refused(ChannelOf(elsewhere), "broken_off", "it was broken off");

  EXPECT_EQ(Everything(), before) << "nothing has changed";
}

// Where strangers may join, the handshake asks for a certificate and takes none for an answer.
TEST_F(AccessTest, WhereNodesMayJoin_CertificateThatIsNotOurs_IsToldToo) {
  server_.reset();
  const std::string tokens = support::MakeFolder("handshakes") + "/join-tokens";
  Open([&](ServerOptions& options) { LetNodesJoin(options, tokens); });
  const std::string before = Everything();
  const std::string get = "/phalanx.v1.JobService/ListJobs";
  const support::Authority foreign;
  transport::TlsFiles stranger = foreign.User("olga", "operator");
  stranger.ca = authority().folder() + "/ca.pem";
  EXPECT_EQ(Call(ChannelOf(stranger), get).error_code(), grpc::StatusCode::UNAVAILABLE);
  ExpectFailedHandshake("grpc", "untrusted", 0,
                        "the certificate is refused: unable to get local issuer certificate");
  EXPECT_EQ(Call(ChannelOfStranger(), get).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(HandshakesFailed("grpc", "no_certificate"), 0);
  EXPECT_EQ(Everything(), before);
  EXPECT_FALSE(std::filesystem::exists(tokens)) << "there is no token";
}

TEST_F(AccessTest, HandshakesThatFailTooOften_AreCounted_AndToldSoOftenAlone) {
  server_.reset();
  Open([](ServerOptions& options) {
    options.refusals = {.calls_per_second = 0.001, .calls_at_once = 3};
  });
  for (int i = 0; i < 10; ++i) {
    const int fd = Connect(server_->port());
    send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL);
    char byte = 0;
    while (recv(fd, &byte, 1, 0) > 0) continue;
    close(fd);
  }
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  const auto dropped = [&] {
    return absl::StrContains(server_->MetricsText(), "phalanx_audit_lines_dropped_total 7\n");
  };
  while (!dropped() && absl::Now() < deadline) continue;
  EXPECT_TRUE(dropped());
  EXPECT_EQ(HandshakesFailed("grpc", "plaintext"), 10);
  EXPECT_THAT(Audit(), ::testing::SizeIs(3));
}

// Whoever reaches the port may make any number of them.
TEST(AuditTest, HandshakesThatFailTooOften_HideNoOtherStranger) {
  std::vector<std::string> lines;
  int left_out = 0;
  Audit audit([&](const std::string& line) { lines.push_back(line); },
              {.calls_per_second = 0.001, .calls_at_once = 1}, [&] { ++left_out; });
  for (int i = 0; i < 3; ++i) {
    audit.TellOfHandshake("grpc", {.peer = "ipv4:10.0.0.9:51764",
                                   .fault = transport::HandshakeFault::kPlaintext,
                                   .reason = "what came first is no TLS"});
  }
  audit.Tell(std::nullopt, "Join", "node=a", absl::UnauthenticatedError("the token is unknown"));
  EXPECT_EQ(left_out, 2);
  EXPECT_THAT(lines, ::testing::ElementsAre(
                         "audit who=- role=- method=handshake port=grpc peer=ipv4:10.0.0.9:51764 "
                         "outcome=UNAUTHENTICATED reason=\"what came first is no TLS\"",
                         "audit left_out=2 reason=\"handshakes fail too often\"",
                         "audit who=- role=- method=Join node=a outcome=UNAUTHENTICATED "
                         "reason=\"the token is unknown\""));
}

// A probe of the port, or a balancer of load, is no attempt.
TEST_F(AccessTest, WhoeverConnectsAndSaysNothing_IsNotTold) {
  close(Connect(server_->port()));
  const int fd = Connect(server_->port());
  send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL);
  ExpectFailedHandshake("grpc", "plaintext", 0, "what came first is no TLS");
  close(fd);
  EXPECT_EQ(HandshakesFailed("grpc", "broken_off"), 0);
  EXPECT_THAT(Audit(), ::testing::SizeIs(1));
}

// An alert on the growth of a count is to see the first.
TEST_F(AccessTest, HandshakesThatMayFail_AreCountedFrom0) {
  for (const char* port : {"grpc", "http"}) {
    for (const char* reason : {"expired", "untrusted", "bad_certificate", "no_certificate",
                               "plaintext", "refused", "broken_off", "other"}) {
      EXPECT_THAT(server_->MetricsText(),
                  HasSubstr(absl::StrCat("\nphalanx_tls_handshakes_failed_total{port=\"", port,
                                         "\",reason=\"", reason, "\"} 0\n")));
    }
  }
}

TEST_F(AccessTest, HandshakeThatIsBrokenOff_IsTold) {
  const int fd = Connect(server_->port());
  send(fd, "\x16\x03\x01\x02\x00half", 9, MSG_NOSIGNAL);
  close(fd);
  ExpectFailedHandshake("grpc", "broken_off", 0, "it was broken off");
}

TEST_F(AccessTest, CertificateThatIsRevoked_GetsNoFurther) {
  const std::string list = "/phalanx.v1.JobService/ListJobs";
  const transport::TlsFiles rex = authority().User("rex", "operator");
  const std::shared_ptr<grpc::Channel> open = ChannelOf(rex);
  ASSERT_TRUE(Call(open, list).ok());
  channel = open;
  jobs = v1::JobService::NewStub(channel);
  MustSubmit(JobText("rexs"));
  grpc::ClientContext context;
  SetDeadline(context);
  v1::WatchJobRequest request;
  request.set_job("rexs");
  v1::WatchJobResponse response;
  const auto watch = jobs->WatchJob(&context, request);
  ASSERT_TRUE(watch->Read(&response));
  FakeWorker gone(ChannelOf(authority().Worker("gone")));
  gone.Join("gone", 1);
  FakeWorker stays(ChannelOf(authority().Worker("here")));
  stays.Join("here", 1);

  authority().Revoke("user-rex");
  authority().Revoke("worker-gone");
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (Call(open, list).ok() && absl::Now() < deadline) continue;
  for (const auto& to : {open, ChannelOf(rex)}) {
    const grpc::Status refused = Call(to, list);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(refused.error_message(), "the certificate of rex is revoked; ask for another one");
  }
  EXPECT_THAT(Audit(),
              Contains(HasSubstr("audit who=rex role=operator method=ListJobs "
                                 "outcome=UNAUTHENTICATED reason=\"the certificate of rex is")));
  while (watch->Read(&response)) continue;
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED) << "it was open";
  while (gone.Read().has_value()) continue;
  EXPECT_EQ(gone.Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED) << "it was open";

  // Others, and a new certificate of the same name, are as they were.
  EXPECT_TRUE(Call(ChannelOf(authority().User("rex", "operator")), list).ok());
  EXPECT_TRUE(stays.Write(v1::OpenSessionRequest()));
  Be("olga", "operator");
  EXPECT_EQ(Get("rexs").owner(), "rex");
  // Whoever looks at the nodes sees why one is not there.
  std::map<std::string, std::string> refused;
  while (refused["gone"].empty() && absl::Now() < deadline) {
    grpc::ClientContext call;
    SetDeadline(call);
    v1::ListNodesResponse nodes;
    ASSERT_TRUE(jobs->ListNodes(&call, {}, &nodes).ok());
    for (const v1::NodeStatus& node : nodes.nodes()) refused[node.name()] = node.refused();
  }
  EXPECT_THAT(refused,
              UnorderedElementsAre(Pair("gone", "the certificate is revoked; ask for another one"),
                                   Pair("here", "")));
}

TEST(RevocationsTest, WhatIsWrong_IsNamed) {
  const support::Authority own, foreign;
  const std::string ca = own.Coordinator().ca;
  const std::string foreign_ca = foreign.Coordinator().ca;
  const auto fault = [&](const std::string& file) {
    return std::string(
        transport::Revocations::Open({.file = file, .ca = ca, .name = "--tls-revoked"})
            .status()
            .message());
  };
  EXPECT_EQ(fault(own.revoked()), "");
  EXPECT_EQ(fault("/nowhere"),
            "--tls-revoked: /nowhere: cannot be opened: No such file or directory");
  EXPECT_EQ(fault(ca), absl::StrCat("--tls-revoked: ", ca,
                                    ": must begin with a certificate revocation list in PEM"));
  EXPECT_EQ(fault(foreign.revoked()),
            absl::StrCat("--tls-revoked: ", foreign.revoked(),
                         ": a list in it is signed by no authority of ", ca));
  const std::string list = support::ReadFile(own.revoked()), cut = own.folder() + "/cut.pem";
  support::WriteFile(cut, list + "what people write between them\r\n" + list);
  EXPECT_EQ(fault(cut), "");
  support::WriteFile(cut, list + list.substr(0, list.size() / 2));
  EXPECT_EQ(fault(cut), absl::StrCat("--tls-revoked: ", cut, ": list 2 of it must be one in PEM"));
}

TEST(RevocationsTest, ListThatIsSpoilt_ChangesNothing) {
  const support::Authority authority;
  const std::string bad = support::ReadFile(authority.User("bad", "viewer").certificate);
  const std::string good = support::ReadFile(authority.User("good", "viewer").certificate);
  authority.Revoke("user-bad");
  Mutex mutex;
  CondVar changed;
  std::vector<std::string> lines;
  const auto revocations = transport::Revocations::Open({.file = authority.revoked(),
                                                         .ca = authority.folder() + "/ca.pem",
                                                         .name = "--tls-revoked",
                                                         .refresh_seconds = 1,
                                                         .warn = [&](const std::string& line) {
                                                           MutexLock lock(&mutex);
                                                           lines.push_back(line);
                                                           changed.SignalAll();
                                                         }});
  ASSERT_TRUE(revocations.ok()) << revocations.status();
  EXPECT_TRUE((*revocations)->Has(bad));
  EXPECT_FALSE((*revocations)->Has(good));
  EXPECT_TRUE((*revocations)->Has(good + bad)) << "one of a chain";
  support::WriteFile(authority.revoked(), "spoilt");
  {
    MutexLock lock(&mutex);
    while (lines.empty()) changed.Wait(&mutex);
    EXPECT_EQ(lines[0], absl::StrCat("--tls-revoked: ", authority.revoked(),
                                     ": must begin with a certificate revocation list in PEM; "
                                     "what was read before holds"));
  }
  EXPECT_TRUE((*revocations)->Has(bad));
}

TEST_F(AccessTest, CertificateInPlaceOfAnother_IsShownWithoutARestart) {
  const transport::TlsFiles user = authority().User("vera", "viewer");
  // Empty: the call got nowhere.
  const auto shown = [&]() -> std::string {
    v1::ListNodesResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    const auto stub = v1::JobService::NewStub(ChannelOf(user));
    if (!stub->ListNodes(&context, v1::ListNodesRequest(), &response).ok()) return "";
    const std::vector<grpc::string_ref> pem =
        context.auth_context()->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
    return pem.empty() ? "" : std::string(pem[0].data(), pem[0].size());
  };
  EXPECT_EQ(shown(), support::ReadFile(authority().folder() + "/coordinator.pem"));
  const std::string renewed = support::ReadFile(authority().Coordinator().certificate);
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  // Each round is a handshake of its own.
  while (shown() != renewed && absl::Now() < deadline) continue;
  EXPECT_EQ(shown(), renewed);
}

TEST(PlaintextTest, IsForLoopbackAlone_WhateverAsksForIt) {
  const auto fault = [](absl::string_view servers, const transport::TlsFiles& files = {},
                        absl::string_view asked = "") {
    return std::string(
        transport::CheckPlaintextTo(servers, "--coordinator", files, asked).message());
  };
  for (const char* here : {"127.0.0.1:4444", "localhost:4444", "[::1]:4444,127.0.0.2:1"}) {
    EXPECT_EQ(fault(here), "") << here;
    EXPECT_EQ(fault(here, {}, "--plaintext"), "") << here;
  }
  const std::string remedy =
      "; give --tls-ca, --tls-certificate and --tls-key: scripts/make_ca makes them for "
      "development";
  for (const char* there : {"10.0.0.5:4444", "train:4444", "[fe80::1]:4444", "0.0.0.0:4444"}) {
    const std::string rule =
        absl::StrCat("--coordinator: ", there, ": plaintext is for loopback alone");
    EXPECT_EQ(fault(there), rule + remedy);
    EXPECT_EQ(fault(there, {}, "--plaintext"),
              rule + ", so --plaintext does not go with it" + remedy);
    EXPECT_EQ(fault(there, {.ca = "ca.pem"}), "") << "with a token, a certificate follows";
  }
  EXPECT_THAT(fault("127.0.0.1:4444,train:4444"), StartsWith("--coordinator: train:4444: "));
  EXPECT_THAT(fault("train:4444", {.ca = "ca.pem"}, "--plaintext"),
              StartsWith("--plaintext: leave it out"));
}

TEST(PlaintextTest, BesideCertificates_HasToGo) {
  EXPECT_EQ(transport::CheckPlaintext(
                {.flag = "--http", .address = "0.0.0.0:4445", .asked = "--http-plaintext"})
                .message(),
            "--http: 0.0.0.0:4445: plaintext is for loopback alone, so --http-plaintext does not "
            "go with it; leave --http-plaintext out");
  EXPECT_TRUE(transport::CheckPlaintext(
                  {.flag = "--http", .address = "127.0.0.1:4445", .asked = "--http-plaintext"})
                  .ok());
}

TEST(TlsFilesTest, CertificateOfAPort_IsForServers) {
  const support::Authority authority;
  for (const transport::TlsFiles& files : {authority.Coordinator(), authority.Node("localhost")})
    EXPECT_TRUE(transport::CheckServes(files, "--tls-").ok()) << files.certificate;
  const transport::TlsFiles persons = authority.User("sam", "submitter");
  EXPECT_THAT(std::string(transport::CheckServes(persons, "--tls-").message()),
              StartsWith(absl::StrCat("--tls-certificate: ", persons.certificate,
                                      ": is not for a server")));
}

support::Finished MakeCa(const std::string& arguments) {
  return support::RunToEnd(
      {"/bin/sh", "-c",
       absl::StrReplaceAll(arguments,
                           {{"MAKE", absl::StrCat(tests::SourceDir(), "/scripts/make_ca")}})});
}

TEST(MakeCaTest, FirstRunsAtOneTime_MakeOneAuthority) {
  const std::string folder = support::MakeFolder("authority");
  const support::Finished made = MakeCa(
      absl::StrCat("for i in 1 2 3 4; do MAKE ", folder, " user u$i viewer || touch ", folder,
                   "/failed & done; wait; for i in 1 2 3 4; do openssl verify -CAfile ", folder,
                   "/ca.pem ", folder, "/user-u$i.pem || exit 1; done"));
  EXPECT_EQ(made.exit_code, 0) << made.talk;
  EXPECT_FALSE(std::filesystem::exists(folder + "/failed")) << made.talk;
}

TEST(MakeCaTest, NamesAndDays_AreTakenAsTheyAreDocumentedOrRefusedInWords) {
  const std::string folder = support::MakeFolder("authority");
  EXPECT_EQ(MakeCa(absl::StrCat("MAKE ", folder, " user a+b@c.d_e-f viewer")).exit_code, 0);
  const auto refusal = [&](const std::string& before, const std::string& name) {
    const support::Finished refused =
        MakeCa(absl::StrCat(before, " MAKE ", folder, " user '", name, "' viewer"));
    EXPECT_EQ(refused.exit_code, 2) << before << name;
    return refused.talk;
  };
  for (const std::string name : {"", ".", "..", "a/b", "a b"})
    EXPECT_THAT(refusal("", name), HasSubstr(absl::StrCat("\"", name, "\": must be letters")));
  EXPECT_THAT(refusal("", std::string(300, 'a')), HasSubstr("must have at most 200"));
  for (const char* days : {"abc", "1.5", "-5", "9999999"}) {
    EXPECT_THAT(refusal(absl::StrCat("DAYS=", days), "q"),
                HasSubstr(absl::StrCat("DAYS=", days, ": must be a whole number")));
  }
}

TEST(TlsFilesTest, WhatIsWrong_IsNamed) {
  const support::Authority authority;
  const transport::TlsFiles good = authority.User("sam", "submitter");
  EXPECT_TRUE(transport::CheckTlsFiles(good, "--tls-").ok());
  EXPECT_TRUE(transport::CheckTlsFiles({}, "--tls-").ok()) << "plaintext";
  const auto fault = [](const transport::TlsFiles& files) {
    return std::string(transport::CheckTlsFiles(files, "--tls-").message());
  };
  transport::TlsFiles bad = good;
  bad.key = "";
  EXPECT_THAT(fault(bad), HasSubstr("--tls-key is missing"));
  bad.key = authority.User("sue", "submitter").key;
  EXPECT_EQ(fault(bad),
            absl::StrCat("--tls-key: ", bad.key, ": is not the key of ", bad.certificate));
  bad = good;
  bad.ca = "/nowhere";
  EXPECT_EQ(fault(bad), "--tls-ca: /nowhere: cannot be read: No such file or directory");
  bad.ca = authority.folder() + "/pipe";  // nobody writes in it
  ASSERT_EQ(mkfifo(bad.ca.c_str(), 0600), 0);
  EXPECT_EQ(fault(bad), absl::StrCat("--tls-ca: ", bad.ca, ": is not a regular file"));
  bad.ca = authority.folder();
  EXPECT_EQ(fault(bad), absl::StrCat("--tls-ca: ", bad.ca, ": is not a regular file"));
  bad.ca = good.key;
  EXPECT_EQ(fault(bad),
            absl::StrCat("--tls-ca: ", good.key, ": must begin with a certificate in PEM"));
  const std::string ca = support::ReadFile(good.ca), own = support::ReadFile(good.certificate);
  bad.ca = authority.folder() + "/both.pem";
  support::WriteFile(bad.ca, ca + own + "what people write between them\n");
  EXPECT_EQ(fault(bad), "");
  support::WriteFile(bad.ca, ca + own.substr(0, own.size() / 2));
  EXPECT_EQ(fault(bad),
            absl::StrCat("--tls-ca: ", bad.ca, ": certificate 2 of it must be one in PEM"));
}

// As openssl says it: "notAfter=Dec  6 03:00:00 2026 GMT".
absl::Time EndOf(const std::string& file) {
  const support::Finished told =
      support::RunToEnd({"/bin/sh", "-c", absl::StrCat("openssl x509 -noout -enddate -in ", file)});
  absl::Time end;
  std::string error;
  EXPECT_TRUE(absl::ParseTime("notAfter=%b %d %H:%M:%S %Y GMT",
                              absl::StripAsciiWhitespace(told.out), &end, &error))
      << told.talk << error;
  return end;
}

TEST(TlsFilesTest, ExpiryOfAFile_IsThatOfItsFirstCertificateToExpire) {
  const support::Authority authority;
  const transport::TlsFiles sam = authority.User("sam", "submitter", 20);
  const std::string late = sam.certificate,
                    soon = authority.User("sue", "submitter", 3).certificate,
                    chain = authority.folder() + "/chain.pem";
  support::WriteFile(chain, support::ReadFile(late) + support::ReadFile(soon));
  EXPECT_THAT(transport::ExpiriesOf({{"tls", late},
                                     {"chain", chain},
                                     {"etcd", ""},
                                     {"gone", authority.folder() + "/gone.pem"},
                                     {"key", sam.key}}),
              UnorderedElementsAre(Pair("tls", EndOf(late)), Pair("chain", EndOf(soon))));
  EXPECT_LT(EndOf(soon), EndOf(late));
}

TEST_F(AccessTest, Metrics_SayWhenTheCertificateExpires) {
  server_.reset();
  const transport::TlsFiles files = authority().Coordinator();
  Open([&](ServerOptions& options) { options.certificates = {{"tls", files.certificate}}; });
  EXPECT_THAT(server_->MetricsText(),
              HasSubstr(absl::StrCat(
                  "\nphalanx_certificate_expiration_timestamp_seconds{certificate=\"tls\"} ",
                  absl::ToUnixSeconds(EndOf(files.certificate)), "\n")));
}

TEST_F(AccessTest, CoordinatorWhoseOwnCertificateHasExpired_SaysSo) {
  server_.reset();
  std::vector<std::string> lines;
  Open([&](ServerOptions& options) {
    options.tls = authority().Coordinator(-1);
    // Other lines are of other threads.
    options.warn = [&](const std::string& line) {
      if (absl::StartsWith(line, "--tls-certificate")) lines.push_back(line);
    };
  });
  EXPECT_THAT(lines, Contains(StartsWith(absl::StrCat("--tls-certificate: ", authority().folder(),
                                                      "/coordinator.pem: expired at 20"))));
  server_.reset();  // before what it logs to
}

TEST_F(AccessTest, FilesThatAreSpoiltWhileItServes_AreWarnedOf) {
  server_.reset();
  const std::string folder = support::MakeFolder("spoilt");
  const std::string lists = folder + "/revoked.pem", quotas = folder + "/quotas.yaml";
  support::WriteFile(lists, support::ReadFile(authority().revoked()));
  support::WriteFile(quotas, "default: {}\n");
  Mutex mutex;
  CondVar changed;
  std::vector<std::string> lines;
  Open([&](ServerOptions& options) {
    options.revoked = lists;
    options.quotas = quotas;
    options.quotas_refresh_interval = absl::Milliseconds(1);
    options.warn = [&](const std::string& line) {
      MutexLock lock(&mutex);
      lines.push_back(line);
      changed.SignalAll();
    };
  });
  support::ReplaceFile(lists, "spoilt");
  support::ReplaceFile(quotas, "spoilt");
  {
    MutexLock lock(&mutex);
    while (lines.size() < 2) changed.Wait(&mutex);
    EXPECT_THAT(
        lines,
        UnorderedElementsAre(
            AllOf(StartsWith("--tls-revoked: " + lists), EndsWith("; what was read before holds")),
            AllOf(StartsWith("--quotas: " + quotas), EndsWith("; the quotas of before hold"))));
  }
  server_.reset();  // before what it logs to
}

TEST(CoordinatorLogTest, WhatSomebodyShouldMend_IsAWarning) {
  const support::Authority authority;
  const transport::TlsFiles expired = authority.Coordinator(-1);
  const std::string folder = support::MakeFolder("warned"), talk = folder + "/talk";
  support::Process coordinator(
      {support::Program("phalanx-coordinator"), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
       "--store", folder + "/store", "--tls-ca", expired.ca, "--tls-certificate",
       expired.certificate, "--tls-key", expired.key},
      support::NewMark(), talk, talk);
  support::AwaitText(talk, "Z warning coordinator --tls-certificate: ", coordinator);
  coordinator.Signal(SIGTERM);
  EXPECT_EQ(coordinator.WaitExitCode(), 0);
}

TEST(TlsFilesTest, CertificateThatHoldsNoLonger_IsNamedWithItsTime) {
  const support::Authority authority;
  const auto fault = [&](const transport::TlsFiles& files, absl::Duration from_now) {
    return std::string(transport::CheckHolds(files, "--tls-", absl::Now() + from_now).message());
  };
  const transport::TlsFiles good = authority.User("sam", "submitter");
  EXPECT_EQ(fault(good, absl::ZeroDuration()), "");
  EXPECT_EQ(fault({}, absl::ZeroDuration()), "") << "plaintext";
  const std::string named = absl::StrCat("--tls-certificate: ", good.certificate, ": ");
  // What to do is another thing for who joined with a token.
  EXPECT_THAT(fault(good, absl::Hours(25)),
              AllOf(StartsWith(named + "expired at 20"), EndsWith("Z")));
  EXPECT_THAT(fault(good, -absl::Hours(1)), StartsWith(named + "holds from 20"));
}

}  // namespace
}  // namespace phalanx::coordinator
