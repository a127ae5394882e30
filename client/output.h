// client/output.h: what the command writes, with the reason where it cannot.
//
// A stream of the standard library that fails does not say why: by the time somebody looks, errno
// is another call's.
#pragma once

#include <array>
#include <streambuf>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/posix/unique_fd.h"

namespace phalanx::client {

// Buffers what a stream writes to a descriptor that somebody else owns. After a write that failed
// nothing more is written. Not thread-safe.
class FdBuffer final : public std::streambuf {
 public:
  explicit FdBuffer(int fd);
  // As errno says it; 0 while all writes have succeeded.
  int error() const { return error_; }

 protected:
  int_type overflow(int_type c) override;
  int sync() override;

 private:
  const int fd_;
  int error_ = 0;
  std::array<char, 1 << 16> buffer_;
};

// A file that is created, or emptied and written from its start. Not thread-safe.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  void Write(absl::string_view text);
  // Nothing is written after it. Errors: Unavailable, with the path and the first reason.
  absl::Status Close();

 private:
  const std::string path_;
  UniqueFd file_;
  int error_ = 0;
};

// Writes the file that `flag` names. A regular file is there as it was or whole with `text`, also
// where a link leads to it, which stays; what is no regular file is written in place. Errors:
// Unavailable, with the flag, the path and the reason.
absl::Status WriteOutput(absl::string_view flag, const std::string& path, absl::string_view text);

}  // namespace phalanx::client
