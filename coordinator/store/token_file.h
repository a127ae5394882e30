// coordinator/store/token_file.h: join tokens in one file beside the journal, sealed as its records
// are, written anew at each change (docs/decisions/0048-join-tokens.md).
#pragma once

#include <string>
#include <utility>

#include "coordinator/store/token_store.h"

namespace phalanx::coordinator {

class TokenFile final : public TokenStore {
 public:
  // A file that is not there has no tokens.
  explicit TokenFile(std::string file) : file_(std::move(file)) {}

  absl::StatusOr<TokenRecords> Load() override;
  absl::Status Write(const v1::JoinRecord& record,
                     const std::vector<std::string>& forgotten) override;
  absl::Status WriteAll(const TokenRecords& records) override;

 private:
  const std::string file_;
  TokenRecords records_;  // of the file
};

}  // namespace phalanx::coordinator
