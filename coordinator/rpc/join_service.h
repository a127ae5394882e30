// coordinator/rpc/join_service.h: JoinService. Tokens are made, exchanged for certificates, renewed
// and revoked; each change is on disk before it is answered.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/rpc/admission.h"
#include "coordinator/rpc/call_rate.h"
#include "coordinator/rpc/ending.h"
#include "coordinator/rpc/join_requests.h"
#include "coordinator/rpc/join_tokens.h"
#include "coordinator/runtime/work_pool.h"
#include "phalanx/v1/join_service.grpc.pb.h"
#include "transport/issuance.h"
#include "transport/tls.h"

namespace phalanx::coordinator {

struct JoinOptions {
  std::shared_ptr<TokenStore> store;  // where tokens are kept; null: there are none
  transport::SignerFiles signer;  // none: tokens are refused, certificates that came of some hold
  // Of a certificate that comes of a token; its owner renews it when two thirds are over.
  absl::Duration certificate_life = absl::Hours(24 * 7);
  // Of all who show tokens together: they are strangers, of whom nothing but the address is known.
  CallRateOptions rate = {.calls_per_second = 20, .calls_at_once = 200};
  // The same of one NetworkOf, so that none takes everything.
  CallRateOptions network_rate = {.calls_per_second = 5, .calls_at_once = 50};
  JoinRequestBounds requests;
  // Renewals of one node: a failed one is tried again after a twentieth of the life.
  int renewals_per_hour = 60;
};

// Methods that are served as others are; Join is one of requests().
using JoinMethods = v1::JoinService::WithCallbackMethod_CreateToken<
    v1::JoinService::WithCallbackMethod_ListTokens<v1::JoinService::WithCallbackMethod_RevokeToken<
        v1::JoinService::WithCallbackMethod_RenewCertificate<
            v1::JoinService::WithGenericMethod_Join<v1::JoinService::Service>>>>>;

// Thread-safe.
class JoinServiceImpl final : public JoinMethods {
 public:
  struct World {
    Metrics& metrics;
    Admission& admission;
    Audit& audit;
    // Whether a node of that name is there, however it got its certificate.
    std::function<bool(const std::string& node)> has_node;
    // Certificates that held before are refused now.
    std::function<void()> revoked;
    // As JoinRequests::World.
    std::function<int64_t(const std::string& peer)> received;
  };
  // `tokens`, which may be nullptr, and the world outlive the service.
  JoinServiceImpl(JoinTokens* tokens, JoinOptions options, World world)
      : tokens_(tokens),
        options_(std::move(options)),
        world_(std::move(world)),
        strangers_(options_.rate),
        networks_(options_.network_rate),
        renewals_(RenewalsOf(options_)),
        workers_("joiner", WorkPool::Priority::kServing, 1, kWaitingMax),
        requests_(options_.requests,
                  {.metrics = world_.metrics, .audit = world_.audit, .received = world_.received},
                  [this](const Ending& end, const v1::JoinRequest& request,
                         v1::JoinResponse* response) { Join(end, request, response); }) {}

  // To be registered with the same server.
  grpc::CallbackGenericService& requests() { return requests_; }

  // Answers the calls that wait, and whatever comes later, with Unavailable.
  void Stop() { workers_.Stop(); }

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;
  Reactor* CreateToken(Context*, const v1::CreateTokenRequest*, v1::CreateTokenResponse*) override;
  Reactor* ListTokens(Context*, const v1::ListTokensRequest*, v1::ListTokensResponse*) override;
  Reactor* RevokeToken(Context*, const v1::RevokeTokenRequest*, v1::RevokeTokenResponse*) override;
  Reactor* RenewCertificate(Context*, const v1::RenewCertificateRequest*,
                            v1::RenewCertificateResponse*) override;

 private:
  static constexpr size_t kWaitingMax = 256;

  // Where a life is short, as many as one life may take.
  static CallRateOptions RenewalsOf(const JoinOptions& options);
  // As Admission::Take, of a call with such a request.
  absl::Status Take(const Ending& end, const google::protobuf::Message& request);
  void Join(const Ending& end, const v1::JoinRequest& request, v1::JoinResponse* response);
  // Errors: FailedPrecondition, if no certificates are signed here.
  absl::Status CheckSigner() const;
  absl::StatusOr<std::string> Sign(absl::string_view request, const std::string& node,
                                   const std::string& token, absl::Time end) const;
  absl::Status Exchange(const v1::JoinRequest& request, const Ending& end,
                        v1::JoinResponse* response);
  absl::Status Renew(const Caller& caller, const std::string& token,
                     const v1::RenewCertificateRequest& request,
                     v1::RenewCertificateResponse* response);

  JoinTokens* const tokens_;
  const JoinOptions options_;
  const World world_;
  CallRate strangers_;
  CallRate networks_;
  CallRate renewals_;
  WorkPool workers_;
  JoinRequests requests_;
};

// Of a port where nodes may join, if certificates are signed here: whoever shows no certificate
// gets to Join alone.
std::shared_ptr<grpc::ServerCredentials> CredentialsOf(const transport::TlsFiles& tls,
                                                       const JoinOptions& join);

// Of a certificate with these URIs: whether it came of a join token that is not good any more. OK
// where there are no tokens. Errors: Unauthenticated.
absl::Status CheckTokensOf(const std::vector<std::string>& uris, const JoinTokens* tokens);

}  // namespace phalanx::coordinator
