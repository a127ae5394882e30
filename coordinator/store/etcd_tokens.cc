#include "coordinator/store/etcd_tokens.h"

#include <cstdint>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/store/etcd_changes.h"
#include "coordinator/store/etcd_ended_jobs.h"
#include "coordinator/wire/seal.h"
#include "core/base/random_word.h"
#include "core/base/status.h"

namespace phalanx::coordinator {
namespace {

// Keys of one page. A token that was used a thousand times has some 300 KB.
constexpr int64_t kTokensPage = 100;
constexpr int kLoadAttempts = 5;
constexpr char kLeadsNoMore[] = "this coordinator leads no more";
static_assert(TokenStore::kForgottenMax < kEtcdOperationsMax, "a Write is one transaction");

// An id is 16 hexadecimal digits.
uint64_t NumberOf(const std::string& id) {
  uint64_t number = 0;
  return absl::SimpleHexAtoi(id, &number) ? number : 0;
}

}  // namespace

std::string SealToken(const v1::JoinRecord& record) {
  return Seal(record.SerializeAsString(), NumberOf(record.about().id()));
}

absl::StatusOr<v1::JoinRecord> UnsealToken(const std::string& key, const std::string& sealed) {
  const std::string id = key.substr(key.rfind('/') + 1);
  const absl::StatusOr<absl::string_view> bytes = Unseal(sealed, NumberOf(id));
  if (!bytes.ok()) return Annotate(bytes.status(), absl::StrCat(key, " in etcd"));
  v1::JoinRecord record;
  if (!record.ParseFromArray(bytes->data(), static_cast<int>(bytes->size())) ||
      record.about().id() != id) {
    return absl::DataLossError(absl::StrCat(key, " in etcd does not parse as JoinRecord"));
  }
  return record;
}

EtcdTokens::EtcdTokens(std::shared_ptr<EtcdClient> client, const std::string& prefix,
                       std::weak_ptr<Leadership> leadership)
    : client_(std::move(client)),
      keys_(prefix),
      leadership_(std::move(leadership)),
      chain_(client_, keys_.TokensHead()) {}

absl::Status EtcdTokens::Step(etcdserverpb::TxnRequest request) {
  const std::shared_ptr<Leadership> leadership = leadership_.lock();
  if (leadership == nullptr) return absl::UnavailableError(kLeadsNoMore);
  const absl::Status status =
      chain_.Step(*leadership, std::move(request), absl::StrCat(absl::Hex(RandomWord())));
  // Whoever leads now does it.
  return absl::IsAborted(status) ? absl::UnavailableError(status.message()) : status;
}

absl::StatusOr<TokenRecords> EtcdTokens::Load() {
  absl::Status status;
  for (int attempt = 0; attempt < kLoadAttempts; ++attempt) {
    // Before the read, for which etcd is waited for.
    if (const std::shared_ptr<Leadership> leadership = leadership_.lock();
        leadership == nullptr || !leadership->Held().ok()) {
      return absl::UnavailableError(kLeadsNoMore);
    }
    RETURN_IF_ERROR(chain_.Read().status());
    // What is on its way fails from here on. If it was faster we read again, what it has left.
    status = Step({});
    if (status.ok()) break;
  }
  RETURN_IF_ERROR(status);
  TokenRecords records;
  RETURN_IF_ERROR(ForEachEtcdKey(*client_, keys_.AllTokens(), kTokensPage, chain_.revision(),
                                 [&records](const etcdserverpb::KeyValue& pair) -> absl::Status {
                                   ASSIGN_OR_RETURN(v1::JoinRecord record,
                                                    UnsealToken(pair.key(), pair.value()));
                                   std::string id = record.about().id();
                                   records.emplace(std::move(id), std::move(record));
                                   return absl::OkStatus();
                                 }));
  return records;
}

absl::Status EtcdTokens::Write(const v1::JoinRecord& record,
                               const std::vector<std::string>& forgotten) {
  EtcdChanges changes;
  changes.Put(keys_.Token(record.about().id()), SealToken(record));
  for (const std::string& id : forgotten) changes.Delete(keys_.Token(id));
  return Step(std::move(changes.Take().front()));
}

absl::Status EtcdTokens::WriteAll(const TokenRecords& records) {
  for (const auto& [id, record] : records) RETURN_IF_ERROR(Write(record, {}));
  return absl::OkStatus();
}

}  // namespace phalanx::coordinator
