// core/posix/file.h: files read whole or at an offset.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/posix/unique_fd.h"

namespace phalanx {

// What tells a file from another or from its older self.
struct FileStamp {
  int64_t bytes = 0;
  int64_t modified = 0;  // nanoseconds since 1970
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

// An open file. Safe to read from any thread.
class File {
 public:
  // Errors: InvalidArgument, with the system's reason, if it cannot be opened or is not a regular
  // file.
  // `below`: as CheckBelow (below.h), of what was opened, wherever links in the path led then.
  static absl::StatusOr<File> Open(const std::string& path,
                                   const std::vector<std::string>& below = {});
  const FileStamp& stamp() const { return stamp_; }
  int descriptor() const { return descriptor_.get(); }
  // Exactly `bytes` from `offset`, into `to`. Errors: Unavailable if the file ends before or cannot
  // be read.
  absl::Status Read(int64_t offset, int64_t bytes, std::string& to) const;

 private:
  File(UniqueFd descriptor, FileStamp stamp) : descriptor_(std::move(descriptor)), stamp_(stamp) {}
  UniqueFd descriptor_;
  FileStamp stamp_;
};

// Errors: InvalidArgument if it cannot be read or is longer than `bytes_max`. `below`: as
// File::Open.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t bytes_max,
                                          const std::vector<std::string>& below = {});
absl::StatusOr<FileStamp> StampOf(const std::string& path);

}  // namespace phalanx
