// worker/data/read_progress.h: what reading a data set tells whoever waits for it, and how it is
// called off.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"

namespace phalanx::data {

// Thread-safe. A read that the storage never answers is not reached by `called_off`.
struct ReadProgress {
  std::atomic<int64_t> bytes = 0;  // grows with every header and text
  std::atomic<bool> called_off = false;

  // Another `read` bytes are there. Errors: Cancelled once it is called off.
  absl::Status Add(int64_t read) {
    bytes += read;
    return called_off ? absl::CancelledError("reading the data was called off") : absl::OkStatus();
  }
};

}  // namespace phalanx::data
