#include "client/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

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

}  // namespace phalanx::client
