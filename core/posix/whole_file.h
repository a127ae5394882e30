// core/posix/whole_file.h: files that are there whole or not at all.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace phalanx {

// Writes `text` to a file beside `path`, syncs it and renames it to `path`. A file that is there
// stays as it is until then; the new one has `mode`, less the process's umask. `below`: as
// CheckBelow (below.h), of the folder of `path`. Errors: Unavailable, with the path and the reason;
// nothing is left.
absl::Status WriteWholeFile(const std::string& path, absl::string_view text, mode_t mode = 0666,
                            const std::vector<std::string>& below = {});
// Has the disk know which files are in the folder of `path`, the renames among them. Errors:
// Unavailable.
absl::Status SyncFolderOf(const std::string& path);
// Whether a process that was killed in WriteWholeFile may have left a file of this name beside one
// of name `whole`.
bool IsLeftOf(absl::string_view whole, absl::string_view name);

}  // namespace phalanx
