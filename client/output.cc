#include "client/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/posix/whole_file.h"

namespace phalanx::client {
namespace {

// Returns 0, or errno.
int WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

}  // namespace

FdBuffer::FdBuffer(int fd) : fd_(fd) { setp(buffer_.data(), buffer_.data() + buffer_.size()); }

int FdBuffer::sync() {
  if (error_ == 0) {
    error_ = WriteAll(fd_, absl::string_view(pbase(), static_cast<size_t>(pptr() - pbase())));
  }
  setp(buffer_.data(), buffer_.data() + buffer_.size());
  return error_ == 0 ? 0 : -1;
}

FdBuffer::int_type FdBuffer::overflow(int_type c) {
  if (sync() != 0) return traits_type::eof();
  if (!traits_type::eq_int_type(c, traits_type::eof())) sputc(traits_type::to_char_type(c));
  return traits_type::not_eof(c);
}

OutputFile::OutputFile(std::string path)
    : path_(std::move(path)),
      file_(open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (!file_.is_open()) error_ = errno;
}

void OutputFile::Write(absl::string_view text) {
  if (error_ == 0) error_ = WriteAll(file_.get(), text);
}

absl::Status OutputFile::Close() {
  // Some file systems say only now that there is no room.
  if (file_.is_open() && close(file_.Release()) != 0 && error_ == 0) error_ = errno;
  if (error_ == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path_, ": ", std::strerror(error_)));
}

absl::Status WriteOutput(absl::string_view flag, const std::string& path, absl::string_view text) {
  constexpr mode_t kPermissions = 0777;
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0) return Annotate(WriteWholeFile(path, text), flag);
  std::error_code no_target;
  const std::string target =
      S_ISLNK(found.st_mode) ? std::filesystem::canonical(path, no_target).string() : path;
  if (!no_target && stat(target.c_str(), &found) == 0 && S_ISREG(found.st_mode)) {
    return Annotate(WriteWholeFile(target, text, found.st_mode & kPermissions), flag);
  }
  OutputFile file(path);  // a rename would put a file in the place of a device or a pipe
  file.Write(text);
  return Annotate(file.Close(), flag);
}

}  // namespace phalanx::client
