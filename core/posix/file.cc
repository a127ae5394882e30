#include "core/posix/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "core/posix/below.h"

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

}  // namespace

absl::StatusOr<File> File::Open(const std::string& path, const std::vector<std::string>& below) {
  // Looked at before it is opened: opening a pipe would wait for its other end.
  ASSIGN_OR_RETURN([[maybe_unused]] const FileStamp stamp, StampOf(path));
  UniqueFd descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!descriptor.is_open()) return SystemError("cannot be opened");
  RETURN_IF_ERROR(CheckBelow(descriptor.get(), below));
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
