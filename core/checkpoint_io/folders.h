// core/checkpoint_io/folders.h: folders of checkpoints, made and brought to the disk.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace phalanx::checkpoint {

// Unavailable: "PATH: No space left on device".
absl::Status SystemError(absl::string_view path, int error);

// A draft's folder, in one that is made if need be; one that is there is as good. On the disk when
// it returns. Errors: as of SystemError.
absl::Status MakeDraftFolder(const std::string& draft);
absl::Status SyncFolder(const std::string& folder);
// Where `path` is a link to nothing, or passes one: "a/link: is a link to b, which is not there".
std::optional<std::string> DeadLinkOn(const std::string& path);
// "a/b/c" is in "a/b".
std::string FolderOf(const std::string& path);

}  // namespace phalanx::checkpoint
