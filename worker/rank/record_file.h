// worker/rank/record_file.h: a file of records, each of which is there whole or not at all.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/posix/held_folder.h"
#include "core/posix/unique_fd.h"

namespace phalanx::rank {

// Not thread-safe.
class RecordFile {
 public:
  // Appends to what is there in the folder. Never waits for the other end of a pipe. Errors:
  // OutputUnavailable (core/job/failure.h), naming the path, also where that is no regular file.
  static absl::StatusOr<RecordFile> Open(const HeldFolder& folder, const std::string& name);
  RecordFile(RecordFile&&) = default;
  RecordFile& operator=(RecordFile&&) = delete;

  // A file that somebody has emptied is gone on with. Errors: as Open, also where the path is not
  // that of this file any more, so that nobody would find the record, or where the file was cut
  // off. Nothing of the record is left then, and it may be tried again.
  absl::Status Append(absl::string_view record);

 private:
  RecordFile(std::string path, UniqueFd file, const struct stat& place, int64_t end)
      : path_(std::move(path)), file_(std::move(file)), place_(place), end_(end) {}

  std::string path_;
  UniqueFd file_;
  struct stat place_;  // of the file when it was opened
  int64_t end_;        // of the last whole record
};

// Looked at before it is opened, which might wait or do things to a device. OK where nothing is.
// Errors: OutputUnavailable, naming the path.
absl::Status CheckRegular(const HeldFolder& folder, const std::string& name);

// "cannot WHAT PATH: why", of the error `error`, or of one of HeldFolder.
absl::Status OutputError(absl::string_view what, const std::string& path, int error);
absl::Status OutputError(absl::string_view what, const std::string& path, const absl::Status& why);

}  // namespace phalanx::rank
