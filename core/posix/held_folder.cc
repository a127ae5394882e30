#include "core/posix/held_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "core/posix/below.h"

namespace phalanx {
namespace {

constexpr int kLinksMax = 40;

absl::Status Reason(int error) {
  const absl::string_view text = std::strerror(error);
  if (error == ENOENT) return absl::NotFoundError(text);
  if (error == EACCES) return absl::PermissionDeniedError(text);
  return absl::UnavailableError(text);
}

// The path before the last name of a path, and that name; the root has none.
std::pair<std::string, std::string> ParentAndName(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const std::filesystem::path whole(path);
  const std::string parent = whole.parent_path().string();
  return {parent.empty() ? "." : parent, whole.filename().string()};
}

// Without links, as far as the path is there.
std::filesystem::path WhereLeads(const std::string& path) {
  std::error_code error;
  const std::filesystem::path led = std::filesystem::weakly_canonical(path, error);
  return error ? std::filesystem::path(path).lexically_normal() : led;
}

bool LiesIn(const std::string& path, const std::string& folder) {
  const std::filesystem::path inner = WhereLeads(path), outer = WhereLeads(folder);
  const auto [of_outer, of_inner] =
      std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return of_outer == outer.end() || of_outer->empty();  // behind a last slash is an empty name
}

// Whoever named these folders says where they are, so that they are made is right, and so are those
// around them. Errors: of one that the path lies in.
absl::Status MakeNamed(const std::string& path, const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error && LiesIn(path, folder)) return Reason(error.value());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HeldFolder> HeldFolder::OpenAt(int from, const std::string& at, int flags,
                                              std::string path,
                                              const std::vector<std::string>& below) {
  UniqueFd opened(openat(from, at.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC | flags));
  if (!opened.is_open()) return Reason(errno);
  RETURN_IF_ERROR(CheckBelow(opened.get(), below));
  return HeldFolder(std::move(opened), std::move(path), below);
}

absl::StatusOr<HeldFolder> HeldFolder::Open(const std::string& path,
                                            const std::vector<std::string>& below) {
  return OpenAt(AT_FDCWD, path, 0, path, below);
}

absl::StatusOr<HeldFolder> HeldFolder::Make(const std::string& path,
                                            const std::vector<std::string>& below) {
  absl::StatusOr<HeldFolder> there = Open(path, below);
  if (!absl::IsNotFound(there.status())) return there;
  RETURN_IF_ERROR(MakeNamed(path, below));
  there = Open(path, below);
  const auto [parent, name] = ParentAndName(path);
  if (!absl::IsNotFound(there.status()) || name.empty() || parent == path) return there;
  ASSIGN_OR_RETURN(const HeldFolder in, Make(parent, below));
  if (mkdirat(in.descriptor(), name.c_str(), 0777) != 0 && errno != EEXIST) return Reason(errno);
  return OpenAt(in.descriptor(), name, 0, path, below);
}

absl::StatusOr<HeldFolder> HeldFolder::OpenFolder(const std::string& name) const {
  return OpenAt(descriptor(), name, O_NOFOLLOW, PathOf(name), below_);
}

absl::StatusOr<UniqueFd> HeldFolder::OpenFile(const std::string& name, int flags,
                                              mode_t mode) const {
  flags |= O_CLOEXEC;
  if (!below_.empty()) flags |= O_NOFOLLOW;
  // What a link leads to is opened in its own folder, once that is judged: O_CREAT makes nothing
  // elsewhere.
  std::optional<HeldFolder> led;
  std::string at = name;
  for (int links = 0; links <= kLinksMax; ++links) {
    const int in = led.has_value() ? led->descriptor() : descriptor();
    UniqueFd file(openat(in, at.c_str(), flags, mode));
    if (file.is_open()) return file;
    const int error = errno;
    char target[PATH_MAX];
    const ssize_t bytes =
        error == ELOOP ? readlinkat(in, at.c_str(), target, sizeof(target)) : ssize_t{-1};
    if (bytes < 0) return Reason(error);
    const auto [folder, file_name] = ParentAndName(std::string(target, static_cast<size_t>(bytes)));
    ASSIGN_OR_RETURN(HeldFolder next, OpenAt(in, folder, 0, folder, below_));
    led.emplace(std::move(next));
    at = file_name;
  }
  return Reason(ELOOP);
}

absl::StatusOr<std::vector<std::string>> HeldFolder::Names() const {
  ASSIGN_OR_RETURN(UniqueFd readable, OpenToLock());
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(fdopendir(readable.get()), &closedir);
  if (entries == nullptr) return Reason(errno);
  readable.Release();  // it is closed with the entries
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = readdir(entries.get())) {
    const absl::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
    errno = 0;
  }
  if (errno != 0) return Reason(errno);
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status HeldFolder::Sync() const {
  ASSIGN_OR_RETURN(const UniqueFd readable, OpenToLock());
  return fsync(readable.get()) == 0 ? absl::OkStatus() : Reason(errno);
}

absl::StatusOr<UniqueFd> HeldFolder::OpenToLock() const {
  UniqueFd readable(openat(descriptor(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!readable.is_open()) return Reason(errno);
  return readable;
}

bool HeldFolder::IsAtItsPath() const {
  struct stat held, there;
  return fstat(descriptor(), &held) == 0 && stat(path_.c_str(), &there) == 0 &&
         held.st_dev == there.st_dev && held.st_ino == there.st_ino;
}

std::string HeldFolder::PathOf(const std::string& name) const {
  return absl::StrCat(path_, absl::EndsWith(path_, "/") ? "" : "/", name);
}

}  // namespace phalanx
