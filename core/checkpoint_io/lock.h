// core/checkpoint_io/lock.h: who reads a checkpoint, and who deletes it.
//
// Jobs may share a folder: one reads what another would delete. Whoever reads holds a shared
// advisory lock (flock) of the checkpoint's manifest as long as it does; who deletes holds an
// exclusive one. Neither waits for the other. Where the file system has no such locks, they hold
// nothing, and nobody is kept from anything.
//
// Ranks give up their parts of drafts, in folders that they hold open, and one publishes a draft: a
// part that went from under its hands would be missed by whoever reads the checkpoint. Who gives up
// holds a shared lock of the draft's folder; who has taken it by a rename waits once for those.
// That lock holds between the ranks of one node: file systems of networks have none of folders.
#pragma once

#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/posix/held_folder.h"
#include "core/posix/unique_fd.h"

namespace phalanx::checkpoint {

// Held until it is destroyed, or the process ends. Not thread-safe.
class CheckpointLock {
 public:
  // Errors: NotFound if the checkpoint is being deleted, or was while it was opened. A checkpoint
  // without a manifest that can be opened, `below` as in folders.h, has no lock: whoever reads it
  // finds out what is wrong.
  static absl::StatusOr<CheckpointLock> ToRead(const std::string& checkpoint,
                                               const std::vector<std::string>& below = {});
  // nullopt: somebody reads it, or deletes it.
  static std::optional<CheckpointLock> ToDelete(const std::string& checkpoint,
                                                const std::vector<std::string>& below = {});

 private:
  explicit CheckpointLock(UniqueFd manifest) : manifest_(std::move(manifest)) {}
  UniqueFd manifest_;
};

// Held as long as the descriptor is. nullopt: somebody has taken the draft to publish it.
std::optional<UniqueFd> LockToGiveUp(const HeldFolder& draft);
// Of one that is taken: what others were about to give up of it is given up when it returns OK.
// Errors: Unavailable, "DRAFT: is locked by somebody", if somebody still holds a lock of it after
// `patience`, or once `stop` is requested.
absl::Status AwaitGivenUp(const HeldFolder& draft, const std::stop_token& stop = {},
                          absl::Duration patience = absl::Seconds(10));

}  // namespace phalanx::checkpoint
