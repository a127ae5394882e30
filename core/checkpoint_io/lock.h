// core/checkpoint_io/lock.h: who reads a checkpoint, and who deletes it.
//
// Jobs may share a folder: one reads what another would delete. Whoever reads holds a shared
// advisory lock (flock) of the checkpoint's manifest as long as it does; who deletes holds an
// exclusive one. Neither waits for the other. Where the file system has no such locks, they hold
// nothing, and nobody is kept from anything.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "core/posix/unique_fd.h"

namespace phalanx::checkpoint {

// Held until it is destroyed, or the process ends. Not thread-safe.
class CheckpointLock {
 public:
  // Errors: NotFound if the checkpoint is being deleted, or was while it was opened. A checkpoint
  // without a manifest that can be opened has no lock: whoever reads it finds out what is wrong.
  static absl::StatusOr<CheckpointLock> ToRead(const std::string& checkpoint);
  // nullopt: somebody reads it, or deletes it.
  static std::optional<CheckpointLock> ToDelete(const std::string& checkpoint);

 private:
  explicit CheckpointLock(UniqueFd manifest) : manifest_(std::move(manifest)) {}
  UniqueFd manifest_;
};

}  // namespace phalanx::checkpoint
