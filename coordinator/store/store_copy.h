// coordinator/store/store_copy.h: everything of one store, put into another one that is empty.
//
// The other one is opened for that (EtcdBackend::BeginCopy, SqliteBackend::BeginCopy) and says of
// itself that it is a copy under way until EndCopy, so nobody takes half a copy for a store. A copy
// that was cut begins anew.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "coordinator/store/backend.h"
#include "coordinator/store/token_store.h"

namespace phalanx::coordinator {

struct WholeStore {
  Backend& backend;
  TokenStore& tokens;
};

struct CopyReport {
  int64_t records = 0, ended_jobs = 0, requests = 0, tokens = 0;
  StoreMarks marks;  // for EndCopy
};

// Reads back what it has put and compares it with what `from` holds, which must not change
// meanwhile. Errors: those of the stores; DataLoss if the two differ.
absl::StatusOr<CopyReport> CopyStore(WholeStore from, WholeStore to);

}  // namespace phalanx::coordinator
