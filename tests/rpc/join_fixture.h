// tests/rpc/join_fixture.h: a server with certificates that nodes join with tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/rpc/join_service.h"
#include "phalanx/v1/join_service.grpc.pb.h"
#include "tests/rpc/access_fixture.h"
#include "tests/rpc/tls_http.h"
#include "transport/issuance.h"

namespace phalanx::coordinator {

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

}  // namespace phalanx::coordinator
