// worker/rank/record_file.h: a file of records, each of which is there whole or not at all.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace phalanx::rank {

// Not thread-safe.
class RecordFile {
 public:
  // Appends to what is there. Never waits for the other end of a pipe. Errors: OutputUnavailable
  // (core/job/failure.h), naming the path, also where that is no regular file.
  static absl::StatusOr<RecordFile> Open(std::string path);
  RecordFile(RecordFile&& other) noexcept;
  RecordFile& operator=(RecordFile&&) = delete;
  ~RecordFile();

  // A file that somebody has emptied is gone on with. Errors: as Open, also where the path is not
  // that of this file any more, so that nobody would find the record, or where the file was cut
  // off. Nothing of the record is left then, and it may be tried again.
  absl::Status Append(absl::string_view record);

 private:
  RecordFile(std::string path, int file, const struct stat& place, int64_t end)
      : path_(std::move(path)), file_(file), place_(place), end_(end) {}

  std::string path_;
  int file_;
  struct stat place_;  // of the file when it was opened
  int64_t end_;        // of the last whole record
};

// Looked at before it is opened, which might wait or do things to a device. OK where nothing is.
// Errors: OutputUnavailable, naming the path.
absl::Status CheckRegular(const std::string& path);

// "cannot WHAT PATH: why", of the error `error`.
absl::Status OutputError(absl::string_view what, const std::string& path, int error);

}  // namespace phalanx::rank
