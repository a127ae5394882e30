#include "worker/rank/record_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/job/failure.h"

namespace phalanx::rank {

absl::Status OutputError(absl::string_view what, const std::string& path, int error) {
  return job::WithKind(
      job::FailureKind::kOutputUnavailable,
      absl::UnavailableError(absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error))));
}

absl::Status CheckRegular(const std::string& path) {
  struct stat place {};
  if (stat(path.c_str(), &place) != 0) {
    return errno == ENOENT ? absl::OkStatus() : OutputError("open", path, errno);
  }
  if (S_ISREG(place.st_mode)) return absl::OkStatus();
  return job::WithKind(job::FailureKind::kOutputUnavailable,
                       absl::UnavailableError(absl::StrCat(
                           "cannot use ", path, ": it is not a regular file; move it away")));
}

absl::StatusOr<RecordFile> RecordFile::Open(std::string path) {
  RETURN_IF_ERROR(CheckRegular(path));
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (file < 0) return OutputError("open", path, errno);
  struct stat place {};
  if (fstat(file, &place) != 0) {
    const int error = errno;
    close(file);
    return OutputError("open", path, error);
  }
  const off_t end = lseek(file, 0, SEEK_END);
  return RecordFile(std::move(path), file, place, end < 0 ? 0 : static_cast<int64_t>(end));
}

RecordFile::RecordFile(RecordFile&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::exchange(other.file_, -1)),
      place_(other.place_),
      end_(other.end_) {}

RecordFile::~RecordFile() {
  if (file_ >= 0) close(file_);
}

absl::Status RecordFile::Append(absl::string_view record) {
  struct stat now {};
  if (stat(path_.c_str(), &now) != 0) return OutputError("write", path_, errno);
  if (now.st_dev != place_.st_dev || now.st_ino != place_.st_ino) {
    return job::WithKind(job::FailureKind::kOutputUnavailable,
                         absl::UnavailableError(
                             absl::StrCat("cannot write ", path_, ": another file is there now")));
  }
  // Somebody has emptied it, or cut a record in two.
  if (now.st_size == 0) end_ = 0;
  if (now.st_size < end_) {
    return job::WithKind(
        job::FailureKind::kOutputUnavailable,
        absl::UnavailableError(absl::StrCat("cannot write ", path_, ": it has been cut off, at ",
                                            now.st_size, " of ", end_, " bytes")));
  }
  const ssize_t written = pwrite(file_, record.data(), record.size(), end_);
  if (written == static_cast<ssize_t>(record.size())) {
    end_ += written;
    return absl::OkStatus();
  }
  // A disk that is full takes a part and says so the next time.
  const int error = written < 0 ? errno : ENOSPC;
  if (written > 0) [[maybe_unused]]
    const int cut = ftruncate(file_, end_);
  return OutputError("write", path_, error);
}

}  // namespace phalanx::rank
