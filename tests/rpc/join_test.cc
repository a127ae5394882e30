// Nodes that join with a token, and those that try to.
#include <google/protobuf/descriptor.h>
#include <openssl/pem.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/rpc/join_service.h"
#include "gmock/gmock.h"
#include "phalanx/v1/join_service.grpc.pb.h"
#include "tests/rpc/join_fixture.h"
#include "transport/issuance.h"
#include "transport/openssl.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

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

bool IsSignedBy(const std::string& pem, const support::Authority& authority) {
  const auto read = [](const std::string& text) {
    return transport::Certificate(
        PEM_read_bio_X509(transport::Reader(text).get(), nullptr, nullptr, nullptr));
  };
  const transport::Certificate certificate = read(pem);
  const transport::Certificate ca = read(support::ReadFile(authority.folder() + "/ca.pem"));
  return certificate != nullptr && ca != nullptr &&
         X509_verify(certificate.get(), X509_get0_pubkey(ca.get())) == 1;
}

// As a secret is rotated: each file is put beside its place and renamed over it.
TEST_F(JoinTest, AuthorityThatIsReplaced_SignsTheNext_AndOneThatIsSpoiltUsesUpNoToken) {
  const transport::SignerFiles signer{.certificate = folder_ + "/signer.pem",
                                      .key = folder_ + "/signer-key.pem"};
  const auto put = [](const std::string& path, const std::string& text) {
    support::WriteFile(path + ".new", text);
    std::filesystem::rename(path + ".new", path);
  };
  const auto text_of = [](const support::Authority& of, const std::string& file) {
    return support::ReadFile(absl::StrCat(of.folder(), "/", file));
  };
  put(signer.certificate, text_of(authority(), "ca.pem"));
  put(signer.key, text_of(authority(), "ca-key.pem"));
  server_.reset();
  Open([&](ServerOptions& options) {
    LetNodesJoin(options, folder_ + "/join-tokens");
    options.join.signer = signer;
  });
  const support::Authority next;
  next.Coordinator();
  const transport::KeyAndRequest own = *transport::MakeKeyAndRequest();
  std::string certificate;
  ASSERT_TRUE(Join(Create().token(), "first", own, &certificate).ok());
  EXPECT_TRUE(IsSignedBy(certificate, authority()));

  const std::string token = Create().token();
  const auto refused = [&](const std::string& why) {
    std::string none;
    const grpc::Status status = Join(token, "second", own, &none);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
    EXPECT_EQ(status.error_message(), "the key to sign with cannot be used: " + why);
    EXPECT_EQ(none, "");
    EXPECT_THAT(Tokens().back().uses(), ::testing::IsEmpty()) << "the token was used up";
  };
  put(signer.certificate, "spoilt");
  refused(
      absl::StrCat("certificate: ", signer.certificate, ": must begin with a certificate in PEM"));
  put(signer.certificate, text_of(next, "ca.pem"));
  refused(absl::StrCat("key: ", signer.key, ": is not the key of ", signer.certificate));
  put(signer.key, text_of(next, "ca-key.pem").substr(0, 60));
  refused(absl::StrCat("key: ", signer.key, ": must be a private key in PEM, without a password"));
  std::filesystem::remove(signer.key);
  refused(absl::StrCat("key: ", signer.key, ": cannot be opened: No such file or directory"));

  put(signer.key, text_of(next, "ca-key.pem"));
  ASSERT_TRUE(Join(token, "second", own, &certificate).ok());
  EXPECT_TRUE(IsSignedBy(certificate, next));
  EXPECT_FALSE(IsSignedBy(certificate, authority()));
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
