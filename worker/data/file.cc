#include "worker/data/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "worker/data/normalizer.h"

namespace phalanx::data {
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

absl::StatusOr<File> File::Open(const std::string& path) {
  // Looked at before it is opened: opening a pipe would wait for its other end.
  ASSIGN_OR_RETURN([[maybe_unused]] const FileStamp stamp, StampOf(path));
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return SystemError("cannot be opened");
  struct stat status;
  if (fstat(descriptor, &status) != 0) {
    const absl::Status error = SystemError("cannot be read");
    close(descriptor);
    return error;
  }
  absl::StatusOr<FileStamp> opened = CheckedStamp(status);
  if (!opened.ok()) {
    close(descriptor);
    return opened.status();
  }
  return File(descriptor, *opened);
}

File::File(File&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), stamp_(other.stamp_) {}

File& File::operator=(File&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(stamp_, other.stamp_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status File::Read(int64_t offset, int64_t bytes, std::string& to) const {
  to.resize(static_cast<size_t>(bytes));
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t got =
        pread(descriptor_, to.data() + done, static_cast<size_t>(bytes - done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return absl::UnavailableError(absl::StrCat("cannot be read: ", std::strerror(errno)));
    if (got == 0) {
      struct stat status;
      const int64_t end = fstat(descriptor_, &status) == 0 ? status.st_size : offset + done;
      return absl::UnavailableError(
          absl::StrCat("ends at byte ", end, ", before ", offset + bytes));
    }
    done += got;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t bytes_max) {
  ASSIGN_OR_RETURN(const File file, File::Open(path));
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

std::string GoneSinceIndexed(const std::string& path, const absl::Status& error) {
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) {
    return absl::StrCat(path, " is gone since it was indexed");
  }
  return absl::StrCat(path, " ", error.message());
}

std::string Printable(absl::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t bytes = ValidCharacterBytes(text);
    const unsigned char first = static_cast<unsigned char>(text[0]);
    if (bytes == 0 || first < 0x20 || first == 0x7F) {
      absl::StrAppend(&result, "\\x", absl::Hex(first, absl::kZeroPad2));
      text.remove_prefix(1);
    } else {
      absl::StrAppend(&result, text.substr(0, bytes));
      text.remove_prefix(bytes);
    }
  }
  return result;
}

std::string BaseName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace phalanx::data
