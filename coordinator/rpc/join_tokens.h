// coordinator/rpc/join_tokens.h: the tokens that workers exchange for certificates, and what became
// of them.
//
// A token is "phx_ID_SECRET": 16 hexadecimal digits that name it, and 64 that nobody guesses, of
// which only a hash is kept. Every certificate that came of a token names it, as the URI
// phalanx-token:ID, and so do those that it was renewed to: a token that is revoked takes them all
// with it, and a certificate of a token that is not known here is refused too.
//
// They lie in the store beside the journal, where each change is before anybody is told of it
// (coordinator/store/token_store.h, docs/decisions/0048-join-tokens.md).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/store/token_store.h"
#include "core/base/mutex.h"
#include "core/base/time.h"
#include "phalanx/v1/join_records.pb.h"
#include "phalanx/v1/join_service.pb.h"

namespace phalanx::coordinator {

// The URI of a certificate that came of the token, and back; empty: the URI is none such.
std::string TokenUri(const std::string& id);
std::string TokenOfUri(absl::string_view uri);

// Thread-safe. Whatever changes something waits for the store; then errors are also Unavailable:
// nothing has changed, or else it is found in the store by the next change. Nothing else waits.
class JoinTokens {
 public:
  static constexpr size_t kTokensMax = 16'384;
  static constexpr int32_t kUsesMax = 1'000;
  static constexpr absl::Duration kTtlMin = absl::Minutes(1), kTtlMax = absl::Hours(24 * 30),
                                  kTtlDefault = absl::Hours(1);

  // Errors: as TokenStore::Load.
  static absl::StatusOr<std::unique_ptr<JoinTokens>> Open(std::shared_ptr<TokenStore> store);

  // The answer has the secret. `by`: empty, if nobody was asked. Errors: InvalidArgument,
  // ResourceExhausted.
  absl::StatusOr<v1::CreateTokenResponse> Create(const v1::CreateTokenRequest& request,
                                                 const std::string& by, Instant now)
      ABSL_LOCKS_EXCLUDED(changing_, mu_);
  std::vector<v1::JoinToken> List(Instant now) const ABSL_LOCKS_EXCLUDED(mu_);
  // Errors: NotFound.
  absl::StatusOr<v1::JoinToken> Revoke(const std::string& id, const std::string& by, Instant now)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Somebody who shows a token, under a node's name, with a key of their own (its SHA-256).
  struct Claim {
    std::string token;
    std::string node;
    std::string key_sha256;
  };
  // The id of the token, if it may be exchanged now. Errors: Unauthenticated; AlreadyExists, for a
  // token that names no node and a node that came of another one.
  absl::StatusOr<std::string> Check(const Claim& claim, Instant now) const ABSL_LOCKS_EXCLUDED(mu_);
  // The same, and it has been: once for each key. `end`: of the certificate.
  absl::StatusOr<std::string> Use(const Claim& claim, absl::Time end, Instant now)
      ABSL_LOCKS_EXCLUDED(mu_);
  // A certificate that came of the token is renewed until `end`. Errors: Unauthenticated.
  absl::Status Renew(const std::string& id, absl::Time end) ABSL_LOCKS_EXCLUDED(mu_);

  // Whether the token is for one node alone. Not of one that is not known.
  bool NamesNode(const std::string& id) const ABSL_LOCKS_EXCLUDED(mu_);

  // Whether certificates that came of the token are refused: it is revoked, or not known here.
  // Errors: Unauthenticated.
  absl::Status MayServe(const std::string& id) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit JoinTokens(std::shared_ptr<TokenStore> store) : store_(std::move(store)) {}
  absl::Status Reload() ABSL_EXCLUSIVE_LOCKS_REQUIRED(changing_) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<const v1::JoinRecord*> FindLocked(const Claim& claim, Instant now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Puts this one into the store, then into records_; those of `forgotten` go. Reload comes first,
  // as records may be behind the store.
  absl::Status Put(v1::JoinRecord record, const std::vector<std::string>& forgotten = {})
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(changing_) ABSL_LOCKS_EXCLUDED(mu_);
  // Those of which nothing is left that anybody could show; of many, as many as one Write forgets.
  std::vector<std::string> OldLocked(Instant now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<TokenStore> store_;
  // Held by whoever changes something, while the store writes; taken before mu_.
  Mutex changing_;
  bool unsure_ ABSL_GUARDED_BY(changing_) = true;  // the store may have what records_ lacks
  mutable Mutex mu_;
  TokenRecords records_ ABSL_GUARDED_BY(mu_);  // written by whoever has changing_ too
};

}  // namespace phalanx::coordinator
