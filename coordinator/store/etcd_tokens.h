// coordinator/store/etcd_tokens.h: join tokens on etcd, of the coordinator that leads.
//
// Each is a value, sealed with its id. Their transactions are a chain of their own beside the
// journal's (etcd_chain.h), so neither waits for the other; its head is a number drawn for each.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coordinator/etcd/client.h"
#include "coordinator/etcd/election.h"
#include "coordinator/store/etcd_chain.h"
#include "coordinator/store/etcd_keys.h"
#include "coordinator/store/token_store.h"

namespace phalanx::coordinator {

class EtcdTokens final : public TokenStore {
 public:
  // `leadership` is not held: it is given back after the journal's last commit.
  EtcdTokens(std::shared_ptr<EtcdClient> client, const std::string& prefix,
             std::weak_ptr<Leadership> leadership);

  absl::StatusOr<TokenRecords> Load() override;
  absl::Status Write(const v1::JoinRecord& record,
                     const std::vector<std::string>& forgotten) override;
  absl::Status WriteAll(const TokenRecords& records) override;

 private:
  absl::Status Step(etcdserverpb::TxnRequest request);

  const std::shared_ptr<EtcdClient> client_;
  const EtcdKeys keys_;
  const std::weak_ptr<Leadership> leadership_;
  EtcdChain chain_;
};

// What is kept of one token under its key, and back. Errors: DataLoss, FailedPrecondition.
std::string SealToken(const v1::JoinRecord& record);
absl::StatusOr<v1::JoinRecord> UnsealToken(const std::string& key, const std::string& sealed);

}  // namespace phalanx::coordinator
