#include "core/checkpoint_io/folders.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/posix/unique_fd.h"

namespace phalanx::checkpoint {

absl::Status SystemError(absl::string_view path, int error) {
  return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(error)));
}

std::string FolderOf(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
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

absl::Status MakeDraftFolder(const std::string& draft) {
  const std::string folder = FolderOf(draft);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    const std::optional<std::string> dead = DeadLinkOn(folder);
    return dead.has_value() ? absl::UnavailableError(*dead) : SystemError(folder, error.value());
  }
  if (mkdir(draft.c_str(), 0777) == 0) return SyncFolder(folder);
  if (errno == EEXIST) return absl::OkStatus();
  return SystemError(draft, errno);
}

absl::Status SyncFolder(const std::string& folder) {
  const UniqueFd opened(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.is_open() || fsync(opened.get()) != 0) return SystemError(folder, errno);
  return absl::OkStatus();
}

}  // namespace phalanx::checkpoint
