// coordinator/store/token_store.h: where join tokens lie (coordinator/rpc/join_tokens.h). Beside
// the journal, in files or in etcd; every change is there before Write returns.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "phalanx/v1/join_records.pb.h"

namespace phalanx::coordinator {

using TokenRecords = std::map<std::string, v1::JoinRecord>;  // by id

// Not thread-safe: used by one thread at a time.
class TokenStore {
 public:
  // What one Write forgets at most.
  static constexpr size_t kForgottenMax = 99;

  virtual ~TokenStore() = default;

  // All there are; what was given up before changes nothing from then on. Comes before the first
  // Write. Errors: DataLoss for damage; FailedPrecondition if a newer version wrote them;
  // Unavailable.
  virtual absl::StatusOr<TokenRecords> Load() = 0;

  // Puts `record`, and forgets those of `forgotten`, kForgottenMax at most, at once. Errors:
  // Unavailable; then nobody knows whether it was done, and Load comes before the next call.
  virtual absl::Status Write(const v1::JoinRecord& record,
                             const std::vector<std::string>& forgotten) = 0;
  // Puts all of a copy, where there are none. Not at once: a copy that is cut begins anew.
  virtual absl::Status WriteAll(const TokenRecords& records) = 0;
};

}  // namespace phalanx::coordinator
