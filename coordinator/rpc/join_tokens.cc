#include "coordinator/rpc/join_tokens.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "coordinator/wire/common_codec.h"
#include "core/base/node_name.h"
#include "core/base/status.h"
#include "transport/secret.h"

namespace phalanx::coordinator {
namespace {

constexpr absl::string_view kPrefix = "phx_";
constexpr absl::string_view kUriPrefix = "phalanx-token:";
constexpr size_t kIdDigits = 16, kSecretDigits = 64;
// What is over for so long is listed no more.
constexpr absl::Duration kKeptAfterEnd = absl::Hours(24 * 7);

absl::Status CheckNode(absl::string_view node) {
  if (IsNodeName(node)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("node is \"", absl::CHexEscape(node.substr(0, 64)),
                                                 "\"; it must be 1 to ", kNodeNameBytesMax,
                                                 " of A-Z a-z 0-9 . _ -"));
}

struct TokenParts {
  std::string id, secret;
};
// Nothing in them where it is no token.
TokenParts PartsOf(absl::string_view token) {
  if (!absl::ConsumePrefix(&token, kPrefix) || token.size() != kIdDigits + 1 + kSecretDigits ||
      token[kIdDigits] != '_') {
    return {};
  }
  return {std::string(token.substr(0, kIdDigits)), std::string(token.substr(kIdDigits + 1))};
}

std::string HexOf(size_t digits) {
  return absl::BytesToHexString(transport::RandomBytes(digits / 2));
}

Instant CertificatesEnd(const v1::JoinToken& token) {
  return token.has_certificates_end() ? FromProto(token.certificates_end()) : absl::InfinitePast();
}

std::string StateOf(const v1::JoinToken& token, Instant now) {
  if (token.has_revoked()) return "revoked";
  if (token.uses_size() >= token.uses_max()) return "used";
  return FromProto(token.expires()) <= now ? "expired" : "valid";
}

v1::JoinToken Shown(const v1::JoinRecord& record, Instant now) {
  v1::JoinToken token = record.about();
  token.set_state(StateOf(token, now));
  return token;
}

}  // namespace

std::string TokenUri(const std::string& id) { return absl::StrCat(kUriPrefix, id); }

std::string TokenOfUri(absl::string_view uri) {
  return absl::ConsumePrefix(&uri, kUriPrefix) ? std::string(uri) : "";
}

absl::StatusOr<std::unique_ptr<JoinTokens>> JoinTokens::Open(std::shared_ptr<TokenStore> store) {
  std::unique_ptr<JoinTokens> tokens(new JoinTokens(std::move(store)));
  MutexLock changing(&tokens->changing_);
  RETURN_IF_ERROR(tokens->Reload());
  return tokens;
}

absl::Status JoinTokens::Reload() {
  if (!unsure_) return absl::OkStatus();
  ASSIGN_OR_RETURN(TokenRecords records, store_->Load());
  unsure_ = false;
  MutexLock lock(&mu_);
  records_ = std::move(records);
  return absl::OkStatus();
}

absl::Status JoinTokens::Put(v1::JoinRecord record, const std::vector<std::string>& forgotten) {
  unsure_ = true;
  RETURN_IF_ERROR(store_->Write(record, forgotten));
  unsure_ = false;
  MutexLock lock(&mu_);
  for (const std::string& id : forgotten) records_.erase(id);
  std::string id = record.about().id();
  records_.insert_or_assign(std::move(id), std::move(record));
  return absl::OkStatus();
}

std::vector<std::string> JoinTokens::OldLocked(Instant now) const {
  std::vector<std::string> old;
  for (const auto& [id, record] : records_) {
    const v1::JoinToken& token = record.about();
    const Instant end = std::max(FromProto(token.expires()), CertificatesEnd(token));
    if (end + kKeptAfterEnd < now) old.push_back(id);
    if (old.size() == TokenStore::kForgottenMax) break;
  }
  return old;
}

absl::StatusOr<v1::CreateTokenResponse> JoinTokens::Create(const v1::CreateTokenRequest& request,
                                                           const std::string& by, Instant now) {
  if (!request.node().empty()) RETURN_IF_ERROR(CheckNode(request.node()));
  const absl::Duration ttl = request.has_ttl() ? FromProto(request.ttl()) : kTtlDefault;
  if (ttl < kTtlMin || ttl > kTtlMax) {
    return absl::InvalidArgumentError(absl::StrCat("ttl is ", absl::FormatDuration(ttl),
                                                   "; it must be ", absl::FormatDuration(kTtlMin),
                                                   " to ", absl::FormatDuration(kTtlMax)));
  }
  const int32_t uses = request.uses() == 0 ? 1 : request.uses();
  if (uses < 1 || uses > kUsesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("uses is ", uses, "; it must be 1 to ", kUsesMax));
  }
  if (uses > 1 && request.node().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("uses is ", uses, "; a token for more than one use must name its node"));
  }
  const std::string secret = HexOf(kSecretDigits);
  v1::JoinRecord record;
  record.set_secret_sha256(transport::Sha256(secret));
  v1::JoinToken& about = *record.mutable_about();
  about.set_id(HexOf(kIdDigits));
  about.set_node(request.node());
  about.set_uses_max(uses);
  about.set_created_by(by);
  ToProto(now, about.mutable_created());
  ToProto(now + ttl, about.mutable_expires());
  v1::CreateTokenResponse response;
  response.set_token(absl::StrCat(kPrefix, about.id(), "_", secret));
  *response.mutable_about() = Shown(record, now);
  MutexLock changing(&changing_);
  RETURN_IF_ERROR(Reload());
  std::vector<std::string> old;
  {
    MutexLock lock(&mu_);
    old = OldLocked(now);
    if (records_.size() - old.size() >= kTokensMax) {
      return absl::ResourceExhaustedError(
          absl::StrCat(records_.size() - old.size(),
                       " tokens are kept, expired ones for a week; at most ", kTokensMax));
    }
  }
  RETURN_IF_ERROR(Put(std::move(record), old));
  return response;
}

std::vector<v1::JoinToken> JoinTokens::List(Instant now) const {
  std::vector<v1::JoinToken> tokens;
  {
    MutexLock lock(&mu_);
    for (const auto& [id, record] : records_) tokens.push_back(Shown(record, now));
  }
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const v1::JoinToken& a, const v1::JoinToken& b) {
                     return FromProto(a.created()) < FromProto(b.created());
                   });
  return tokens;
}

absl::StatusOr<v1::JoinToken> JoinTokens::Revoke(const std::string& id, const std::string& by,
                                                 Instant now) {
  MutexLock changing(&changing_);
  RETURN_IF_ERROR(Reload());
  v1::JoinRecord record;
  {
    MutexLock lock(&mu_);
    const auto found = records_.find(id);
    if (found == records_.end()) {
      return absl::NotFoundError(absl::StrCat("there is no token \"",
                                              absl::CHexEscape(id.substr(0, 64)),
                                              "\"; phalanx token list has those there are"));
    }
    record = found->second;
  }
  v1::JoinToken token = Shown(record, now);
  if (token.has_revoked()) return token;
  ToProto(now, record.mutable_about()->mutable_revoked());
  record.mutable_about()->set_revoked_by(by);
  token = Shown(record, now);
  RETURN_IF_ERROR(Put(std::move(record)));
  return token;
}

// Whoever does not have the secret learns nothing about a token, not even whether there is one.
absl::StatusOr<const v1::JoinRecord*> JoinTokens::FindLocked(const Claim& claim,
                                                             Instant now) const {
  const TokenParts parts = PartsOf(claim.token);
  const auto found = records_.find(parts.id);
  if (found == records_.end() ||
      !transport::IsSameSecret(transport::Sha256(parts.secret), found->second.secret_sha256())) {
    return absl::UnauthenticatedError(
        "the join token is none of this coordinator's; ask an operator for one: phalanx token "
        "create");
  }
  const v1::JoinRecord& record = found->second;
  const v1::JoinToken& token = record.about();
  const auto refuse = [&token](auto... parts_of_reason) {
    return absl::UnauthenticatedError(absl::StrCat(
        "join token ", token.id(), " ", parts_of_reason..., "; ask an operator for another one"));
  };
  if (token.has_revoked()) return refuse("is revoked");
  if (FromProto(token.expires()) <= now) {
    return refuse(
        "has expired, at ",
        absl::FormatTime(absl::RFC3339_sec, FromProto(token.expires()), absl::UTCTimeZone()));
  }
  if (!token.node().empty() && token.node() != claim.node)
    return refuse("is for node ", token.node());
  const auto& keys = record.key_sha256();
  for (int i = 0; i < token.uses_size(); ++i) {
    if (keys.Get(i) == claim.key_sha256 && token.uses(i).node() == claim.node) return &record;
  }
  if (token.uses_size() >= token.uses_max()) {
    return refuse("is used up: node ", token.uses(token.uses_size() - 1).node(),
                  " has joined with it");
  }
  if (!token.node().empty()) return &record;
  for (const auto& [id, other] : records_) {
    if (other.about().has_revoked() || CertificatesEnd(other.about()) <= now) continue;
    for (const v1::JoinToken::Use& use : other.about().uses()) {
      if (use.node() != claim.node) continue;
      return absl::AlreadyExistsError(
          absl::StrCat("node ", claim.node, " has joined with token ", id,
                       "; revoke that one, or make a token with --node ", claim.node));
    }
  }
  return &record;
}

absl::StatusOr<std::string> JoinTokens::Check(const Claim& claim, Instant now) const {
  RETURN_IF_ERROR(CheckNode(claim.node));
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(const v1::JoinRecord* record, FindLocked(claim, now));
  return record->about().id();
}

absl::StatusOr<std::string> JoinTokens::Use(const Claim& claim, absl::Time end, Instant now) {
  RETURN_IF_ERROR(CheckNode(claim.node));
  MutexLock changing(&changing_);
  RETURN_IF_ERROR(Reload());
  v1::JoinRecord record;
  {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const v1::JoinRecord* found, FindLocked(claim, now));
    record = *found;
  }
  v1::JoinToken& token = *record.mutable_about();
  const auto& keys = record.key_sha256();
  if (std::find(keys.begin(), keys.end(), claim.key_sha256) == keys.end()) {
    v1::JoinToken::Use& use = *token.add_uses();
    use.set_node(claim.node);
    ToProto(now, use.mutable_time());
    record.add_key_sha256(claim.key_sha256);
  }
  ToProto(std::max(end, CertificatesEnd(token)), token.mutable_certificates_end());
  std::string id = token.id();
  RETURN_IF_ERROR(Put(std::move(record)));
  return id;
}

absl::Status JoinTokens::Renew(const std::string& id, absl::Time end) {
  RETURN_IF_ERROR(MayServe(id));
  MutexLock changing(&changing_);
  RETURN_IF_ERROR(Reload());
  v1::JoinRecord record;
  {
    MutexLock lock(&mu_);
    const auto found = records_.find(id);
    if (found == records_.end() || found->second.about().has_revoked())
      return absl::UnauthenticatedError(absl::StrCat("join token ", id, " is revoked"));
    record = found->second;
  }
  ToProto(std::max(end, CertificatesEnd(record.about())),
          record.mutable_about()->mutable_certificates_end());
  return Put(std::move(record));
}

bool JoinTokens::NamesNode(const std::string& id) const {
  MutexLock lock(&mu_);
  const auto found = records_.find(id);
  return found != records_.end() && !found->second.about().node().empty();
}

absl::Status JoinTokens::MayServe(const std::string& id) const {
  MutexLock lock(&mu_);
  const auto found = records_.find(id);
  if (found == records_.end()) {
    return absl::UnauthenticatedError(
        absl::StrCat("the certificate came of join token ", absl::CHexEscape(id.substr(0, 64)),
                     ", which this coordinator does not know; join anew with another token"));
  }
  if (!found->second.about().has_revoked()) return absl::OkStatus();
  return absl::UnauthenticatedError(absl::StrCat("the certificate came of join token ", id,
                                                 ", which is revoked; join anew with "
                                                 "another token"));
}

}  // namespace phalanx::coordinator
