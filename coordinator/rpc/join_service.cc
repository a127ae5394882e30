#include "coordinator/rpc/join_service.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/rpc/access.h"
#include "core/base/status.h"
#include "core/posix/peer_name.h"
#include "transport/join_credentials.h"

namespace phalanx::coordinator {
namespace {

constexpr size_t kTokenBytesMax = 256;
constexpr size_t kRequestBytesMax = 8 << 10;

std::vector<std::string> TokensOfUris(const std::vector<std::string>& uris) {
  std::vector<std::string> tokens;
  for (const std::string& uri : uris) {
    std::string token = TokenOfUri(uri);
    if (!token.empty()) tokens.push_back(std::move(token));
  }
  return tokens;
}

absl::Status CheckSize(absl::string_view field, const std::string& text, size_t bytes_max) {
  if (!text.empty() && text.size() <= bytes_max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has ", text.size(), " bytes; it must have 1 to ", bytes_max));
}

}  // namespace

std::shared_ptr<grpc::ServerCredentials> CredentialsOf(const transport::TlsFiles& tls,
                                                       const JoinOptions& join) {
  return tls.on() && join.signer.on() ? transport::JoinCredentials(tls)
                                      : transport::ServerCredentials(tls);
}

absl::Status CheckTokensOf(const std::vector<std::string>& uris, const JoinTokens* tokens) {
  if (tokens == nullptr) return absl::OkStatus();
  for (const std::string& token : TokensOfUris(uris)) RETURN_IF_ERROR(tokens->MayServe(token));
  return absl::OkStatus();
}

CallRateOptions JoinServiceImpl::RenewalsOf(const JoinOptions& options) {
  const double life = absl::ToDoubleSeconds(options.certificate_life);
  return {
      .calls_per_second = std::max(options.renewals_per_hour / 3600.0, 20 / std::max(1.0, life)),
      .calls_at_once = static_cast<double>(options.renewals_per_hour)};
}

absl::Status JoinServiceImpl::CheckSigner() const {
  if (tokens_ != nullptr && options_.signer.on()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this coordinator takes no join tokens: it has no key to sign certificates with; start it "
      "with --join-ca-certificate and --join-ca-key, beside --tls-ca and the like");
}

absl::Status JoinServiceImpl::Take(const Ending& end, const google::protobuf::Message& request) {
  return world_.admission.Take(end.caller(), end.peer(), request.ByteSizeLong());
}

JoinServiceImpl::Reactor* JoinServiceImpl::CreateToken(Context* context,
                                                       const v1::CreateTokenRequest* request,
                                                       v1::CreateTokenResponse* response) {
  const Ending end(context, "CreateToken", world_.metrics, world_.audit);
  if (absl::Status status = Take(end, *request); !status.ok()) return end.With(status);
  if (absl::Status status = CheckSigner(); !status.ok()) return end.With(status);
  workers_.Add([this, end, request, response](const absl::Status& go) {
    if (!go.ok()) return end(go);
    absl::StatusOr<v1::CreateTokenResponse> made =
        tokens_->Create(*request, NameOf(end.caller()), absl::Now());
    if (made.ok()) {
      end.ChangesToken(made->about().id());
      *response = *std::move(made);
    }
    end(made.status());
  });
  return end.reactor();
}

JoinServiceImpl::Reactor* JoinServiceImpl::ListTokens(Context* context,
                                                      const v1::ListTokensRequest* request,
                                                      v1::ListTokensResponse* response) {
  const Ending end(context, "ListTokens", world_.metrics);
  if (absl::Status status = Take(end, *request); !status.ok()) return end.With(status);
  if (tokens_ == nullptr) return end.With(absl::OkStatus());
  for (v1::JoinToken& token : tokens_->List(absl::Now()))
    *response->add_tokens() = std::move(token);
  return end.With(absl::OkStatus());
}

JoinServiceImpl::Reactor* JoinServiceImpl::RevokeToken(Context* context,
                                                       const v1::RevokeTokenRequest* request,
                                                       v1::RevokeTokenResponse* response) {
  const Ending end(context, "RevokeToken", world_.metrics, world_.audit);
  if (absl::Status status = Take(end, *request); !status.ok()) return end.With(status);
  if (absl::Status status = CheckSize("id", request->id(), kTokenBytesMax); !status.ok())
    return end.With(status);
  if (tokens_ == nullptr) return end.With(CheckSigner());
  workers_.Add([this, end, request, response](const absl::Status& go) {
    if (!go.ok()) return end(go);
    absl::StatusOr<v1::JoinToken> token =
        tokens_->Revoke(request->id(), NameOf(end.caller()), absl::Now());
    if (token.ok()) {
      end.ChangesToken(token->id());
      *response->mutable_about() = *std::move(token);
      world_.revoked();
    }
    end(token.status());
  });
  return end.reactor();
}

void JoinServiceImpl::Join(const Ending& end, const v1::JoinRequest& request,
                           v1::JoinResponse* response) {
  absl::Status status = networks_.Take(Identity{NetworkOf(end.peer()), Role::kViewer});
  if (status.ok()) status = strangers_.Take(Identity{"whoever joins", Role::kViewer});
  if (!status.ok()) return end(status);
  workers_.Add([this, end, &request, response](const absl::Status& go) {
    end(go.ok() ? Exchange(request, end, response) : go);
  });
}

absl::StatusOr<std::string> JoinServiceImpl::Sign(absl::string_view request,
                                                  const std::string& node, const std::string& token,
                                                  absl::Time end) const {
  return transport::SignRequest(
      options_.signer, request,
      {.name = node, .uris = {absl::StrCat("phalanx:worker/", node), TokenUri(token)}, .end = end});
}

absl::Status JoinServiceImpl::Exchange(const v1::JoinRequest& request, const Ending& end,
                                       v1::JoinResponse* response) {
  RETURN_IF_ERROR(CheckSize("token", request.token(), kTokenBytesMax));
  RETURN_IF_ERROR(
      CheckSize("certificate_request", request.certificate_request(), kRequestBytesMax));
  RETURN_IF_ERROR(CheckSigner());
  end.Changes(request.node());
  const absl::Time now = absl::Now();
  JoinTokens::Claim claim{.token = request.token(), .node = request.node()};
  ASSIGN_OR_RETURN(claim.key_sha256, transport::KeyOfRequest(request.certificate_request()));
  ASSIGN_OR_RETURN(const std::string token, tokens_->Check(claim, now));
  end.ChangesToken(token, request.node());
  if (world_.has_node(request.node()) && !tokens_->NamesNode(token)) {
    return absl::AlreadyExistsError(absl::StrCat("there is a node ", request.node(),
                                                 "; make a token with --node ", request.node(),
                                                 ", or take another name"));
  }
  const absl::Time last = now + options_.certificate_life;
  ASSIGN_OR_RETURN(std::string certificate,
                   Sign(request.certificate_request(), request.node(), token, last));
  RETURN_IF_ERROR(tokens_->Use(claim, last, now).status());
  response->set_certificate(std::move(certificate));
  return absl::OkStatus();
}

JoinServiceImpl::Reactor* JoinServiceImpl::RenewCertificate(
    Context* context, const v1::RenewCertificateRequest* request,
    v1::RenewCertificateResponse* response) {
  const Ending end(context, "RenewCertificate", world_.metrics, world_.audit);
  if (absl::Status status = world_.admission.TakeOfWorker(end.caller(), end.peer()); !status.ok())
    return end.With(status);
  if (!renewals_.Take(end.caller()).ok()) {
    return end.With(absl::ResourceExhaustedError(
        absl::StrCat(NameOf(end.caller()), " has renewed its certificate ",
                     options_.renewals_per_hour, " times within the hour; ask again in a minute")));
  }
  if (absl::Status status =
          CheckSize("certificate_request", request->certificate_request(), kRequestBytesMax);
      !status.ok()) {
    return end.With(status);
  }
  if (absl::Status status = CheckSigner(); !status.ok()) return end.With(status);
  const std::vector<std::string> tokens = TokensOfUris(UrisOf(*context->auth_context()));
  if (tokens.size() != 1 || !end.caller().has_value()) {
    return end.With(absl::FailedPreconditionError(
        "the certificate came of no join token; whoever made it makes the next one"));
  }
  end.ChangesToken(tokens[0], end.caller()->name);
  workers_.Add([this, end, request, response, token = tokens[0]](const absl::Status& go) {
    end(go.ok() ? Renew(end.caller(), token, *request, response) : go);
  });
  return end.reactor();
}

absl::Status JoinServiceImpl::Renew(const Caller& caller, const std::string& token,
                                    const v1::RenewCertificateRequest& request,
                                    v1::RenewCertificateResponse* response) {
  const absl::Time last = absl::Now() + options_.certificate_life;
  ASSIGN_OR_RETURN(std::string certificate,
                   Sign(request.certificate_request(), NameOf(caller), token, last));
  RETURN_IF_ERROR(tokens_->Renew(token, last));
  response->set_certificate(std::move(certificate));
  return absl::OkStatus();
}

}  // namespace phalanx::coordinator
