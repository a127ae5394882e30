#include "core/posix/whole_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/posix/held_folder.h"
#include "core/posix/unique_fd.h"

namespace phalanx {
namespace {

constexpr absl::string_view kDraftEnd = ".new";

// `name`: in that folder. What a killed process of this number has left there goes.
bool WriteAndSync(int folder, const std::string& name, absl::string_view text, mode_t mode) {
  unlinkat(folder, name.c_str(), 0);
  const UniqueFd file(openat(folder, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
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

absl::Status WriteWholeFile(const std::string& path, absl::string_view text, mode_t mode,
                            const std::vector<std::string>& below) {
  const auto failed = [&path](absl::string_view why) {
    return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", why));
  };
  const std::filesystem::path whole(path);
  const std::string parent = whole.parent_path().string();
  const absl::StatusOr<HeldFolder> folder = HeldFolder::Open(parent.empty() ? "." : parent, below);
  if (!folder.ok()) return failed(folder.status().message());
  const int in = folder->descriptor();
  const std::string name = whole.filename().string();
  const std::string draft = absl::StrCat(name, ".", getpid(), kDraftEnd);
  if (WriteAndSync(in, draft, text, mode) && renameat(in, draft.c_str(), in, name.c_str()) == 0) {
    return absl::OkStatus();
  }
  const int error = errno;
  unlinkat(in, draft.c_str(), 0);
  return failed(std::strerror(error));
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
