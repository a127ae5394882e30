#include "core/checkpoint_io/folders.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace phalanx::checkpoint {

absl::Status SystemError(absl::string_view path, int error) {
  return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(error)));
}

absl::Status WritingError(absl::string_view path, const absl::Status& why) {
  const std::string said = absl::StrCat(path, ": ", why.message());
  if (!absl::IsInvalidArgument(why)) return absl::UnavailableError(said);
  return absl::InvalidArgumentError(absl::StrCat("spec.checkpoint.directory: ", said));
}

std::string FolderOf(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

std::string NameIn(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

std::optional<std::string> DeadLinkOn(const std::string& path) {
  for (std::filesystem::path at = path; at.has_relative_path(); at = at.parent_path()) {
    std::error_code error, ignored;
    if (!std::filesystem::is_symlink(at, ignored) || std::filesystem::exists(at, error)) continue;
    return absl::StrCat(at.string(), ": is a link to ",
                        std::filesystem::read_symlink(at, ignored).string(),
                        error ? absl::StrCat(": ", error.message()) : ", which is not there");
  }
  return std::nullopt;
}

absl::StatusOr<HeldFolder> OpenToWrite(const std::string& folder,
                                       const std::vector<std::string>& below) {
  absl::StatusOr<HeldFolder> opened = HeldFolder::Open(folder, below);
  if (!opened.ok()) return WritingError(folder, opened.status());
  return opened;
}

absl::Status MakeDraftFolder(const std::string& draft, const std::vector<std::string>& below) {
  const std::string path = FolderOf(draft), name = NameIn(draft);
  const absl::StatusOr<HeldFolder> folder = HeldFolder::Make(path, below);
  if (!folder.ok()) {
    const std::optional<std::string> dead = DeadLinkOn(path);
    return dead.has_value() ? absl::UnavailableError(*dead) : WritingError(path, folder.status());
  }
  if (mkdirat(folder->descriptor(), name.c_str(), 0777) == 0) return SyncFolder(*folder);
  if (errno == EEXIST) return absl::OkStatus();
  return SystemError(draft, errno);
}

absl::Status SyncFolder(const HeldFolder& folder) {
  const absl::Status synced = folder.Sync();
  return synced.ok() ? synced : WritingError(folder.path(), synced);
}

}  // namespace phalanx::checkpoint
