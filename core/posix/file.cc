#include "core/posix/file.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"

namespace phalanx {
namespace {

absl::Status SystemError(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::StatusOr<FileStamp> CheckedStamp(const struct stat& status) {
  if (!S_ISREG(status.st_mode)) return absl::InvalidArgumentError("is not a regular file");
  return FileStamp{status.st_size,
                   int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

// A folder of `below` may be a link itself: whoever named it may lay it where they like. Errors:
// as SystemError, where nobody can say where the folder is.
absl::StatusOr<bool> LiesBelow(absl::string_view path, const std::string& folder) {
  const std::unique_ptr<char, decltype(&free)> real(realpath(folder.c_str(), nullptr), &free);
  if (real == nullptr) return SystemError(absl::StrCat("the folder ", folder, " cannot be found"));
  const absl::string_view there = real.get();
  return absl::StartsWith(path, there == "/" ? there : absl::StrCat(there, "/"));
}

absl::Status CheckBelow(int descriptor, const std::vector<std::string>& below) {
  char path[PATH_MAX];
  const std::string link = absl::StrCat("/proc/self/fd/", descriptor);
  const ssize_t bytes = readlink(link.c_str(), path, sizeof(path));
  if (bytes < 0) return SystemError("cannot be found");
  const absl::string_view led(path, static_cast<size_t>(bytes));
  absl::Status unknown;  // of the first folder that is not found
  for (const std::string& folder : below) {
    const absl::StatusOr<bool> lies = LiesBelow(led, folder);
    if (lies.ok() && *lies) return absl::OkStatus();
    if (unknown.ok()) unknown = lies.status();
  }
  if (!unknown.ok())
    return absl::InvalidArgumentError(absl::StrCat("leads to ", led, "; ", unknown.message()));
  return absl::InvalidArgumentError(
      absl::StrCat("leads to ", led, "; must lead below ", absl::StrJoin(below, ", ")));
}

}  // namespace

absl::StatusOr<File> File::Open(const std::string& path, const std::vector<std::string>& below) {
  // Looked at before it is opened: opening a pipe would wait for its other end.
  ASSIGN_OR_RETURN([[maybe_unused]] const FileStamp stamp, StampOf(path));
  UniqueFd descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!descriptor.is_open()) return SystemError("cannot be opened");
  // Where a path leads may change until it is opened, so what was opened is asked.
  if (!below.empty()) RETURN_IF_ERROR(CheckBelow(descriptor.get(), below));
  struct stat status;
  if (fstat(descriptor.get(), &status) != 0) return SystemError("cannot be read");
  ASSIGN_OR_RETURN(const FileStamp opened, CheckedStamp(status));
  return File(std::move(descriptor), opened);
}

absl::Status File::Read(int64_t offset, int64_t bytes, std::string& to) const {
  to.resize(static_cast<size_t>(bytes));
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t got = pread(descriptor_.get(), to.data() + done,
                              static_cast<size_t>(bytes - done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return absl::UnavailableError(absl::StrCat("cannot be read: ", std::strerror(errno)));
    if (got == 0) {
      struct stat status;
      const int64_t end = fstat(descriptor_.get(), &status) == 0 ? status.st_size : offset + done;
      return absl::UnavailableError(
          absl::StrCat("ends at byte ", end, ", before ", offset + bytes));
    }
    done += got;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t bytes_max,
                                          const std::vector<std::string>& below) {
  ASSIGN_OR_RETURN(const File file, File::Open(path, below));
  if (file.stamp().bytes > bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", file.stamp().bytes, " bytes; must have at most ", bytes_max));
  }
  std::string bytes;
  RETURN_IF_ERROR(file.Read(0, file.stamp().bytes, bytes));
  return bytes;
}

absl::StatusOr<FileStamp> StampOf(const std::string& path) {
  struct stat status;
  if (stat(path.c_str(), &status) != 0) return SystemError("cannot be opened");
  return CheckedStamp(status);
}

}  // namespace phalanx
