// worker/data/file.h: files read whole or at an offset.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace phalanx::data {

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
  static absl::StatusOr<File> Open(const std::string& path);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();
  const FileStamp& stamp() const { return stamp_; }
  int descriptor() const { return descriptor_; }
  // Exactly `bytes` from `offset`, into `to`. Errors: Unavailable if the file ends before or cannot
  // be read.
  absl::Status Read(int64_t offset, int64_t bytes, std::string& to) const;

 private:
  File(int descriptor, FileStamp stamp) : descriptor_(descriptor), stamp_(stamp) {}
  int descriptor_ = -1;
  FileStamp stamp_;
};

// Errors: InvalidArgument if it cannot be read or is longer than `bytes_max`.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t bytes_max);
absl::StatusOr<FileStamp> StampOf(const std::string& path);

// Of a file that was indexed and cannot be opened now, for `error`: one sentence, with the path.
std::string GoneSinceIndexed(const std::string& path, const absl::Status& error);
// The part after the last slash.
std::string BaseName(const std::string& path);
// `text` as a message may hold it: control characters and what is no UTF-8 are written \xHH.
std::string Printable(absl::string_view text);

}  // namespace phalanx::data
