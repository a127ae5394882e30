// coordinator/store/backend.h: where the journal lies.
//
// A backend keeps numbered records, 1, 2, 3, ... without gaps, and commits a batch of them at once:
// after Commit returns OK they survive the process and the machine; if it fails, none of the batch
// is promised and the backend must not be used any more (an fsync that failed once may lie the next
// time).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace phalanx::coordinator {

struct StoredRecord {
  uint64_t number = 0;
  std::string bytes;
};

// Not thread-safe: used by one thread at a time.
class Backend {
 public:
  virtual ~Backend() = default;

  // All records, in order. Errors: DataLoss for a gap or damage, as the backend finds it.
  virtual absl::StatusOr<std::vector<StoredRecord>> Load() = 0;

  // Errors: InvalidArgument if `records` do not continue the numbering; else as the backend fails
  // (Unavailable for input and output, ResourceExhausted for a full disk).
  virtual absl::Status Commit(absl::Span<const StoredRecord> records) = 0;
};

}  // namespace phalanx::coordinator
