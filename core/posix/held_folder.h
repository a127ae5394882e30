// core/posix/held_folder.h: a folder that is held open, for what is written and deleted in it.
//
// What is done in it by name, with its descriptor (openat, renameat, unlinkat, mkdirat), is done in
// the folder that was opened and judged, wherever its path leads meanwhile. Names may be links, so
// files are opened by OpenFile. Thread-safe.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/posix/unique_fd.h"

namespace phalanx {

// Errors of all that may fail, with the reason alone, as "No such file or directory":
// InvalidArgument if it leads out of `below`, NotFound, PermissionDenied, Unavailable.
class HeldFolder {
 public:
  // `below`: as CheckBelow (below.h), of what was opened, wherever links in the path led then.
  static absl::StatusOr<HeldFolder> Open(const std::string& path,
                                         const std::vector<std::string>& below = {});
  // Makes what is not there of the path. If anything is not, the folders of `below` are made, too,
  // with those around them: the path may lead to one in any way.
  static absl::StatusOr<HeldFolder> Make(const std::string& path,
                                         const std::vector<std::string>& below = {});

  // The folder of that name in it, which must be no link.
  absl::StatusOr<HeldFolder> OpenFolder(const std::string& name) const;
  // As openat(2), close-on-exec. A link to a file below is followed, also to one that is made so;
  // one that leads out makes and opens nothing.
  absl::StatusOr<UniqueFd> OpenFile(const std::string& name, int flags, mode_t mode = 0666) const;
  // What is in it, sorted.
  absl::StatusOr<std::vector<std::string>> Names() const;
  // Has the disk know which files are in it, the renames among them.
  absl::Status Sync() const;
  // A descriptor of it that can be locked (flock).
  absl::StatusOr<UniqueFd> OpenToLock() const;
  // Whether its path leads to it now.
  bool IsAtItsPath() const;

  // For calls that take the folder of a name; good for nothing else (O_PATH).
  int descriptor() const { return descriptor_.get(); }
  const std::string& path() const { return path_; }  // as it was opened by
  // For messages.
  std::string PathOf(const std::string& name) const;

 private:
  HeldFolder(UniqueFd descriptor, std::string path, std::vector<std::string> below)
      : descriptor_(std::move(descriptor)), path_(std::move(path)), below_(std::move(below)) {}
  // `at`, as seen from the folder of that descriptor.
  static absl::StatusOr<HeldFolder> OpenAt(int from, const std::string& at, int flags,
                                           std::string path, const std::vector<std::string>& below);

  UniqueFd descriptor_;
  std::string path_;
  std::vector<std::string> below_;
};

}  // namespace phalanx
