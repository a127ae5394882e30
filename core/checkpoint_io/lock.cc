#include "core/checkpoint_io/lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/checkpoint/names.h"
#include "core/posix/below.h"
#include "core/posix/waker.h"

namespace phalanx::checkpoint {
namespace {

// Nobody tells when a lock is free.
constexpr absl::Duration kLookInterval = absl::Milliseconds(10);

// False: somebody holds a lock against it, and `how` does not wait. Any other error is of a file
// system that has none.
bool Lock(const UniqueFd& file, int how) {
  int result = 0;
  do {
    result = flock(file.get(), how);
  } while (result != 0 && errno == EINTR);
  return result == 0 || errno != EWOULDBLOCK;
}

// Not renamed or replaced since it was opened.
bool IsStillAt(const UniqueFd& file, const std::string& path) {
  struct stat opened, there;
  return fstat(file.get(), &opened) == 0 && stat(path.c_str(), &there) == 0 &&
         opened.st_dev == there.st_dev && opened.st_ino == there.st_ino;
}

}  // namespace

absl::StatusOr<CheckpointLock> CheckpointLock::ToRead(const std::string& checkpoint,
                                                      const std::vector<std::string>& below) {
  const std::string path = ManifestPath(checkpoint);
  UniqueFd manifest(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!manifest.is_open() || !CheckBelow(manifest.get(), below).ok())
    return CheckpointLock(UniqueFd());
  if (!Lock(manifest, LOCK_SH | LOCK_NB) || !IsStillAt(manifest, path))
    return absl::NotFoundError("is being deleted by the job that wrote it");
  return CheckpointLock(std::move(manifest));
}

std::optional<CheckpointLock> CheckpointLock::ToDelete(const std::string& checkpoint,
                                                       const std::vector<std::string>& below) {
  const std::string path = ManifestPath(checkpoint);
  // Over NFS an exclusive lock takes a file that is open for writing.
  UniqueFd manifest(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!manifest.is_open()) manifest.reset(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!manifest.is_open() || !CheckBelow(manifest.get(), below).ok())
    return CheckpointLock(UniqueFd());
  if (!Lock(manifest, LOCK_EX | LOCK_NB)) return std::nullopt;
  return CheckpointLock(std::move(manifest));
}

std::optional<UniqueFd> LockToGiveUp(const HeldFolder& draft) {
  absl::StatusOr<UniqueFd> lock = draft.OpenToLock();
  if (lock.ok() && !Lock(*lock, LOCK_SH | LOCK_NB)) return std::nullopt;
  if (!draft.IsAtItsPath()) return std::nullopt;
  return lock.ok() ? *std::move(lock) : UniqueFd();
}

absl::Status AwaitGivenUp(const HeldFolder& draft, const std::stop_token& stop,
                          absl::Duration patience) {
  const absl::StatusOr<UniqueFd> lock = draft.OpenToLock();
  if (!lock.ok()) return absl::OkStatus();
  const SteadyTime start = SteadyNow();
  // Whoever may read the folder may hold a lock of it, for as long as they like.
  while (!Lock(*lock, LOCK_EX | LOCK_NB)) {
    if (stop.stop_requested() || Since(start) >= patience)
      return absl::UnavailableError(absl::StrCat(draft.path(), ": is locked by somebody"));
    absl::SleepFor(kLookInterval);
  }
  return absl::OkStatus();
}

}  // namespace phalanx::checkpoint
