#include "coordinator/store/audit_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace phalanx::coordinator {
namespace {

constexpr mode_t kMode = 0600;

std::string Timed(absl::string_view line, absl::Time now) {
  return absl::StrCat(absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", now, absl::UTCTimeZone()), " ", line,
                      "\n");
}

}  // namespace

absl::Status CheckAuditPlace(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0 || S_ISREG(found.st_mode)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path,
                   ": must be a regular file: the audit is written there, and whatever else "
                   "is there may hold it up; move it away"));
}

AuditFile::AuditFile(std::string path, AuditFileOptions options,
                     std::function<void(const absl::Status&)> changed)
    : path_(std::move(path)), options_(options), changed_(std::move(changed)) {}

absl::Status AuditFile::Append(absl::string_view line, absl::Time now) {
  absl::Status status;
  bool changes = false;
  {
    MutexLock lock(&mu_);
    std::string text;
    if (missing_ != 0)
      text = Timed(absl::StrCat("audit missing=", missing_, " reason=\"not written\""), now);
    status = WriteLocked(text.append(Timed(line, now)));
    changes = status.ok() != (missing_ == 0);
    missing_ = status.ok() ? 0 : missing_ + 1;
  }
  if (changes) changed_(status);
  return status;
}

absl::Status AuditFile::WriteLocked(absl::string_view text) {
  if (!file_.is_open()) RETURN_IF_ERROR(OpenLocked());
  if (bytes_ != 0 && bytes_ + static_cast<int64_t>(text.size()) > options_.bytes_max)
    RETURN_IF_ERROR(BeginNextLocked());
  for (absl::string_view left = text; !left.empty();) {
    const ssize_t written = write(file_.get(), left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const absl::Status status = Failed("write");
      // Where what was begun stays, the file that is opened next ends it.
      static_cast<void>(!ftruncate(file_.get(), bytes_));
      file_.reset();
      return status;
    }
    left.remove_prefix(static_cast<size_t>(written));
  }
  bytes_ += static_cast<int64_t>(text.size());
  return absl::OkStatus();
}

absl::Status AuditFile::OpenLocked() {
  UniqueFd file(open(path_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, kMode));
  struct stat found {};
  if (!file.is_open() || fchmod(file.get(), kMode) != 0 || fstat(file.get(), &found) != 0)
    return Failed("open");
  bytes_ = found.st_size;
  char last = '\n';
  // A line that a machine's end has cut is not to run into the next one.
  if (bytes_ != 0 && (pread(file.get(), &last, 1, bytes_ - 1) != 1 ||
                      (last != '\n' && write(file.get(), "\n", 1) != 1)))
    return Failed("write");
  bytes_ += last == '\n' ? 0 : 1;
  file_ = std::move(file);
  return absl::OkStatus();
}

absl::Status AuditFile::BeginNextLocked() {
  // Up to the first name that is free: whatever fails on the way, the next attempt finds one there,
  // and no file is replaced but the oldest.
  std::vector<std::string> names = {path_};
  for (int number = 1; number < options_.count_max; ++number) {
    struct stat found {};
    const bool there = lstat(NameOf(number).c_str(), &found) == 0;
    if (!there && errno != ENOENT) return Failed("rename");
    if (!there || S_ISREG(found.st_mode)) names.push_back(NameOf(number));
    if (!there) break;
  }
  if (names.size() == 1) {
    errno = EEXIST;
    return Failed("rename");
  }
  for (size_t i = names.size() - 1; i > 0; --i) {
    if (std::rename(names[i - 1].c_str(), names[i].c_str()) != 0 && errno != ENOENT)
      return Failed("rename");
  }
  ++put_aside_;
  file_.reset();
  return OpenLocked();
}

absl::Status AuditFile::Failed(absl::string_view what) const {
  return absl::UnavailableError(
      absl::StrCat("cannot ", what, " ", path_, ": ", std::strerror(errno)));
}

std::string AuditFile::NameOf(int number) const {
  return number == 0 ? path_ : absl::StrCat(path_, ".", number);
}

}  // namespace phalanx::coordinator
