// core/checkpoint_io/folders.h: folders of checkpoints, made and brought to the disk.
//
// `below`, here and in what is beside it: as CheckBelow (core/posix/below.h), of each folder that
// is opened.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/posix/held_folder.h"

namespace phalanx::checkpoint {

// Unavailable: "PATH: No space left on device".
absl::Status SystemError(absl::string_view path, int error);
// Likewise, of an error of HeldFolder. InvalidArgument, by its field, where checkpoint.directory,
// or a folder in it, leads out of `below`.
absl::Status WritingError(absl::string_view path, const absl::Status& why);

// A folder in which checkpoints are written. Errors: as of WritingError.
absl::StatusOr<HeldFolder> OpenToWrite(const std::string& folder,
                                       const std::vector<std::string>& below);
// A draft's folder, in one that is made if need be; one that is there is as good. On the disk when
// it returns. Errors: as of WritingError.
absl::Status MakeDraftFolder(const std::string& draft, const std::vector<std::string>& below);
absl::Status SyncFolder(const HeldFolder& folder);
// Where `path` is a link to nothing, or passes one: "a/link: is a link to b, which is not there".
std::optional<std::string> DeadLinkOn(const std::string& path);
// "a/b/c" is in "a/b", and has the name "c" there.
std::string FolderOf(const std::string& path);
std::string NameIn(const std::string& path);

}  // namespace phalanx::checkpoint
