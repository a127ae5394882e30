// Nodes that join with a token, and those that try to.
#include "worker/agent/join.h"

#include <google/protobuf/descriptor.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/rpc/join_service.h"
#include "gmock/gmock.h"
#include "phalanx/v1/join_service.grpc.pb.h"
#include "tests/rpc/access_fixture.h"
#include "tests/rpc/raw_http2.h"
#include "tests/rpc/tls_http.h"
#include "transport/issuance.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class JoinTest : public AccessTest {
 protected:
  void SetUp() override { Begin(); }
  void Begin() {
    Open([&](ServerOptions& options) { LetNodesJoin(options, folder_ + "/join-tokens"); });
  }

  template <typename Request, typename Response>
  grpc::Status Do(const std::shared_ptr<grpc::Channel>& to,
                  grpc::Status (v1::JoinService::Stub::*method)(grpc::ClientContext*,
                                                                const Request&, Response*),
                  const Request& request, Response* response) {
    grpc::ClientContext context;
    SetDeadline(context);
    return (*v1::JoinService::NewStub(to).*method)(&context, request, response);
  }
  std::shared_ptr<grpc::Channel> Olga() const { return ChannelOf(olga_); }
  v1::CreateTokenResponse Create(const std::string& node = "") {
    v1::CreateTokenRequest request;
    request.set_node(node);
    v1::CreateTokenResponse response;
    const grpc::Status status = Do(Olga(), &v1::JoinService::Stub::CreateToken, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  grpc::Status Revoke(const std::string& id) {
    v1::RevokeTokenRequest request;
    request.set_id(id);
    v1::RevokeTokenResponse response;
    return Do(Olga(), &v1::JoinService::Stub::RevokeToken, request, &response);
  }
  std::vector<v1::JoinToken> Tokens() {
    v1::ListTokensResponse response;
    EXPECT_TRUE(
        Do(Olga(), &v1::JoinService::Stub::ListTokens, v1::ListTokensRequest(), &response).ok());
    return {response.tokens().begin(), response.tokens().end()};
  }
  grpc::Status Join(const std::string& token, const std::string& node,
                    const transport::KeyAndRequest& own, std::string* certificate = nullptr) {
    v1::JoinRequest request;
    request.set_token(token);
    request.set_node(node);
    request.set_certificate_request(own.request);
    v1::JoinResponse response;
    grpc::Status status = Do(ChannelOfStranger(), &v1::JoinService::Stub::Join, request, &response);
    if (certificate != nullptr) *certificate = response.certificate();
    return status;
  }
  grpc::Status Join(const std::string& token, const std::string& node) {
    return Join(token, node, *transport::MakeKeyAndRequest());
  }
  // Files of a certificate as a worker keeps them.
  transport::TlsFiles FilesWith(const std::string& certificate, const std::string& key) {
    const std::string file = absl::StrCat(folder_, "/identity-", ++files_, ".pem");
    support::WriteFile(file, certificate + key);
    return {.ca = authority().folder() + "/ca.pem", .certificate = file, .key = file};
  }
  transport::TlsFiles MustJoin(const std::string& token, const std::string& node) {
    const transport::KeyAndRequest own = *transport::MakeKeyAndRequest();
    std::string certificate;
    const grpc::Status status = Join(token, node, own, &certificate);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return FilesWith(certificate, own.key);
  }
  grpc::Status Renew(const transport::TlsFiles& files, const transport::KeyAndRequest& next,
                     v1::RenewCertificateResponse* response) {
    v1::RenewCertificateRequest request;
    request.set_certificate_request(next.request);
    return Do(ChannelOf(files), &v1::JoinService::Stub::RenewCertificate, request, response);
  }

  // A stranger's connection.
  std::unique_ptr<TlsClient> Connected(const std::string& from = "127.0.0.1") const {
    auto client = std::make_unique<TlsClient>(
        server_->port(), transport::TlsFiles{.ca = authority().folder() + "/ca.pem"}, "h2", from);
    EXPECT_TRUE(client->connected());
    return client;
  }
  // The server has its verdict in the audit.
  void ExpectTold(const std::string& line, int count = 1) {
    EXPECT_EQ(AwaitAudit(line, count), count) << line;
  }

  const std::string folder_ = support::MakeFolder("join");
  const transport::TlsFiles olga_ = authority().User("olga", "operator");
  int files_ = 0;
};

// Begins a request to join of `bytes` bytes, and sends all of it but the last byte, as fast as the
// server takes it.
class HalfRequest {
 public:
  HalfRequest(std::unique_ptr<TlsClient> client, uint32_t bytes)
      : client_(std::move(client)), left_(bytes - 1) {
    client_->Send(absl::StrCat(kPreface, Settings(), Headers("/phalanx.v1.JoinService/Join"),
                               PartOfMessage(bytes, "")));
    SendOn();
  }
  // Whether the server ends the call with an answer, rather than the connection, or nothing for
  // 10 s.
  bool IsEnded() {
    std::string got;
    while (true) {
      const std::string more = client_->ReadSome();
      if (more.empty()) return false;
      got += more;
      while (got.size() >= kHead && got.size() >= kHead + NumberAt(got, 0, 3)) {
        const std::string frame = got.substr(0, kHead + NumberAt(got, 0, 3));
        got.erase(0, frame.size());
        if (frame[3] == 3) return false;
        if (frame[3] == 1 && (frame[4] & 1) != 0) {
          answer_ = frame.substr(kHead);
          return true;
        }
        Take(frame);
      }
      SendOn();
    }
  }
  // Has the words of the status as they are; there once it is ended.
  const std::string& answer() const { return answer_; }

 private:
  static constexpr size_t kHead = 9;
  static int64_t NumberAt(absl::string_view text, size_t at, size_t bytes) {
    int64_t number = 0;
    for (const char c : text.substr(at, bytes)) number = number << 8 | static_cast<uint8_t>(c);
    return number;
  }
  void SendOn() {
    while (true) {
      const int64_t part = std::min({left_, of_call_, of_connection_, int64_t{16'384}});
      if (part <= 0) return;
      client_->Send(Frame(0, 0, 1, std::string(static_cast<size_t>(part), 'a')));
      for (int64_t* room : {&left_, &of_call_, &of_connection_}) *room -= part;
    }
  }
  // Pings, settings and how much more may be sent.
  void Take(const std::string& frame) {
    const std::string payload = frame.substr(kHead);
    const bool asks = frame[4] == 0;
    if (frame[3] == 6 && asks) client_->Send(Frame(6, 1, 0, payload));
    if (frame[3] == 8)
      (NumberAt(frame, 5, 4) == 0 ? of_connection_ : of_call_) += NumberAt(payload, 0, 4);
    if (frame[3] != 4 || !asks) return;
    for (size_t at = 0; at + 6 <= payload.size(); at += 6) {
      if (NumberAt(payload, at, 2) != 4) continue;
      of_call_ += NumberAt(payload, at + 2, 4) - first_;
      first_ = NumberAt(payload, at + 2, 4);
    }
    client_->Send(Frame(4, 1, 0, ""));
  }

  const std::unique_ptr<TlsClient> client_;
  std::string answer_;
  int64_t left_;
  int64_t first_ = 65'535;  // that a call may send at its beginning
  int64_t of_call_ = first_ - 5, of_connection_ = first_ - 5;
};

TEST_F(JoinTest, Token_IsExchangedForACertificate_ThatServesItsNodeAlone) {
  const v1::CreateTokenResponse made = Create();
  const transport::TlsFiles files = MustJoin(made.token(), "new");
  FakeWorker other(ChannelOf(files));
  other.SayHello(FakeWorker::Hello("there", 1, 1));
  EXPECT_FALSE(other.Read().has_value());
  EXPECT_EQ(other.Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  FakeWorker worker(ChannelOf(files));
  worker.Join("new", 1);
  EXPECT_EQ(Call(ChannelOf(files), "/phalanx.v1.JobService/ListJobs").error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(Audit(),
              AllOf(Contains(absl::StrCat("audit who=olga role=operator method=CreateToken token=",
                                          made.about().id(), " outcome=OK")),
                    Contains(absl::StrCat("audit who=- role=- method=Join token=",
                                          made.about().id(), " node=\"new\" outcome=OK"))));
  for (const std::string& line : Audit())
    EXPECT_THAT(line, Not(HasSubstr(made.token().substr(21)))) << "has the secret";
}

TEST_F(JoinTest, TokenThatIsReplayedRevokedOrForeign_IsRefusedAndRecorded_AndNothingChanges) {
  const v1::CreateTokenResponse used = Create(), revoked = Create();
  MustJoin(used.token(), "new");
  ASSERT_TRUE(Revoke(revoked.about().id()).ok());
  std::string foreign = Create().token();
  foreign.replace(21, 4, foreign.substr(21, 4) == "0000" ? "1111" : "0000");
  const size_t tokens = Tokens().size();
  for (const std::string& token : {used.token(), revoked.token(), foreign}) {
    const grpc::Status refused = Join(token, "evil");
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAUTHENTICATED) << refused.error_message();
    EXPECT_THAT(Audit().back(), AllOf(HasSubstr("method=Join"), HasSubstr("node=\"evil\""),
                                      HasSubstr("outcome=UNAUTHENTICATED reason=")));
  }
  EXPECT_EQ(Tokens().size(), tokens);
  for (const v1::JoinToken& token : Tokens()) {
    for (const v1::JoinToken::Use& use : token.uses()) EXPECT_EQ(use.node(), "new");
  }
  server_.reset();
  Begin();
  EXPECT_EQ(Join(used.token(), "evil").error_code(), grpc::StatusCode::UNAUTHENTICATED)
      << "a coordinator that restarts remembers";
}

TEST_F(JoinTest, WhoeverHasNoCertificate_MayJoinAndNothingElse) {
  const std::shared_ptr<grpc::Channel> stranger = ChannelOfStranger();
  std::vector<std::string> methods = {"/grpc.health.v1.Health/Check",
                                      "/phalanx.v1.JobService/Other"};
  for (const google::protobuf::FileDescriptor* file :
       {v1::SubmitJobRequest::descriptor()->file(), v1::WorkerHello::descriptor()->file(),
        v1::JoinRequest::descriptor()->file()}) {
    const google::protobuf::ServiceDescriptor& service = *file->service(0);
    for (int k = 0; k < service.method_count(); ++k)
      methods.push_back(absl::StrCat("/", service.full_name(), "/", service.method(k)->name()));
  }
  for (const std::string& method : methods) {
    const grpc::StatusCode expected = method == "/phalanx.v1.JoinService/Join"
                                          ? grpc::StatusCode::INVALID_ARGUMENT
                                          : grpc::StatusCode::UNAUTHENTICATED;
    EXPECT_EQ(Call(stranger, method).error_code(), expected) << method;
  }
  EXPECT_THAT(Audit(), Contains("audit who=- role=- method=SubmitJob outcome=UNAUTHENTICATED "
                                "reason=\"there is no certificate\""));
  // A certificate that is shown must be sound all the same.
  const support::Authority foreign;
  transport::TlsFiles files = foreign.Worker("new");
  files.ca = authority().folder() + "/ca.pem";
  EXPECT_EQ(Call(ChannelOf(files), "/phalanx.v1.JoinService/Join").error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(ChannelWith(grpc::InsecureChannelCredentials()), "/phalanx.v1.JoinService/Join")
                .error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_F(JoinTest, RequestThatIsNotSound_IsRefused) {
  const std::string token = Create().token();
  transport::KeyAndRequest own = *transport::MakeKeyAndRequest();
  EXPECT_EQ(Join(token, "../new\n", own).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Join(token, std::string(10'000, 'a'), own).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Join(std::string(10'000, 'a'), "new", own).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  own.request = "spoilt";
  const grpc::Status spoilt = Join(token, "new", own);
  EXPECT_EQ(spoilt.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(spoilt.error_message(),
            "certificate_request: must be a certificate request (PKCS #10) in PEM");
  own.request = std::string(9'000, 'a');
  EXPECT_THAT(Join(token, "new", own).error_message(),
              HasSubstr("certificate_request has 9000 bytes"));
  // Each of them is a line, which is one, and none has used the token up.
  std::vector<std::string> lines = Audit();
  std::erase_if(lines, [](const std::string& line) {
    return !absl::StrContains(line, "who=- role=- method=Join ");
  });
  EXPECT_THAT(lines, ::testing::SizeIs(5));
  EXPECT_THAT(lines, ::testing::Each(AllOf(HasSubstr(" outcome=INVALID_ARGUMENT reason=\""),
                                           Not(HasSubstr("\n")))));
  EXPECT_THAT(Tokens().at(0).uses(), ::testing::IsEmpty());
  MustJoin(token, "new");
}

TEST_F(JoinTest, TokenThatIsRevokedAfterItsUse_EndsTheSession_AndTheCertificateIsRefused) {
  const v1::CreateTokenResponse made = Create(), other = Create();
  const transport::TlsFiles files = MustJoin(made.token(), "gone");
  const std::shared_ptr<grpc::Channel> open = ChannelOf(files);
  FakeWorker gone(open);
  gone.Join("gone", 1);
  FakeWorker stays(ChannelOf(MustJoin(other.token(), "stays")));
  stays.Join("stays", 1);
  const transport::KeyAndRequest next = *transport::MakeKeyAndRequest();
  v1::RenewCertificateResponse renewed;
  ASSERT_TRUE(Renew(files, next, &renewed).ok());

  ASSERT_TRUE(Revoke(made.about().id()).ok());
  while (gone.Read().has_value()) continue;
  EXPECT_EQ(gone.Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED) << "it was open";
  for (const auto& to :
       {open, ChannelOf(files), ChannelOf(FilesWith(renewed.certificate(), next.key))}) {
    const grpc::Status refused = Call(to, "/grpc.health.v1.Health/Check");
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_THAT(refused.error_message(), HasSubstr("which is revoked"));
  }
  EXPECT_EQ(Renew(files, next, &renewed).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(stays.Write(v1::OpenSessionRequest()));

  server_.reset();
  Begin();
  FakeWorker again(ChannelOf(files));
  again.SayHello(FakeWorker::Hello("gone", 1, 1));
  EXPECT_FALSE(again.Read().has_value());
  EXPECT_EQ(again.Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(JoinTest, Certificate_IsRenewed_ForTheSameNode) {
  const transport::TlsFiles files = MustJoin(Create().token(), "new");
  const transport::KeyAndRequest next = *transport::MakeKeyAndRequest();
  v1::RenewCertificateResponse response;
  const grpc::Status status = Renew(files, next, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const auto before = transport::FactsOf(support::ReadFile(files.certificate));
  const auto after = transport::FactsOf(response.certificate());
  ASSERT_TRUE(before.ok() && after.ok());
  EXPECT_EQ(after->uris, before->uris);
  EXPECT_GE(after->end, before->end);
  FakeWorker worker(ChannelOf(FilesWith(response.certificate(), next.key)));
  worker.Join("new", 1);
  // Others come from elsewhere.
  const grpc::Status made = Renew(authority().Worker("here"), next, &response);
  EXPECT_EQ(made.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(made.error_message(), HasSubstr("came of no join token"));
}

TEST_F(JoinTest, CertificateOfATokenThatIsNotKnown_IsRefused) {
  const transport::TlsFiles files = MustJoin(Create().token(), "new");
  server_.reset();
  Open([&](ServerOptions& options) { LetNodesJoin(options, folder_ + "/another-store"); });
  const grpc::Status refused = Call(ChannelOf(files), "/grpc.health.v1.Health/Check");
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(refused.error_message(), HasSubstr("which this coordinator does not know"));
}

TEST_F(JoinTest, NodeThatIsThere_IsNotTakenOverWithATokenForAny) {
  FakeWorker worker(ChannelOf(authority().Worker("here")));
  worker.Join("here", 1);
  const grpc::Status refused = Join(Create().token(), "here");
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_THAT(refused.error_message(), HasSubstr("make a token with --node here"));
  MustJoin(Create("here").token(), "here");
}

TEST_F(JoinTest, WithoutAKeyToSignWith_TokensAreRefused_AndCertificatesHold) {
  const transport::TlsFiles files = MustJoin(Create().token(), "new");
  server_.reset();
  Open([&](ServerOptions& options) {
    options.join.store = std::make_shared<TokenFile>(folder_ + "/join-tokens");
  });
  v1::CreateTokenResponse response;
  const grpc::Status refused =
      Do(Olga(), &v1::JoinService::Stub::CreateToken, v1::CreateTokenRequest(), &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(),
              HasSubstr("start it with --join-ca-certificate and --join-ca-key"));
  EXPECT_EQ(Join("phx_x_y", "other").error_code(), grpc::StatusCode::UNAVAILABLE)
      << "whoever has no certificate gets no further than the handshake";
  FakeWorker worker(ChannelOf(files));
  worker.Join("new", 1);
}

TEST_F(JoinTest, StrangersWhoHoldHalfOfLargeRequests_AreEnded_AndWorkersAndPeopleNoticeNothing) {
  // By what they send, and by nothing else.
  server_.reset();
  Open([&](ServerOptions& options) {
    LetNodesJoin(options, folder_ + "/join-tokens");
    options.join.requests.patience = absl::Minutes(10);
    for (size_t JoinRequestBounds::*bound :
         {&JoinRequestBounds::reading_max, &JoinRequestBounds::of_network_max,
          &JoinRequestBounds::burst_max, &JoinRequestBounds::of_network_burst_max})
      options.join.requests.*bound = 1000;
  });
  FakeWorker worker(ChannelOf(authority().Worker("here")), 120);
  worker.Join("here", 1);
  std::vector<std::unique_ptr<HalfRequest>> strangers;
  for (int i = 0; i < 130; ++i)
    strangers.push_back(std::make_unique<HalfRequest>(Connected(), (8 << 20) - 1));
  int ended = 0;
  for (const auto& stranger : strangers) ended += stranger->IsEnded() ? 1 : 0;
  EXPECT_EQ(ended, 130);
  ExpectTold(
      "who=- role=- method=Join outcome=INVALID_ARGUMENT reason=\"the request does not end within "
      "65536 bytes\"",
      130);
  v1::OpenSessionRequest heartbeat;
  heartbeat.mutable_heartbeat();
  EXPECT_TRUE(worker.Write(heartbeat));
  const auto deadline =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(support::kPatience);
  const std::string counted = "\nphalanx_heartbeats_total 1\n";
  while (!absl::StrContains(server_->MetricsText(), counted) &&
         std::chrono::steady_clock::now() < deadline)
    absl::SleepFor(absl::Milliseconds(5));
  EXPECT_THAT(server_->MetricsText(), HasSubstr(counted));
  Be("sam", "submitter");
  MustSubmit(JobText("a"));
  MustJoin(Create().token(), "new");
}

TEST_F(JoinTest, RequestThatDrips_IsEndedInTime) {
  server_.reset();
  Open([&](ServerOptions& options) {
    LetNodesJoin(options, folder_ + "/join-tokens");
    options.join.requests.patience = absl::Milliseconds(100);
  });
  HalfRequest drips(Connected(), 1000);
  EXPECT_TRUE(drips.IsEnded());
  ExpectTold(
      "who=- role=- method=Join outcome=DEADLINE_EXCEEDED reason=\"the request did not come whole "
      "within 100ms\"");
}

TEST_F(JoinTest, RequestThatHasNoRoom_EndsTheOneThatWaitsLongest_WithAnAnswer) {
  server_.reset();
  Open([&](ServerOptions& options) {
    LetNodesJoin(options, folder_ + "/join-tokens");
    options.join.requests.of_network_max = 1;
    options.join.requests.youth = absl::ZeroDuration();
    options.join.requests.patience = absl::Minutes(10);
  });
  HalfRequest first(Connected(), 1000), second(Connected(), 1000);
  ExpectTold("reason=\"127.0.0.1 sends 1 requests to join that are not there yet");
  MustJoin(Create().token(), "new");
  for (HalfRequest* half : {&first, &second}) {
    EXPECT_TRUE(half->IsEnded());
    EXPECT_THAT(half->answer(), HasSubstr("127.0.0.1 sends 1 requests to join that are not there "
                                          "yet; ask again in 1 s"));
  }
}

TEST_F(JoinTest, RequestsOfAllAddresses_AreBoundedTogether) {
  server_.reset();
  Open([&](ServerOptions& options) {
    LetNodesJoin(options, folder_ + "/join-tokens");
    options.join.requests.reading_max = 2;
    options.join.requests.youth = absl::ZeroDuration();
    options.join.requests.patience = absl::Minutes(10);
  });
  std::vector<std::unique_ptr<HalfRequest>> strangers;
  for (const std::string from : {"127.0.0.1", "127.0.0.2", "127.0.0.3"})
    strangers.push_back(std::make_unique<HalfRequest>(Connected(from), 1000));
  ExpectTold("reason=\"nodes send 2 requests to join that are not there yet");
  MustJoin(Create().token(), "new");
}

TEST_F(JoinTest, NodesOfOneAddressThatComeAtOnce_AreNotTakenForSlowOnes) {
  server_.reset();
  Open([&](ServerOptions& options) {
    LetNodesJoin(options, folder_ + "/join-tokens");
    options.join.rate = JoinOptions().rate;
    options.join.network_rate = JoinOptions().network_rate;
  });
  constexpr size_t kNodes = 50;  // as many as the rate lets in
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  std::vector<v1::JoinRequest> requests(kNodes);
  for (size_t i = 0; i < kNodes; ++i) {
    requests[i].set_token(Create().token());
    requests[i].set_node(absl::StrCat("node-", i));
    requests[i].set_certificate_request(transport::MakeKeyAndRequest()->request);
    channels.push_back(ChannelOfStranger());
    ASSERT_TRUE(channels.back()->WaitForConnected(std::chrono::system_clock::now() +
                                                  absl::ToChronoNanoseconds(support::kPatience)));
  }
  std::vector<grpc::Status> answers(kNodes);
  {
    std::vector<std::jthread> nodes;
    for (size_t i = 0; i < kNodes; ++i) {
      nodes.emplace_back([&, i] {
        v1::JoinResponse response;
        answers[i] = Do(channels[i], &v1::JoinService::Stub::Join, requests[i], &response);
      });
    }
  }
  for (const grpc::Status& answer : answers) EXPECT_TRUE(answer.ok()) << answer.error_message();
}

TEST_F(JoinTest, NodeThatFindsTooManyOthers_JoinsOnceTheyAreGone) {
  server_.reset();
  Open([&](ServerOptions& options) {
    LetNodesJoin(options, folder_ + "/join-tokens");
    options.join.requests.of_network_max = 1;
    options.join.requests.of_network_burst_max = 1;
    options.join.requests.youth = options.join.requests.patience = absl::Minutes(10);
  });
  const std::string state = support::MakeFolder("crowd"), token = state + "/token";
  support::WriteFile(token, Create().token());
  chmod(token.c_str(), 0600);
  // Until one of them has the place; who finds it taken is refused.
  std::vector<std::unique_ptr<HalfRequest>> others;
  grpc::Status refused;
  while (refused.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED) {
    others.push_back(std::make_unique<HalfRequest>(Connected(), 1000));
    refused = Join("phx_0123456789abcdef_x", "other");
    ASSERT_LT(others.size(), 1000u) << refused.error_message();
  }
  EXPECT_THAT(refused.error_message(), HasSubstr("127.0.0.1 sends 1 requests to join"));
  std::vector<std::string> told;
  const absl::StatusOr<transport::TlsFiles> files =
      agent::ObtainIdentity({.coordinator = absl::StrCat("127.0.0.1:", server_->port()),
                             .ca = authority().folder() + "/ca.pem",
                             .node = "new",
                             .state = state,
                             .token_file = token,
                             .crowd_pause_min = absl::Milliseconds(10),
                             .crowd_pause_max = absl::Milliseconds(10),
                             .log =
                                 [&](const std::string& line) {
                                   told.push_back(line);
                                   others.clear();
                                 }},
                            [] { return false; });
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT(told, ::testing::ElementsAre(HasSubstr("waits to join")));
  FakeWorker worker(ChannelOf(*files));
  worker.Join("new", 1);
}

TEST_F(JoinTest, StrangersOfOneAddress_TakeNothingFromThoseOfAnother_AndAllTogetherAreBounded) {
  server_.reset();
  Open([&](ServerOptions& options) {
    LetNodesJoin(options, folder_ + "/join-tokens");
    options.join.network_rate = {.calls_per_second = 0.001, .calls_at_once = 2};
    options.join.rate = {.calls_per_second = 0.001, .calls_at_once = 3};
  });
  std::vector<std::unique_ptr<TlsClient>> open;
  const auto ask = [&](const std::string& from) {
    open.push_back(Connected(from));
    open.back()->Send(absl::StrCat(kPreface, Settings(), Headers("/phalanx.v1.JoinService/Join"),
                                   PartOfMessage(0, "")));
  };
  const std::string heard = "method=Join outcome=INVALID_ARGUMENT reason=\"token has 0 bytes";
  for (int i = 0; i < 5; ++i) ask("127.0.0.1");
  ExpectTold("reason=\"127.0.0.1 calls more often than 0.001 times a second", 3);
  ExpectTold(heard, 2);
  ask("127.0.0.2");
  ExpectTold(heard, 3);
  ask("127.0.0.2");
  ExpectTold("reason=\"whoever joins calls more often than 0.001 times a second");
}

TEST(SignerFilesTest, WhatIsWrong_IsNamed) {
  const support::Authority own, foreign;
  const std::string ca = own.Coordinator().ca;
  foreign.Coordinator();
  const std::string key = own.folder() + "/ca-key.pem";
  const auto fault = [&](const std::string& certificate, const std::string& of_key) {
    return std::string(
        transport::CheckSignerFiles({certificate, of_key}, ca, "--join-ca-").message());
  };
  EXPECT_EQ(fault(ca, key), "");
  EXPECT_EQ(fault("", ""), "") << "there is none";
  EXPECT_THAT(fault(ca, ""), HasSubstr("--join-ca-key is missing"));
  EXPECT_EQ(fault(ca, "/nowhere"),
            "--join-ca-key: /nowhere: cannot be opened: No such file or directory");
  const std::string leaf = own.folder() + "/coordinator.pem";
  EXPECT_EQ(fault(leaf, key), absl::StrCat("--join-ca-certificate: ", leaf,
                                           ": is not the certificate of an authority"));
  const std::string other = foreign.folder() + "/ca.pem";
  EXPECT_EQ(
      fault(ca, foreign.folder() + "/ca-key.pem"),
      absl::StrCat("--join-ca-key: ", foreign.folder(), "/ca-key.pem: is not the key of ", ca));
  EXPECT_EQ(fault(other, foreign.folder() + "/ca-key.pem"),
            absl::StrCat("--join-ca-certificate: ", other, ": is none of the authorities in ", ca,
                         ", nor signed by one"));
}

}  // namespace
}  // namespace phalanx::coordinator
