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
  return OutputError(what, path, absl::UnavailableError(std::strerror(error)));
}

absl::Status OutputError(absl::string_view what, const std::string& path, const absl::Status& why) {
  return job::WithKind(
      job::FailureKind::kOutputUnavailable,
      absl::UnavailableError(absl::StrCat("cannot ", what, " ", path, ": ", why.message())));
}

absl::Status CheckRegular(const HeldFolder& folder, const std::string& name) {
  const std::string path = folder.PathOf(name);
  struct stat place {};
  if (fstatat(folder.descriptor(), name.c_str(), &place, 0) != 0) {
    return errno == ENOENT ? absl::OkStatus() : OutputError("open", path, errno);
  }
  if (S_ISREG(place.st_mode)) return absl::OkStatus();
  return job::WithKind(job::FailureKind::kOutputUnavailable,
                       absl::UnavailableError(absl::StrCat(
                           "cannot use ", path, ": it is not a regular file; move it away")));
}

absl::StatusOr<RecordFile> RecordFile::Open(const HeldFolder& folder, const std::string& name) {
  RETURN_IF_ERROR(CheckRegular(folder, name));
  std::string path = folder.PathOf(name);
  absl::StatusOr<UniqueFd> file = folder.OpenFile(name, O_WRONLY | O_CREAT | O_NONBLOCK);
  if (!file.ok()) return OutputError("open", path, file.status());
  struct stat place {};
  if (fstat(file->get(), &place) != 0) return OutputError("open", path, errno);
  const off_t end = lseek(file->get(), 0, SEEK_END);
  return RecordFile(std::move(path), *std::move(file), place,
                    end < 0 ? 0 : static_cast<int64_t>(end));
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
  const ssize_t written = pwrite(file_.get(), record.data(), record.size(), end_);
  if (written == static_cast<ssize_t>(record.size())) {
    end_ += written;
    return absl::OkStatus();
  }
  // A disk that is full takes a part and says so the next time.
  const int error = written < 0 ? errno : ENOSPC;
  if (written > 0) [[maybe_unused]]
    const int cut = ftruncate(file_.get(), end_);
  return OutputError("write", path_, error);
}

}  // namespace phalanx::rank
