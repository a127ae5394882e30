#include "coordinator/rpc/access.h"

#include <grpc/grpc_security_constants.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"

namespace phalanx::coordinator {
namespace {

constexpr absl::string_view kScheme = "phalanx:";
constexpr size_t kNameBytesMax = 253;
// Of a URI or a path that is refused.
constexpr size_t kBytesShown = 64;

constexpr std::pair<Role, absl::string_view> kRoles[] = {{Role::kViewer, "viewer"},
                                                         {Role::kSubmitter, "submitter"},
                                                         {Role::kOperator, "operator"},
                                                         {Role::kWorker, "worker"}};

// Whom a method is for.
// kStrangers: also for those who have no certificate.
enum class For : uint8_t { kViewers, kSubmitters, kOperators, kWorkers, kAll, kStrangers };
struct MethodRule {
  absl::string_view path;
  For whom;
};
constexpr MethodRule kRules[] = {
    {"/grpc.health.v1.Health/Check", For::kAll},
    // Streams of gRPC's own, which nobody bounds: nobody is told of their end.
    {"/grpc.health.v1.Health/Watch", For::kOperators},
    {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", For::kOperators},
    {kHttpPages, For::kViewers},
    {"/phalanx.v1.JobService/CancelJob", For::kSubmitters},
    {"/phalanx.v1.JobService/CheckSubmit", For::kSubmitters},
    {"/phalanx.v1.JobService/CordonNode", For::kOperators},
    {"/phalanx.v1.JobService/DeleteJob", For::kSubmitters},
    {"/phalanx.v1.JobService/DrainNode", For::kOperators},
    {"/phalanx.v1.JobService/ExplainJob", For::kViewers},
    {"/phalanx.v1.JobService/GetJob", For::kViewers},
    {"/phalanx.v1.JobService/GetLogs", For::kViewers},
    {"/phalanx.v1.JobService/InjectFault", For::kSubmitters},
    {"/phalanx.v1.JobService/ListEvents", For::kViewers},
    {"/phalanx.v1.JobService/ListIncidents", For::kViewers},
    {"/phalanx.v1.JobService/ListJobs", For::kViewers},
    {"/phalanx.v1.JobService/ListNodes", For::kViewers},
    {"/phalanx.v1.JobService/PlanJob", For::kViewers},
    {"/phalanx.v1.JobService/ReserveNode", For::kOperators},
    {"/phalanx.v1.JobService/ResumeJob", For::kSubmitters},
    {"/phalanx.v1.JobService/SubmitJob", For::kSubmitters},
    {"/phalanx.v1.JobService/SuspendJob", For::kSubmitters},
    {"/phalanx.v1.JobService/TryConnection", For::kOperators},
    {"/phalanx.v1.JobService/UncordonNode", For::kOperators},
    {"/phalanx.v1.JobService/UnreserveNode", For::kOperators},
    {"/phalanx.v1.JobService/WatchJob", For::kViewers},
    {"/phalanx.v1.JoinService/CreateToken", For::kOperators},
    {"/phalanx.v1.JoinService/Join", For::kStrangers},
    {"/phalanx.v1.JoinService/ListTokens", For::kOperators},
    {"/phalanx.v1.JoinService/RenewCertificate", For::kWorkers},
    {"/phalanx.v1.JoinService/RevokeToken", For::kOperators},
    {"/phalanx.v1.WorkerService/OpenSession", For::kWorkers},
    {"/phalanx.v1.WorkerService/UploadLogs", For::kWorkers},
};

// nullptr: there is none.
const MethodRule* FindRule(absl::string_view path) {
  const auto* const rule =
      std::find_if(std::begin(kRules), std::end(kRules),
                   [path](const MethodRule& known) { return known.path == path; });
  return rule == std::end(kRules) ? nullptr : rule;
}

bool IsFor(For whom, Role role) {
  switch (whom) {
    case For::kViewers:
      return role != Role::kWorker;
    case For::kSubmitters:
      return role == Role::kSubmitter || role == Role::kOperator;
    case For::kOperators:
      return role == Role::kOperator;
    case For::kWorkers:
      return role == Role::kWorker;
    case For::kAll:
    case For::kStrangers:
      return true;
  }
  return false;
}

std::string RolesFor(For whom) {
  std::vector<absl::string_view> names;
  for (const auto& [role, name] : kRoles) {
    if (IsFor(whom, role)) names.push_back(name);
  }
  return absl::StrJoin(names, ", ");
}

std::string Shown(absl::string_view text) { return absl::CHexEscape(text.substr(0, kBytesShown)); }

bool IsOverTls(const grpc::AuthContext& peer) {
  const std::vector<grpc::string_ref> types =
      peer.FindPropertyValues(GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME);
  return std::any_of(types.begin(), types.end(), [](const grpc::string_ref& type) {
    return type == GRPC_TLS_TRANSPORT_SECURITY_TYPE || type == GRPC_SSL_TRANSPORT_SECURITY_TYPE;
  });
}

bool IsName(absl::string_view name) {
  return !name.empty() && name.size() <= kNameBytesMax &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                  absl::StrContains("._@+-", absl::string_view(&c, 1));
         });
}

}  // namespace

absl::string_view RoleName(Role role) {
  for (const auto& [known, name] : kRoles) {
    if (known == role) return name;
  }
  return "";
}

std::string NameOf(const Caller& caller) { return caller.has_value() ? caller->name : ""; }

std::string KeyOf(const Identity& identity) {
  return absl::StrCat(identity.role == Role::kWorker ? "worker/" : "", identity.name);
}

absl::StatusOr<Identity> ParseIdentity(absl::string_view uri) {
  const absl::string_view rest = uri.substr(std::min(kScheme.size(), uri.size()));
  const size_t slash = rest.find('/');
  if (absl::StartsWith(uri, kScheme) && slash != absl::string_view::npos &&
      IsName(rest.substr(slash + 1))) {
    for (const auto& [role, name] : kRoles) {
      if (rest.substr(0, slash) == name) {
        return Identity{std::string(rest.substr(slash + 1)), role};
      }
    }
  }
  return absl::UnauthenticatedError(absl::StrCat(
      "the certificate's URI \"", Shown(uri),
      "\" must be phalanx:ROLE/NAME: a role of viewer, submitter, operator and worker, and a name "
      "of at most ",
      kNameBytesMax, " letters, digits and ._@+-"));
}

absl::StatusOr<Identity> IdentityOfUris(const std::vector<std::string>& uris) {
  const auto is_ours = [](const std::string& uri) { return absl::StartsWith(uri, kScheme); };
  const auto count = std::count_if(uris.begin(), uris.end(), is_ours);
  if (count != 1) {
    return absl::UnauthenticatedError(absl::StrCat(
        "the certificate has ", count,
        " URIs phalanx:ROLE/NAME among its subject alternative names; it must have one"));
  }
  return ParseIdentity(*std::find_if(uris.begin(), uris.end(), is_ours));
}

absl::StatusOr<Identity> IdentityOf(const grpc::AuthContext& peer) {
  if (!peer.IsPeerAuthenticated()) return absl::UnauthenticatedError("there is no certificate");
  return IdentityOfUris(UrisOf(peer));
}

std::vector<std::string> UrisOf(const grpc::AuthContext& peer) {
  std::vector<std::string> uris;
  for (const grpc::string_ref& uri : peer.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME))
    uris.emplace_back(uri.data(), uri.size());
  return uris;
}

Caller CallerOf(const grpc::AuthContext& peer) {
  if (!peer.IsPeerAuthenticated() && !IsOverTls(peer)) return std::nullopt;
  return IdentityOf(peer).value_or(Identity{});
}

absl::string_view MethodOf(absl::string_view path) {
  return FindRule(path) == nullptr ? "unknown" : path.substr(path.rfind('/') + 1);
}

absl::Status MayCall(Role role, absl::string_view path) {
  const MethodRule* const rule = FindRule(path);
  if (rule == nullptr) {
    return absl::PermissionDeniedError(
        absl::StrCat("\"", Shown(path), "\" is a method that nobody may call"));
  }
  if (IsFor(rule->whom, role)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(MethodOf(path), " is for ", RolesFor(rule->whom),
                                                  "; the role here is ", RoleName(role),
                                                  "; ask somebody who has it"));
}

absl::Status MayChange(const Caller& caller, const JobView& job, absl::string_view verb) {
  if (!caller.has_value() || caller->role == Role::kOperator) return absl::OkStatus();
  const std::string& owner = job.request->owner;
  if (caller->role == Role::kSubmitter && caller->name == owner) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      ToString(job.id), owner.empty() ? " has no owner" : absl::StrCat(" is ", owner, "'s"), "; ",
      owner.empty() ? "only an operator may " : "only they or an operator may ", verb, " it"));
}

absl::Status MayServe(const Caller& caller, absl::string_view node) {
  if (!caller.has_value() || caller->name == node) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("the certificate is of node ", caller->name,
                                                  ", and the worker says that it is node ",
                                                  Shown(node)));
}

void RefuseCompressed(grpc::ServerBuilder& builder) {
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP})
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
}

absl::Status CheckNotRevoked(const transport::Revocations* revocations,
                             const grpc::AuthContext& peer) {
  if (revocations == nullptr) return absl::OkStatus();
  for (const char* property :
       {GRPC_X509_PEM_CERT_PROPERTY_NAME, GRPC_X509_PEM_CERT_CHAIN_PROPERTY_NAME}) {
    for (const grpc::string_ref& pem : peer.FindPropertyValues(property)) {
      if (revocations->Has({pem.data(), pem.size()})) return RevokedError(CallerOf(peer));
    }
  }
  return absl::OkStatus();
}

grpc::Status Gatekeeper::Process(const InputMetadata& metadata, grpc::AuthContext* peer,
                                 OutputMetadata*, OutputMetadata*) {
  const auto found = metadata.find(":path");
  const absl::string_view path =
      found == metadata.end() ? "" : absl::string_view(found->second.data(), found->second.size());
  const absl::Status status = Judge(*peer, path);
  if (status.ok()) return grpc::Status::OK;
  const absl::StatusOr<Identity> identity = IdentityOf(*peer);
  refused_(identity.ok() ? Caller(*identity) : std::nullopt, path, status);
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

absl::Status Gatekeeper::Judge(const grpc::AuthContext& peer, absl::string_view path) const {
  const MethodRule* const rule = FindRule(path);
  const bool for_strangers = rule != nullptr && rule->whom == For::kStrangers;
  if (for_strangers && !peer.IsPeerAuthenticated()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Identity identity, IdentityOf(peer));
  RETURN_IF_ERROR(revoked_(peer));
  RETURN_IF_ERROR(MayCall(identity.role, path));
  if (rule->whom == For::kAll) return asks_(identity);
  // Sessions and uploads are there at once.
  const bool one_request = absl::StartsWith(path, "/phalanx.v1.JobService/") ||
                           absl::StartsWith(path, "/phalanx.v1.JoinService/");
  return one_request && !for_strangers ? begin_(identity) : absl::OkStatus();
}

absl::Status RevokedError(const Caller& caller) {
  return absl::UnauthenticatedError(
      absl::StrCat("the certificate of ", NameOf(caller), " is revoked; ask for another one"));
}

}  // namespace phalanx::coordinator
