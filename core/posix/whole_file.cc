#include "core/posix/whole_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/posix/unique_fd.h"

namespace phalanx {
namespace {

constexpr absl::string_view kDraftEnd = ".new";

bool WriteAndSync(const std::string& path, absl::string_view text, mode_t mode) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode));
  if (!file.is_open()) return false;
  while (!text.empty()) {
    const ssize_t written = write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return fsync(file.get()) == 0;
}

}  // namespace

absl::Status WriteWholeFile(const std::string& path, absl::string_view text, mode_t mode) {
  const std::string draft = absl::StrCat(path, ".", getpid(), kDraftEnd);
  if (WriteAndSync(draft, text, mode) && std::rename(draft.c_str(), path.c_str()) == 0) {
    return absl::OkStatus();
  }
  const int error = errno;
  unlink(draft.c_str());
  return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", std::strerror(error)));
}

absl::Status SyncFolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const UniqueFd fd(
      open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.is_open() && fsync(fd.get()) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot sync ", folder, ": ", std::strerror(errno)));
}

bool IsLeftOf(absl::string_view whole, absl::string_view name) {
  return absl::ConsumePrefix(&name, whole) && absl::ConsumePrefix(&name, ".") &&
         absl::ConsumeSuffix(&name, kDraftEnd) && !name.empty() &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); });
}

}  // namespace phalanx
