// coordinator/rpc/access.h: who calls, and what they may.
//
// An *identity* is a name and a role, and stands in the caller's certificate as one URI among its
// subject alternative names: phalanx:ROLE/NAME. What a method asks for is in one table; a method
// without a row is for nobody. Whose job it is, and which node, is judged where the request is read
// (MayChange, MayServe).
//
// In plaintext nobody is asked who they are: there is no identity, and everything is allowed.
//
// Immutable; safe to read from any thread.
#pragma once

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/server_builder.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/machine/actions.h"
#include "transport/revocation.h"

namespace phalanx::coordinator {

// Each of the first three may all that the one before it may. A worker is none of them.
enum class Role : uint8_t { kViewer, kSubmitter, kOperator, kWorker };
absl::string_view RoleName(Role role);

struct Identity {
  std::string name;  // 1 to 253 letters, digits and "._@+-"
  Role role = Role::kViewer;
};
// Nobody: the call came in plaintext.
using Caller = std::optional<Identity>;
// For records and events; empty: not known.
std::string NameOf(const Caller& caller);
// What is counted of a caller is counted under this: a person's in all of their roles together, a
// node's apart from that of a person of the same name.
std::string KeyOf(const Identity& identity);

// "phalanx:operator/alice". Errors: Unauthenticated, with the rule that it breaks.
absl::StatusOr<Identity> ParseIdentity(absl::string_view uri);
// Subject alternative names of the peer's certificate.
std::vector<std::string> UrisOf(const grpc::AuthContext& peer);
// Of a certificate with these URIs. Errors: Unauthenticated, if they name no identity or several.
absl::StatusOr<Identity> IdentityOfUris(const std::vector<std::string>& uris);
// Of a peer that showed a certificate. Errors: Unauthenticated, if it names no identity or several.
absl::StatusOr<Identity> IdentityOf(const grpc::AuthContext& peer);
// Of a call that Gatekeeper let pass, or of one in plaintext. Of a certificate that names no
// identity (none such is let pass), and of whoever joins over TLS without one: one that has no name
// and may change nothing.
Caller CallerOf(const grpc::AuthContext& peer);

// "GetJob" of "/phalanx.v1.JobService/GetJob"; "unknown" where there is no such method: what
// strangers send names no series of a metric.
absl::string_view MethodOf(absl::string_view path);

// The pages of the HTTP port, as the table has them.
inline constexpr absl::string_view kHttpPages = "/phalanx/http";

// Whether the role may call the method, "/phalanx.v1.JobService/GetJob". Errors: PermissionDenied.
absl::Status MayCall(Role role, absl::string_view path);
// Whether the caller may change the job, in a word such as "cancel". Errors: PermissionDenied.
absl::Status MayChange(const Caller& caller, const JobView& job, absl::string_view verb);
// Whether the caller may speak for the node. Errors: PermissionDenied.
absl::Status MayServe(const Caller& caller, absl::string_view node);

// Looks at every call before anything of ours, health checks and reflection included. `refused` is
// told of those that it does not let pass, from any thread.
class Gatekeeper final : public grpc::AuthMetadataProcessor {
 public:
  using Refused =
      std::function<void(const Caller& caller, absl::string_view path, const absl::Status& why)>;
  // OK, unless the peer's certificate was taken back. Errors: Unauthenticated.
  using Revoked = std::function<absl::Status(const grpc::AuthContext& peer)>;
  // Told of calls of one request of ours that it would let pass, before the request has come.
  // Errors: ResourceExhausted.
  using Begin = std::function<absl::Status(const Caller& caller)>;
  // `asks`: of a health check, likewise.
  Gatekeeper(
      Revoked revoked, Refused refused,
      Begin begin = [](const Caller&) { return absl::OkStatus(); },
      Begin asks = [](const Caller&) { return absl::OkStatus(); })
      : revoked_(std::move(revoked)),
        refused_(std::move(refused)),
        begin_(std::move(begin)),
        asks_(std::move(asks)) {}

  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* peer,
                       OutputMetadata* consumed, OutputMetadata* response) override;

 private:
  // Without a certificate: to join, where a certificate is not asked for. Errors: as IdentityOf and
  // MayCall and Begin; Unauthenticated.
  absl::Status Judge(const grpc::AuthContext& peer, absl::string_view path) const;

  const Revoked revoked_;
  const Refused refused_;
  const Begin begin_, asks_;
};

// Whoever compresses requests is told that it is UNIMPLEMENTED; nobody of ours does. gRPC 1.51
// expands a message before it looks at its size: 8 MiB become gigabytes.
void RefuseCompressed(grpc::ServerBuilder& builder);

// OK, unless a certificate of the peer is on a list; null: there is none. Errors: as RevokedError.
absl::Status CheckNotRevoked(const transport::Revocations* revocations,
                             const grpc::AuthContext& peer);
// What callers are told whose certificate was taken back.
absl::Status RevokedError(const Caller& caller);

}  // namespace phalanx::coordinator
