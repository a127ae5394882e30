// tests/e2e/recovery/held_reads.h: shards of data that do not answer a process.
//
// Not thread-safe.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/strings/string_view.h"
#include "core/posix/unique_fd.h"

namespace phalanx::e2e {

// Of the processes that are started while it lives, and by these.
class HeldReads {
 public:
  HeldReads();
  ~HeldReads();
  HeldReads(const HeldReads&) = delete;
  HeldReads& operator=(const HeldReads&) = delete;

  // Whatever this one of them reads next of shards whose names begin so waits until Release().
  void Hold(pid_t process, absl::string_view shards);
  void Release();

 private:
  const std::string path_;
  const UniqueFd file_;  // locked while it holds
};

}  // namespace phalanx::e2e
